/**
 * The process of a run that joins a pool, as the pool sees it: whether it is there, and how it is ended with all that it has
 * started. Of Linux alone, whose `/proc` says so.
 *
 * What a process starts is known by a mark in the environment. A process cannot change what others see of its own, so it
 * holds a file open whose name has the mark, and which is removed at once: nobody else can be taken for it, whatever becomes of
 * its id, and nobody is ended who has not asked for it.
 */
import { openSync, readdirSync, readFileSync, readlinkSync, unlinkSync } from "node:fs";
import { hostname, tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { pooledRunVariable, type RunProcess, TreadleError } from "@treadle/contracts";
import { endMarked } from "../node/descendants.ts";
import { isAbsent, isForbidden, statOf } from "../node/processes.ts";
import { removeDeadSocketFolders } from "../node/socket-folder.ts";

const lookMs = 50;

/**
 * Where processes see one another by their ids, and may end one another: a user of a machine, or of a container of one. Its
 * parts are the host, what stays when that starts again, what does not, and the user.
 */
export function thisMachine(): string {
  try {
    const boot = readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();
    const host = hostname().replaceAll("/", "-").slice(0, 100);
    return `${host}/${machineId()}/${boot}/${readlinkSync("/proc/self/ns/pid")}/${process.getuid?.() ?? 0}`;
  } catch (cause) {
    const message = `a pool that outlives runs needs the /proc of Linux, which '${process.platform}' lacks; share devices by 'treadle multiplex'`;
    throw new TreadleError("platform.unsupported", message, { cause });
  }
}

/** Empty where the system has none, as in most containers. */
function machineId(): string {
  try {
    return readFileSync("/etc/machine-id", "utf8").trim().slice(0, 64);
  } catch {
    return "";
  }
}

/** One is the other, started again since: nothing is left of what it had. */
export function hasStartedAgain(machine: string, then: string): boolean {
  const [host, id, boot] = machine.split("/");
  const [hostThen, idThen, bootThen] = then.split("/");
  return host === hostThen && id !== "" && id === idThen && boot !== bootThen;
}

/** From now on this process, and all that it starts, can be found and ended as one run. */
export function markThisProcess(): RunProcess {
  const mark = crypto.randomUUID();
  const machine = thisMachine();
  const file = join(tmpdir(), fileOf(mark));
  openSync(file, "wx", 0o600); // until the process ends
  unlinkSync(file);
  process.env[pooledRunVariable] = mark;
  const startedTicks = statOf(process.pid)?.startedTicks ?? 0;
  return { machine, pid: process.pid, startedTicks, mark };
}

/** What can be said of a process; unknown where the system does not tell, as when there are no file descriptors left. */
export type ProcessLook = "there" | "gone" | "unknown";

export const runProcesses = {
  /** It is there, and it is the one that asked to be known by that mark. */
  proves({ pid, mark }: Pick<RunProcess, "pid" | "mark">): boolean {
    try {
      return marksOf(pid).includes(mark);
    } catch {
      return false; // it has ended, or is another user's
    }
  },

  /** Of one that has proved that it is. */
  look({ pid, startedTicks }: RunProcess): ProcessLook {
    try {
      const stat = statOf(pid);
      return stat?.startedTicks === startedTicks && !stat.hasEnded ? "there" : "gone";
    } catch {
      return "unknown";
    }
  },

  /** All that have asked for a mark and that this user may see. Throws where `/proc` cannot be read. */
  all(): Pick<RunProcess, "pid" | "mark">[] {
    const pids = readdirSync("/proc").map(Number).filter(Number.isInteger);
    return pids.flatMap((pid) => {
      try {
        return marksOf(pid).map((mark) => ({ pid, mark }));
      } catch (error) {
        if (isAbsent(error) || isForbidden(error)) return [];
        throw error;
      }
    });
  },

  /** Resolves when nothing of it is left. */
  async end(run: RunProcess): Promise<void> {
    for (let look = runProcesses.look(run); look !== "gone"; look = runProcesses.look(run)) {
      if (look === "there") kill(run.pid);
      await delay(lookMs);
    }
    await endRun(run.mark);
  },
};

/** Ends what is left of a run, and removes its sockets and shared memory now, not when somebody next looks for what is dead. */
export async function endRun(mark: string): Promise<void> {
  await endMarked(pooledRunVariable, mark);
  await removeDeadSocketFolders().catch(() => {}); // what cannot be removed is looked at again by every runner
}

function kill(pid: number): void {
  try {
    process.kill(pid, "SIGKILL");
  } catch {
    // it has just ended
  }
}

const filePrefix = "treadle-pooled-";
const fileOf = (mark: string): string => `${filePrefix}${mark}`;
const markPattern = new RegExp(`/${filePrefix}([0-9a-f-]{36})(?: \\(deleted\\))?$`);

function marksOf(pid: number): string[] {
  const files = readdirSync(`/proc/${pid}/fd`).map((fd) => linkOf(`/proc/${pid}/fd/${fd}`));
  return files.flatMap((file) => markPattern.exec(file)?.[1] ?? []);
}

function linkOf(path: string): string {
  try {
    return readlinkSync(path);
  } catch {
    return ""; // it has just been closed
  }
}
