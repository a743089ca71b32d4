/**
 * A folder for one process at a time, also over a file system that several machines share.
 *
 * Owner of: the lock, which is a folder whose time of change its holder sets anew every second. That time is a beat and no
 * date: a lock is stale when whoever wants it has seen it unchanged for `staleMs` of its own monotonic time. So clocks that
 * are set, or differ, neither take a lock from a holder that lives nor keep that of a dead one. Where the holder's process was
 * one of this machine, its end is seen at once, by what it left beside the lock.
 *
 * FL1 a holder that lost the folder to another process is told, at its next beat or when it looks, and frees nothing of the
 *     other's. Who holds it is what the last one to take it wrote beside the lock, not whether the lock can be found.
 */
import { readFile, readlink, rm, rmdir, stat, writeFile } from "node:fs/promises";
import { setTimeout as delay } from "node:timers/promises";
import { z } from "zod";

const staleMs = 5000;
const beatMs = 1000;
const lookMs = 500;
const missedMs = 10 * beatMs;
/** A holder that is just ending is waited for, too. */
const waitMs = 9000;

export type FolderLock = {
  /** Frees the folder, unless another process has it by now. */
  release(): Promise<void>;
  /** Calls `onLost` if another process has the folder by now; else the next beat would. */
  look(): Promise<void>;
};

/**
 * Rejects when a holder lives, with a message that says which. `onLost`: this process did not beat for so long, suspended or starved, that another one has
 * the folder now.
 */
export async function lockFolder(
  folder: string,
  lockPath: string,
  onLost: (cause: Error) => void,
): Promise<FolderLock> {
  const { lock } = await import("proper-lockfile"); // most who import this package lock nothing
  const startMs = performance.now();
  let seen: { readonly beat: string; readonly sinceMs: number } | undefined;
  const compromised = new AbortController();
  for (;;) {
    try {
      const release = await lock(folder, {
        lockfilePath: lockPath,
        realpath: false,
        stale: Number.POSITIVE_INFINITY, // it would compare the time of change with the clock
        update: beatMs,
        onCompromised: (cause) => {
          compromised.abort();
          onLost(cause);
        },
      });
      const holder = await holderHere(lockPath);
      await writeFile(ownerOf(lockPath), JSON.stringify(holder), { mode: 0o600 }).catch(() => {}); // then its beat counts
      const isLost = async () => {
        const present = Holder.safeParse(await readJson(ownerOf(lockPath))).data;
        return present !== undefined && present.token !== holder.token;
      };
      return {
        look: async () => {
          if (await isLost()) onLost(new Error(`'${lockPath}' is the lock of another process`));
        },
        release: async () => {
          if (await isLost()) {
            // The library removes a lock by its path, also when the process exits, until a beat of its own has missed it.
            await delay(missedMs, undefined, { signal: compromised.signal }).catch(() => {});
            return;
          }
          await rm(ownerOf(lockPath), { force: true });
          await release();
        },
      };
    } catch (cause) {
      if (refusals.has((cause as NodeJS.ErrnoException).code ?? "")) throw cause;
      const nowMs = performance.now();
      const beat = await beatOf(lockPath);
      const isSilent = beat !== undefined && beat === seen?.beat && nowMs - seen.sinceMs >= staleMs;
      if (isSilent || (await hasHolderEnded(lockPath))) {
        await rmdir(lockPath).catch(() => {}); // another one was faster
        seen = undefined;
        continue;
      }
      if (nowMs - startMs >= waitMs) throw (await heldBy(lockPath)) ?? cause;
      if (beat !== undefined && beat !== seen?.beat) seen = { beat, sinceMs: nowMs };
      await delay(lookMs);
    }
  }
}

/** To wait changes nothing. */
const refusals: ReadonlySet<string> = new Set(["EACCES", "EPERM", "EROFS", "ENOSPC", "ENOTDIR"]);

const ownerOf = (lockPath: string): string => `${lockPath}.holder`;

/**
 * A process, told from all others that ever were: its machine since it was started, its namespace, its number, its start. Where
 * the system does not say these, nobody sees its end but by its beat.
 */
const Holder = z.object({
  /** of this time that it took the folder */
  token: z.string(),
  machine: z.string().optional(),
  pid: z.int().positive(),
  startedAt: z.string().optional(),
  /** the lock that it holds: what an earlier holder left says nothing of the present one */
  lock: z.string().optional(),
});

async function holderHere(lockPath: string): Promise<z.infer<typeof Holder>> {
  const [machine, startedAt, lock] = await Promise.all([machineHere(), startOf(process.pid), lockOf(lockPath)]);
  return { token: crypto.randomUUID(), machine, pid: process.pid, startedAt, lock };
}

async function heldBy(lockPath: string): Promise<Error | undefined> {
  if ((await beatOf(lockPath)) === undefined) return undefined;
  const holder = Holder.safeParse(await readJson(ownerOf(lockPath))).data;
  if (holder === undefined || holder.lock !== (await lockOf(lockPath))) return new Error("another process has it");
  const isHere = holder.machine !== undefined && holder.machine === (await machineHere());
  return new Error(`process '${holder.pid}' ${isHere ? "" : "of another machine or container "}has it`);
}

async function hasHolderEnded(lockPath: string): Promise<boolean> {
  const holder = Holder.safeParse(await readJson(ownerOf(lockPath))).data;
  if (holder?.machine === undefined || holder.startedAt === undefined || holder.lock === undefined) return false;
  const [machine, startedAt, lock] = await Promise.all([machineHere(), startOf(holder.pid), lockOf(lockPath)]);
  return machine === holder.machine && lock === holder.lock && startedAt !== holder.startedAt;
}

const machineHere = async (): Promise<string | undefined> =>
  Promise.all([readFile("/proc/sys/kernel/random/boot_id", "utf8"), readlink("/proc/self/ns/pid")]).then(
    ([boot, namespace]) => `${boot.trim()} ${namespace}`,
    () => undefined,
  );

/** In ticks since the machine's start; a process that has ended and was not waited for has ended. */
async function startOf(pid: number): Promise<string | undefined> {
  const text = await readFile(`/proc/${pid}/stat`, "utf8").catch(() => "");
  const fields = text.slice(text.lastIndexOf(")") + 2).split(" ");
  return fields[0] === "Z" || fields[0] === "X" ? undefined : fields[19];
}

/** Folders get the numbers of those that were removed, but not their time of birth. */
const lockOf = (path: string): Promise<string | undefined> =>
  stat(path, { bigint: true }).then(
    ({ ino, birthtimeNs }) => (birthtimeNs > 0n ? `${ino} ${birthtimeNs}` : undefined),
    () => undefined,
  );

const readJson = async (path: string): Promise<unknown> => {
  try {
    return JSON.parse(await readFile(path, "utf8"));
  } catch {
    return undefined;
  }
};

const beatOf = (path: string): Promise<string | undefined> =>
  stat(path, { bigint: true }).then(
    ({ ino, mtimeNs }) => `${ino} ${mtimeNs}`,
    () => undefined,
  );
