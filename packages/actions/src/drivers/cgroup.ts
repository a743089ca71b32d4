import { accessSync, constants, readFileSync, rmdirSync, writeFileSync } from "node:fs";
import { mkdir, readdir, readFile, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { TreadleError } from "@treadle/contracts";

export type CgroupLimits = { readonly memoryBytes?: number | undefined; readonly maxProcesses: number };

/**
 * The control groups of one session: `<session>/<sandbox>/<exec>`. A sandbox has one memory and one process limit, each
 * command its own cores and its own list of processes. Version 1 keeps one tree a controller, version 2 one in all.
 */
export interface CgroupTree {
  readonly version: 1 | 2;
  /** folders to remove at the end, with all below */
  readonly roots: readonly string[];
  createSandbox(sandbox: string, limits: CgroupLimits): Promise<void>;
  /** Files that a process writes its id to, to become part of the command. */
  createExec(sandbox: string, exec: string): Promise<string[]>;
  /** Applies to what runs, at once. */
  setCores(sandbox: string, exec: string, cores: readonly number[]): Promise<void>;
  processes(sandbox: string, exec: string): Promise<number[]>;
  /** holds the number of all tasks that were started in the group and were not yet waited for */
  tasksFile(sandbox: string, exec: string): string;
  /** Ends every process, also against a fork bomb, and removes the command's groups. */
  killExec(sandbox: string, exec: string): Promise<void>;
  usedBytes(sandbox: string): number | undefined;
  /** times the kernel ended a process of the sandbox for lack of memory */
  outOfMemoryKills(sandbox: string): number;
  removeSandbox(sandbox: string): Promise<void>;
  removeSession(): Promise<void>;
}

const list = (cores: readonly number[]): string => cores.join(",");

/**
 * Removing a group fails for a moment after its last process has ended, and where a process joins it meanwhile, which the kernel
 * takes time for: `kill` ends that, too.
 */
export async function removeFolder(folder: string, kill?: () => Promise<void>): Promise<void> {
  for (let attempt = 0; ; attempt++) {
    await kill?.();
    try {
      rmdirSync(folder);
      return;
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code === "ENOENT") return;
      if (attempt === 100)
        throw new TreadleError("sandbox.failed", `control group '${folder}' could not be removed: ${code}`, {
          cause: error,
        });
      await new Promise((resolve) => setTimeout(resolve, Math.min(20, 1 + attempt)));
    }
  }
}

async function removeTree(folder: string): Promise<void> {
  const entries = await readdir(folder, { withFileTypes: true }).catch(() => []);
  for (const entry of entries) if (entry.isDirectory()) await removeTree(join(folder, entry.name));
  await removeFolder(folder);
}

/**
 * Files and folders of the kernel are read, written and removed at once: that takes microseconds, and the way through a thread ten times more.
 * Processes of another namespace, which have no number here, are listed as 0, which means the writer where it is written.
 */
export function readProcesses(folder: string): number[] {
  let text = "";
  try {
    text = readFileSync(join(folder, "cgroup.procs"), "utf8");
  } catch {
    // It is gone, with all its processes.
  }
  return text
    .split("\n")
    .map(Number)
    .filter((pid) => pid > 0);
}

/** No new processes, then SIGKILL to all, until none is left: a fork bomb cannot outrun a limit of zero. */
export async function killAll(folder: string, killFile?: string): Promise<void> {
  if (readProcesses(folder).length === 0) return; // nobody is there to start another one
  await writeFile(join(folder, "pids.max"), "0").catch(() => {});
  for (let attempt = 0; attempt < 500; attempt++) {
    const processes = readProcesses(folder);
    if (processes.length === 0) return;
    const killed =
      killFile !== undefined &&
      (await writeFile(killFile, "1").then(
        () => true,
        () => false,
      ));
    if (!killed) {
      for (const pid of processes) {
        try {
          process.kill(pid, "SIGKILL");
        } catch {
          // It ended between the reading and the signal.
        }
      }
    }
    await new Promise((resolve) => setTimeout(resolve, attempt < 5 ? 1 : 10));
  }
  throw new TreadleError("sandbox.failed", `processes of '${folder}' did not end after SIGKILL`);
}

