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

const lookMs = 50;

/** Where processes see one another by their ids: a machine, or a container of one. */
export function thisMachine(): string {
  try {
    const boot = readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();
    return `${hostname().slice(0, 100)}/${boot}/${readlinkSync("/proc/self/ns/pid")}`;
  } catch (cause) {
    const message = `a pool that outlives runs needs the /proc of Linux, which '${process.platform}' lacks; share devices by 'treadle multiplex'`;
    throw new TreadleError("platform.unsupported", message, { cause });
  }
}

/** From now on this process, and all that it starts, can be found and ended as one run. */
export function markThisProcess(): RunProcess {
  const mark = crypto.randomUUID();
  const machine = thisMachine();
  const file = join(tmpdir(), fileOf(mark));
  openSync(file, "wx", 0o600); // until the process ends
  unlinkSync(file);
  process.env[pooledRunVariable] = mark;
  return { machine, pid: process.pid, mark };
}

export const runProcesses = {
  isThere({ pid, mark }: RunProcess): boolean {
    try {
      return readdirSync(`/proc/${pid}/fd`).some((fd) => linkOf(`/proc/${pid}/fd/${fd}`).includes(fileOf(mark)));
    } catch {
      return false; // it has ended, or is another user's
    }
  },

  /** Resolves when nothing of it is left. */
  async end(run: RunProcess): Promise<void> {
    while (runProcesses.isThere(run)) {
      kill(run.pid);
      await delay(lookMs);
    }
    await endMarked(pooledRunVariable, run.mark);
  },
};

function kill(pid: number): void {
  try {
    process.kill(pid, "SIGKILL");
  } catch {
    // it has just ended
  }
}

const fileOf = (mark: string): string => `treadle-pooled-${mark}`;

function linkOf(path: string): string {
  try {
    return readlinkSync(path);
  } catch {
    return ""; // it has just been closed
  }
}
