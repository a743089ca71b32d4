/**
 * A folder for one process at a time, also over a file system that several machines share.
 *
 * Owner of: the lock, which is a folder whose time of change its holder sets anew every second. That time is a beat and no
 * date: a lock is stale when whoever wants it has seen it unchanged for `staleMs` of its own monotonic time. So clocks that
 * are set, or differ, neither take a lock from a holder that lives nor keep that of a dead one.
 */
import { rmdir, stat } from "node:fs/promises";
import { setTimeout as delay } from "node:timers/promises";
import { lock } from "proper-lockfile";

const staleMs = 5000;
const beatMs = 1000;
const lookMs = 500;
/** A holder that is just ending is waited for, too. */
const waitMs = 9000;

/**
 * Resolves with how to free it. Rejects when a holder lives. `onLost`: this process did not beat for so long, suspended or
 * starved, that another one has the folder now.
 */
export async function lockFolder(
  folder: string,
  lockPath: string,
  onLost: (cause: Error) => void,
): Promise<() => Promise<void>> {
  const startMs = performance.now();
  let seen: { readonly beat: string; readonly sinceMs: number } | undefined;
  for (;;) {
    try {
      return await lock(folder, {
        lockfilePath: lockPath,
        realpath: false,
        stale: Number.POSITIVE_INFINITY, // it would compare the time of change with the clock
        update: beatMs,
        onCompromised: onLost,
      });
    } catch (cause) {
      const nowMs = performance.now();
      const beat = await beatOf(lockPath);
      if (beat !== undefined && beat === seen?.beat && nowMs - seen.sinceMs >= staleMs) {
        await rmdir(lockPath).catch(() => {}); // another one was faster
        seen = undefined;
        continue;
      }
      if (nowMs - startMs >= waitMs) throw cause;
      if (beat !== undefined && beat !== seen?.beat) seen = { beat, sinceMs: nowMs };
      await delay(lookMs);
    }
  }
}

const beatOf = (path: string): Promise<string | undefined> =>
  stat(path, { bigint: true }).then(
    ({ ino, mtimeNs }) => `${ino} ${mtimeNs}`,
    () => undefined,
  );