/** Version 1: controllers are mounted apart; `base` is our own group in each. */
export class CgroupV1 implements CgroupTree {
  readonly version = 1;
  readonly roots: readonly string[];
  readonly #memory: string;
  readonly #pids: string;
  readonly #cpuset: string;

  constructor(base: { memory: string; pids: string; cpuset: string }, session: string) {
    this.#memory = join(base.memory, session);
    this.#pids = join(base.pids, session);
    this.#cpuset = join(base.cpuset, session);
    this.roots = [this.#pids, this.#cpuset, this.#memory];
  }

  async createSandbox(sandbox: string, { memoryBytes, maxProcesses }: CgroupLimits): Promise<void> {
    for (const root of this.roots) await mkdir(join(root, sandbox), { recursive: true });
    await this.#inheritCpuset(this.#cpuset);
    await this.#inheritCpuset(join(this.#cpuset, sandbox));
    await writeFile(join(this.#pids, sandbox, "pids.max"), String(maxProcesses));
    if (memoryBytes === undefined) return;
    const memory = join(this.#memory, sandbox);
    await writeFile(join(memory, "memory.limit_in_bytes"), String(memoryBytes));
    // Absent without swap accounting.
    await writeFile(join(memory, "memory.memsw.limit_in_bytes"), String(memoryBytes)).catch(() => {});
  }

  async createExec(sandbox: string, exec: string): Promise<string[]> {
    const cpuset = join(this.#cpuset, sandbox, exec);
    await Promise.all([mkdir(cpuset), mkdir(join(this.#pids, sandbox, exec))]);
    await this.#inheritCpuset(cpuset);
    return [join(this.#memory, sandbox), cpuset, join(this.#pids, sandbox, exec)].map((f) => join(f, "cgroup.procs"));
  }

  async setCores(sandbox: string, exec: string, cores: readonly number[]): Promise<void> {
    writeFileSync(join(this.#cpuset, sandbox, exec, "cpuset.cpus"), list(cores));
  }

  async processes(sandbox: string, exec: string): Promise<number[]> {
    return readProcesses(join(this.#pids, sandbox, exec));
  }

  tasksFile(sandbox: string, exec: string): string {
    return join(this.#pids, sandbox, exec, "pids.current");
  }

  async killExec(sandbox: string, exec: string): Promise<void> {
    // It joins one after the other.
    const folders = [join(this.#pids, sandbox, exec), join(this.#cpuset, sandbox, exec)];
    await Promise.all(folders.map((folder) => removeFolder(folder, () => killAll(folder))));
  }

  usedBytes(sandbox: string): number | undefined {
    return readNumber(join(this.#memory, sandbox, "memory.usage_in_bytes"));
  }

  outOfMemoryKills(sandbox: string): number {
    return counter(join(this.#memory, sandbox, "memory.oom_control"), "oom_kill");
  }

  async removeSandbox(sandbox: string): Promise<void> {
    for (const root of this.roots) await removeTree(join(root, sandbox));
  }

  async removeSession(): Promise<void> {
    for (const root of this.roots) await removeTree(root);
  }

  /** A new group of version 1 has neither memory nodes nor cores, and takes no process before it has both. */
  async #inheritCpuset(folder: string): Promise<void> {
    for (const file of ["cpuset.mems", "cpuset.cpus"])
      await writeFile(join(folder, file), (await readFile(join(dirname(folder), file), "utf8")).trim());
  }
}

/** Where the processes go that a group held which is to hand its controllers on (CG8). */
const keptFolder = "treadle-service";

/** Version 2: one tree, controllers switched on from parent to child (CG8). */
export class CgroupV2 implements CgroupTree {
  readonly version = 2;
  readonly roots: readonly string[];
  readonly #base: string;
  readonly #isOwn: boolean;
  readonly #session: string;

  /** `isOwn`: `base` is the group of this process, or above it. Others' processes are left where they are. */
  constructor(base: string, session: string, { isOwn }: { readonly isOwn: boolean }) {
    this.#base = base;
    this.#isOwn = isOwn;
    this.#session = join(base, session);
    this.roots = [this.#session];
  }

  async createSandbox(sandbox: string, { memoryBytes, maxProcesses }: CgroupLimits): Promise<void> {
    const folder = join(this.#session, sandbox);
    await mkdir(folder, { recursive: true });
    for (const parent of [this.#base, this.#session, folder]) await this.#handOn(parent);
    await writeFile(join(folder, "pids.max"), String(maxProcesses));
    if (memoryBytes === undefined) return;
    await writeFile(join(folder, "memory.max"), String(memoryBytes));
    await writeFile(join(folder, "memory.swap.max"), "0").catch(() => {});
  }

  async createExec(sandbox: string, exec: string): Promise<string[]> {
    const folder = join(this.#session, sandbox, exec);
    await mkdir(folder);
    return [join(folder, "cgroup.procs")];
  }

  async setCores(sandbox: string, exec: string, cores: readonly number[]): Promise<void> {
    writeFileSync(join(this.#session, sandbox, exec, "cpuset.cpus"), list(cores));
  }

  async processes(sandbox: string, exec: string): Promise<number[]> {
    return readProcesses(join(this.#session, sandbox, exec));
  }

  tasksFile(sandbox: string, exec: string): string {
    return join(this.#session, sandbox, exec, "pids.current");
  }

  async killExec(sandbox: string, exec: string): Promise<void> {
    const folder = join(this.#session, sandbox, exec);
    await removeFolder(folder, () => killAll(folder, join(folder, "cgroup.kill")));
  }

  usedBytes(sandbox: string): number | undefined {
    return readNumber(join(this.#session, sandbox, "memory.current"));
  }

  outOfMemoryKills(sandbox: string): number {
    return counter(join(this.#session, sandbox, "memory.events"), "oom_kill");
  }

  removeSandbox(sandbox: string): Promise<void> {
    return removeTree(join(this.#session, sandbox));
  }

  removeSession(): Promise<void> {
    return removeTree(this.#session);
  }

  async #handOn(parent: string): Promise<void> {
    const refused = (cause: unknown): TreadleError => {
      const why = (cause as Error).message;
      const which = neededControllers.join(", ");
      const said = `controllers ${which} cannot be switched on in '${parent}': ${why}; ${delegated}`;
      return new TreadleError("sandbox.unavailable", said, { cause });
    };
    for (let tries = 0; ; tries++) {
      try {
        await writeFile(join(parent, "cgroup.subtree_control"), neededControllers.map((name) => `+${name}`).join(" "));
        return;
      } catch (cause) {
        const isBusy = (cause as NodeJS.ErrnoException).code === "EBUSY";
        // Others may have started a process there since.
        if (!isBusy || !this.#isOwn || parent !== this.#base || tries === 20) throw refused(cause);
        await moveProcesses(parent, join(parent, keptFolder)).catch((error) => {
          throw refused(error);
        });
      }
    }
  }
}

async function moveProcesses(from: string, to: string): Promise<void> {
  await mkdir(to, { recursive: true });
  // One that has ended needs no move; one that cannot be moved keeps the group busy.
  for (const pid of readProcesses(from)) await writeFile(join(to, "cgroup.procs"), String(pid)).catch(() => {});
}

/** Of a file that holds one; undefined when it is gone. */
export function readNumber(file: string): number | undefined {
  try {
    return Number(readFileSync(file, "utf8"));
  } catch {
    return undefined;
  }
}

/** The controllers that a group of version 2 may hand on; undefined where there is no such group. */
export function controllersOf(group: string): string | undefined {
  try {
    return readFileSync(join(group, "cgroup.controllers"), "utf8");
  } catch {
    return undefined;
  }
}

export function counter(file: string, name: string): number {
  try {
    const line = readFileSync(file, "utf8")
      .split("\n")
      .find((l) => l.startsWith(`${name} `));
    return line === undefined ? 0 : Number(line.slice(name.length + 1));
  } catch {
    return 0;
  }
}

/** Where this machine's control groups are, from the text of /proc/self/mountinfo and /proc/self/cgroup. */
export type CgroupPlace =
  | { readonly version: 1; readonly memory: string; readonly pids: string; readonly cpuset: string }
  | { readonly version: 2; readonly base: string }
  | { readonly version: undefined; readonly reason: string };

const neededControllers = ["memory", "pids", "cpuset"] as const;
const delegated =
  "begin in a group that has them and is yours: in a systemd unit with 'Delegate=yes', or by 'systemd-run --scope --property=Delegate=yes'";

/** What a group of version 2 lacks; `controllers` is the text of its `cgroup.controllers`, undefined where it has none. */
export function groupLacks(group: string, controllers: string | undefined): string | undefined {
  if (controllers === undefined) return `'${group}' is no control group of version 2; name one below /sys/fs/cgroup`;
  const missing = neededControllers.filter((name) => !controllers.split(/\s+/).includes(name));
  if (missing.length === 0 && isReadOnly(group))
    return `control group '${group}' is read-only here; start this container with '--privileged'`;
  if (missing.length === 0) return undefined;
  return `control group '${group}' lacks ${missing.join(", ")}; ${delegated}`;
}

function isReadOnly(group: string): boolean {
  try {
    accessSync(group, constants.W_OK);
    return false;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EROFS";
  }
}

/** `controllersOf` reads `cgroup.controllers` of a group of version 2. */
export function findCgroups(
  mountInfo: string,
  ownGroups: string,
  controllersOf: (group: string) => string | undefined,
): CgroupPlace {
  const own = new Map<string, string>();
  for (const line of ownGroups.split("\n")) {
    const [, controllers, path] = /^\d+:([^:]*):(.*)$/.exec(line) ?? [];
    if (path !== undefined) for (const c of controllers === "" ? [""] : controllers!.split(",")) own.set(c, path);
  }
  const v1 = new Map<string, string>();
  let v2: string | undefined;
  for (const line of mountInfo.split("\n")) {
    const [before, after] = line.split(" - ");
    if (before === undefined || after === undefined) continue;
    const mount = before.split(" ")[4]!;
    const [type, , options] = after.split(" ");
    if (type === "cgroup2") v2 = mount;
    if (type === "cgroup")
      for (const c of neededControllers) if (options!.split(",").includes(c)) v1.set(c, below(mount, own.get(c)));
  }
  if (neededControllers.every((c) => v1.has(c)))
    return { version: 1, memory: v1.get("memory")!, pids: v1.get("pids")!, cpuset: v1.get("cpuset")! };
  if (v2 === undefined) return { version: undefined, reason: "no control groups are mounted" };
  const base = below(v2, own.get(""));
  const reason = groupLacks(base, controllersOf(base));
  return reason === undefined ? { version: 2, base } : { version: undefined, reason };
}

/**
 * A worker's own group ends with its process, and may switch no controller on: its sandboxes are beside it. So are those of
 * processes that have made room (`keptFolder`).
 */
function below(mount: string, own = "/"): string {
  const outer = own.replace(/\/treadle-worker-[^/]*$/, "").replace(new RegExp(`/${keptFolder}$`), "");
  return outer === "" || outer === "/" ? mount : join(mount, outer);
}

/** A name by which others can see whether its process still lives: ids come again, start times do not. */
export function sessionName(pid: number): string {
  return `treadle-${pid}-${startTime(pid) ?? 0}`;
}

/** In clock ticks since boot; undefined when there is no such process. */
function startTime(pid: number): string | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
    // The second field is a name in brackets that may hold anything; the start time is the 22nd.
    return stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19];
  } catch {
    return undefined;
  }
}

/** Whether the name is that of a session whose process is gone. */
export function isDeadSession(name: string): boolean {
  const [, pid, started] = /^treadle-(\d+)-(\d+)-\w+$/.exec(name) ?? [];
  return pid !== undefined && startTime(Number(pid)) !== started;
}

/** Ends and removes what sessions of dead processes left in these folders, should their reapers have died, too. */
export async function removeDeadSessions(bases: readonly string[]): Promise<void> {
  for (const base of bases) {
    for (const name of await readdir(base).catch(() => [])) {
      if (!isDeadSession(name)) continue;
      await endTree(join(base, name));
      await removeTree(join(base, name));
    }
  }
}

async function endTree(folder: string): Promise<void> {
  const entries = await readdir(folder, { withFileTypes: true }).catch(() => []);
  for (const entry of entries) if (entry.isDirectory()) await endTree(join(folder, entry.name));
  await killAll(folder);
}
