import { accessSync, constants, readFileSync, writeFileSync } from "node:fs";
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { TreadleError } from "@treadle/contracts";
import { controllersOf, counter, findCgroups, killAll, readNumber, readProcesses, removeFolder } from "./cgroup.ts";
import { signalProcess } from "./command.ts";

/**
 * The control group of a container, seen and written from the host, which needs the engine on this machine and root.
 * Below it each command has a group that only lists its processes: no controller is switched on there, so that the
 * engine may still start processes in the container's own.
 */
export class ContainerGroup {
  readonly #cores: string;
  readonly #lists: string;
  readonly #outOfMemory: string;
  readonly #used: string;
  readonly #version: 1 | 2;

  private constructor(version: 1 | 2, folders: { cpuset: string; pids: string; memory: string }) {
    this.#version = version;
    this.#cores = join(folders.cpuset, "cpuset.cpus");
    this.#lists = folders.pids;
    this.#used = join(folders.memory, version === 1 ? "memory.usage_in_bytes" : "memory.current");
    this.#outOfMemory = join(folders.memory, version === 1 ? "memory.oom_control" : "memory.events");
  }

  /** Of the container whose first process is `pid`; undefined when it is another machine's or may not be written. */
  static of(pid: number, containerId: string): ContainerGroup | undefined {
    try {
      const groups = readFileSync(`/proc/${pid}/cgroup`, "utf8");
      // A process of that number exists on this machine, too, when the engine is on another.
      if (!groups.includes(containerId)) return undefined;
      const place = findCgroups(readFileSync("/proc/self/mountinfo", "utf8"), groups, controllersOf);
      if (place.version === undefined) return undefined;
      const folders = place.version === 1 ? place : { cpuset: place.base, pids: place.base, memory: place.base };
      const group = new ContainerGroup(place.version, folders);
      accessSync(group.#cores, constants.W_OK);
      accessSync(group.#lists, constants.W_OK);
      return group;
    } catch {
      return undefined;
    }
  }

  /** As the kernel writes it: `0-3,6`. */
  cores(): string {
    return readFileSync(this.#cores, "utf8").trim();
  }

  /** Applies to what runs, at once. */
  setCores(list: string): void {
    writeFileSync(this.#cores, list);
  }

  async createExec(exec: string): Promise<void> {
    await mkdir(join(this.#lists, exec));
  }

  /** The process and what it starts from now on belong to the command. */
  join(exec: string, pid: number): Promise<void> {
    return writeFile(join(this.#lists, exec, "cgroup.procs"), String(pid));
  }

  /** Processes that hold the container; none belongs to a command. */
  ownProcesses(): number[] {
    return readProcesses(this.#lists);
  }

  /** What entered no command's list ends: only `kept` are to be in the container's own group. */
  async endOthers(kept: readonly number[]): Promise<void> {
    for (let tries = 0; tries < 500; tries++) {
      const others = this.ownProcesses().filter((pid) => !kept.includes(pid));
      if (others.length === 0) return;
      for (const pid of others) signalProcess(pid, "SIGKILL");
      await delay(tries < 5 ? 1 : 10);
    }
    throw new TreadleError("sandbox.failed", `processes of '${this.#lists}' did not end after SIGKILL`);
  }

  processes(exec: string): number[] {
    return readProcesses(join(this.#lists, exec));
  }

  async killExec(exec: string): Promise<void> {
    const folder = join(this.#lists, exec);
    const killFile = this.#version === 2 ? join(folder, "cgroup.kill") : undefined;
    await removeFolder(folder, () => killAll(folder, killFile));
  }

  usedBytes(): number | undefined {
    return readNumber(this.#used);
  }

  /** times the kernel ended a process of the container for lack of memory */
  outOfMemoryKills(): number {
    return counter(this.#outOfMemory, "oom_kill");
  }
}

/** What has ended, and whose parent was not told yet, is no more. */
export function isAlive(pid: number): boolean {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "latin1");
    return !"ZX".includes(stat.charAt(stat.lastIndexOf(")") + 2));
  } catch {
    return false;
  }
}
