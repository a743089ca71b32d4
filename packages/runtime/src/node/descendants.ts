/**
 * Whatever a worker process starts, also what has left its process group: ended when the worker has ended.
 *
 * Known by a control group of version 2 where this process may make one, with the groups below it, and on Linux by a variable of
 * the environment, which is inherited. Two kinds are not found: a process that cleared its environment and moved to a group outside,
 * which takes the rights of this process; and, where no group can be made, processes of which each starts the next and ends
 * within milliseconds.
 */
import { mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { workerVariables } from "@treadle/contracts";
import { foundInTurns, foundNow, has, holdsSomething, isGone, isNobody, ownName, variableOf } from "./processes.ts";

/** With the number of the process that made it, which alone may find it empty and in use: a worker is about to enter. */
const groupName = (mark: string): string => `treadle-worker-${process.pid}-${mark}`;
const madeBy = (name: string): number | undefined => Number(/^treadle-worker-(\d+)-/.exec(name)?.[1]) || undefined;
/** A process may start others while it is looked for, and end before it is looked at: one look that finds nothing proves little. */
const maxRounds = 10;
const emptyLooks = 2;
const roundMs = 50;

export class Descendants {
  readonly #mark = crypto.randomUUID();
  readonly #group: string | undefined;

  /** `parent`: the control group below which one is made; by default this process's own. */
  constructor(parent: string | undefined = ownGroup()) {
    this.#group = makeGroup(parent, this.#mark);
  }

  /** what the worker's environment needs */
  get environment(): Record<string, string> {
    return {
      [workerVariables.mark]: this.#mark,
      ...(ownName === undefined ? {} : { [workerVariables.agent]: ownName }),
      ...(this.#group === undefined ? {} : { [workerVariables.group]: this.#group }),
    };
  }

  /** The worker has been started; it starts nothing before it is told what it is. */
  adopt(pid: number): void {
    if (this.#group === undefined) return;
    try {
      writeFileSync(join(this.#group, "cgroup.procs"), String(pid));
    } catch {
      // it has ended, or may not be moved: the mark is left
    }
  }

  /** Sends SIGKILL to all that are left now, before this returns. */
  endNow(): void {
    killGroup(this.#group);
    endAll(new Set([...foundNow(has(workerVariables.mark, this.#mark)), ...grouped(this.#group)]));
  }

  /** Resolves when nothing is left, or nothing that SIGKILL ends soon. */
  async end(): Promise<void> {
    let empty = 0;
    for (let round = 0; round < maxRounds && empty < emptyLooks; round++) {
      killGroup(this.#group);
      const found = await foundInTurns(has(workerVariables.mark, this.#mark));
      const isEmpty = endAll(new Set([...(found ?? []), ...grouped(this.#group)])) === 0 && found !== undefined;
      empty = isEmpty ? empty + 1 : 0;
      if (!isEmpty) await delay(roundMs);
    }
    removeGroup(this.#group);
  }
}

/** Ends what agents of this user that are gone have left. Workers end by themselves, unless even their watchdog is stuck. */
export async function endAbandoned(graceMs = 2000): Promise<void> {
  const first = await foundInTurns(isAbandoned);
  if (first !== undefined && first.length > 0) {
    await delay(graceMs, undefined, { ref: false });
    endAll(new Set((await foundInTurns(isAbandoned))?.filter((pid) => first.includes(pid))));
  }
  removeEmptyGroups();
}

function isAbandoned(environment: Buffer): boolean {
  const agent = variableOf(workerVariables.agent, environment);
  return agent !== undefined && isGone(agent) === true;
}

/** Groups of workers whose agent was killed; one that has processes stays. */
function removeEmptyGroups(): void {
  const own = ownGroup();
  if (own === undefined) return;
  for (const name of names(own)) {
    const maker = madeBy(name);
    if (maker !== undefined && maker !== process.pid && isNobody(maker)) removeGroup(join(own, name));
  }
}

function makeGroup(parent: string | undefined, mark: string): string | undefined {
  if (parent === undefined) return undefined;
  const group = join(parent, groupName(mark));
  try {
    mkdirSync(group);
    return group;
  } catch {
    return undefined; // read-only, or not ours
  }
}

function removeGroup(group: string | undefined): void {
  if (group === undefined) return;
  try {
    for (const below of groupsBelow(group)) rmdirSync(below);
    rmdirSync(group);
  } catch {
    // it has processes, which are not reaped yet: whoever starts next removes it
  }
}

function ownGroup(): string | undefined {
  try {
    const mounts = readFileSync("/proc/self/mountinfo", "utf8").split("\n");
    const mount = mounts.find((line) => line.includes(" - cgroup2 "))?.split(" ")[4];
    const path = /^0::(.*)$/m.exec(readFileSync("/proc/self/cgroup", "utf8"))?.[1];
    return mount === undefined || path === undefined ? undefined : join(mount, path);
  } catch {
    return undefined; // another system than Linux
  }
}

/** All at once, those that are just being started included, where the kernel can (Linux 5.14). */
function killGroup(group: string | undefined): void {
  if (group === undefined) return;
  try {
    writeFileSync(join(group, "cgroup.kill"), "1");
  } catch {
    // an older kernel: they are ended one by one
  }
}

/** In it, and in those that its processes have made below. */
function grouped(group: string | undefined): number[] {
  if (group === undefined) return [];
  return [group, ...groupsBelow(group)].flatMap((each) => {
    try {
      const pids = readFileSync(join(each, "cgroup.procs"), "utf8").split("\n");
      return pids.map(Number).filter((pid) => pid > 0);
    } catch {
      return [];
    }
  });
}

/** The deepest first. */
function groupsBelow(group: string): string[] {
  try {
    const folders = readdirSync(group, { withFileTypes: true }).filter((entry) => entry.isDirectory());
    return folders.flatMap(({ name }) => [...groupsBelow(join(group, name)), join(group, name)]);
  } catch {
    return []; // removed meanwhile
  }
}

/**
 * Ends all processes whose environment has that variable, and resolves when none of them runs or holds anything: it waits while
 * the system does not say, as when there are no file descriptors left. Finds none on other systems than Linux.
 */
export async function endMarked(variable: string, value: string): Promise<void> {
  const ended = new Set<number>();
  for (;;) {
    const found = await foundInTurns(has(variable, value));
    endAll(new Set(found));
    for (const pid of found ?? []) ended.add(pid);
    if (found?.length === 0 && ![...ended].some(holdsSomething)) return;
    await delay(roundMs);
  }
}

function endAll(found: ReadonlySet<number>): number {
  for (const pid of found) {
    try {
      process.kill(pid, "SIGKILL");
    } catch {
      // it has just ended, or is another user's
    }
  }
  return found.size;
}

function names(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    return [];
  }
}
