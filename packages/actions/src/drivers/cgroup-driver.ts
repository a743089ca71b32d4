/**
 * Commands in control groups and namespaces: exclusive cores, memory and process limits, no view of the host.
 *
 * Owned here: the session's control groups, one folder on disk, one reaper; a sandbox owns its holder (a bubblewrap that
 * keeps the namespaces) and its commands. A command enters the namespaces as an unprivileged user.
 *
 * CG1 a command ends with everything it started (its own control group), a sandbox with every command.
 * CG2 cores belong to a command, memory and the number of processes to a sandbox.
 * CG3 the holder is ended through its control group, never by killing the outer bubblewrap, which leaks the inside.
 * CG4 a command finds its control group joined and its namespaces entered: the kernel takes up to 20 ms to move a process
 *    into a group on an idle machine, so what enters them waits from one command to the next. It waits only while
 *    nothing runs in the sandbox, so that no command can touch what the next one becomes.
 * CG5 when this process dies of anything, the holder dies with it, and the reaper removes groups and files; should the
 *    reaper be killed as well, the next driver under the same group removes the groups, and the files are left to the system.
 * CG6 what runs inside before rights are given up is named by its place in the system. By a name alone, this process's PATH
 *    would choose, and it may have a folder that commands can write to there.
 * CG7 when memory runs out, a command goes, not what holds the sandbox; but one that takes its OOM score back can lose its own
 *    sandbox where this process may not set its holder's (CAP_SYS_RESOURCE).
 * CG8 on version 2 the kernel hands no controllers on from a group that holds processes, unless it is the root: those in this
 *    process's own group are moved to one below it, and stay there. A `cgroupParent` that holds others' processes is refused.
 * CG9 commands make no user namespace, which would give them rights to parts of the kernel that are seldom attacked: their root is
 *    not that of their mount namespace, and to such processes the kernel refuses one.
 * CG10 commands, and what holds their sandbox, run behind a filter of system calls (SC1 to SC3). It is put on in the sandbox's
 *    namespaces by a program of the holder's root, which has this system's folders whatever the root of commands is.
 * CG11 with a limit on its files, /work is a file system of that size, mounted where the sandbox alone sees it. It is in a file
 *    without a name, so that nothing of it is left when the sandbox ends, whoever dies first.
 * CG12 a file system in a file does not know when the disk is full, and loses what it was given. So some room stays free: where
 *    it goes, the sandbox that wrote most is lost, with that cause, and no other is opened.
 * CG13 a sandbox that ends does not wait until what it wrote last has reached a file that nobody reads any more.
 */
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { existsSync, readFileSync } from "node:fs";
import { chmod, chown, mkdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Writable } from "node:stream";
import { TreadleError } from "@treadle/contracts";
import { Reaper } from "@treadle/transport";
import type { EgressProxy } from "../network/egress-proxy.ts";
import { ArchiveSnapshot } from "./archive-snapshot.ts";
import {
  type CgroupPlace,
  type CgroupTree,
  CgroupV1,
  CgroupV2,
  controllersOf,
  findCgroups,
  groupLacks,
  removeDeadSessions,
  sessionName,
} from "./cgroup.ts";
import { raisesOomScore, runCommand, signalProcess, spawnCommand } from "./command.ts";
import { DiskGuard, lacksRoom, reserveOf, roomIn } from "./disk-guard.ts";
import { deviceOf, diskImagesLack, forgetDiskImage, makeDiskImage, withDiskImage } from "./disk-image.ts";
import { quoted, type RunProgram } from "./held-shell.ts";
import { OpenSandbox } from "./open-sandbox.ts";
import { readyHolder } from "./ready-holder.ts";
import {
  baseEnvironment,
  type ExecRequest,
  type ExecResult,
  refuseContainer,
  refuseDisk,
  type Sandbox,
  type SandboxDriver,
  type SandboxOptions,
  type Snapshot,
} from "./sandbox.ts";
import { readThrough, writeThrough } from "./sandbox-files.ts";
import { mountsOf } from "./sandbox-mounts.ts";
import { openProxy, proxyEnvironment } from "./sandbox-proxy.ts";
import { Supervisor } from "./supervisor.ts";
import { behindFilter, type SystemCallFilter, systemCallFilter } from "./system-call-filter.ts";
import { beginning, type Ran, toldOutput, WaitingCommand } from "./waiting-command.ts";

export type CgroupDriverOptions = {
  /** a folder that becomes the root of every sandbox, read-only; the host's system folders when absent */
  readonly rootFolder?: string | undefined;
  /** folders of this machine that sandboxes see, read-only, by where they see them: `{ "/testbed": "/srv/suite" }` */
  readonly folders?: Readonly<Record<string, string>> | undefined;
  /** version 2: the group to work under; default: this process's own (CG8) */
  readonly cgroupParent?: string | undefined;
  /** of the 65,536 from here each sandbox has one, so that none is anybody else's; default: by the number of this process */
  readonly firstUserId?: number | undefined;
};

const numUserIds = 65_536;
/** So that drivers of different processes do not meet. */
const firstUserIdOf = (pid: number): number => 1_000_000_000 + (pid % 8192) * numUserIds;
const defaultMaxProcesses = 256;
/** bubblewrap, its inner init, and what it holds; a supervisor, and what waits for its command */
const ownProcesses = 5;

/** What this machine lacks for the driver; undefined when it lacks nothing. */
export function cgroupDriverLacks(options: CgroupDriverOptions = {}): string | undefined {
  if (process.platform !== "linux") return `control groups exist on Linux only, this is '${process.platform}'`;
  if (process.getuid?.() !== 0) return "it needs to run as root, to make control groups and namespaces";
  for (const program of ["bwrap", "nsenter"]) {
    try {
      execFileSync(program, ["--version"], { stdio: "ignore" });
    } catch {
      return `'${program}' is not installed; install the package ${program === "bwrap" ? "bubblewrap" : "util-linux"}`;
    }
  }
  for (const [program, ofPackage] of Object.entries(systemPrograms)) {
    if (ofSystem(program) === undefined)
      return `'${program}' is not in '${baseEnvironment.PATH}'; install the package ${ofPackage}`;
  }
  if (systemCallFilter(process.arch) === undefined)
    return `it has no list of system calls for the architecture '${process.arch}'; use x64 or arm64`;
  if (!existsSync("/proc/sys/kernel/seccomp"))
    return "this kernel has no filters of system calls; use Linux 4.14 or newer, with CONFIG_SECCOMP_FILTER";
  for (const [seen, folder] of Object.entries(options.folders ?? {}))
    if (!existsSync(folder))
      return `folder '${folder}', which is to be '${seen}', is not there; make it, or leave it out`;
  const place = locate(options);
  return place.version === undefined ? place.reason : undefined;
}

/** What enters a sandbox, by package. */
const systemPrograms = { setpriv: "util-linux", env: "coreutils", perl: "perl" } as const;

/** CG6. */
function ofSystem(program: string): string | undefined {
  const paths = baseEnvironment.PATH.split(":").map((folder) => join(folder, program));
  return paths.find((path) => existsSync(path));
}

function locate({ cgroupParent }: CgroupDriverOptions): CgroupPlace {
  if (cgroupParent === undefined) return ownGroups();
  const reason = groupLacks(cgroupParent, controllersOf(cgroupParent));
  return reason === undefined ? { version: 2, base: cgroupParent } : { version: undefined, reason };
}

function ownGroups(): CgroupPlace {
  const files = ["/proc/self/mountinfo", "/proc/self/cgroup"].map((file) => readFileSync(file, "utf8"));
  return findCgroups(...(files as [string, string]), controllersOf);
}

/** CG8 */
function isOwn(base: string): boolean {
  const own = ownGroups();
  return own.version === 2 && own.base === base;
}

export class CgroupDriver implements SandboxDriver {
  readonly name = "cgroup";
  readonly isolation: string;
  readonly #diskLacks: string | undefined;
  readonly #options: CgroupDriverOptions;
  readonly #filter = systemCallFilter(process.arch)!;
  readonly #tree: CgroupTree;
  readonly #folder: string;
  readonly #reaper: Reaper;
  readonly #ready: Promise<void>;
  readonly #sandboxes = new Set<HeldSandbox>();
  readonly #firstUserId: number;
  readonly #userIds = new Set<number>();
  readonly #disks = new DiskGuard(() => roomIn(this.#folder));
  #opened = 0;

  /** Throws `sandbox.unavailable` with what is missing. */
  constructor(options: CgroupDriverOptions = {}) {
    const lacks = cgroupDriverLacks(options);
    if (lacks !== undefined)
      throw new TreadleError(
        "sandbox.unavailable",
        `the cgroup driver cannot be used: ${lacks}; or use the driver 'process', which isolates nothing`,
      );
    const place = locate(options);
    if (place.version === undefined) throw new TreadleError("sandbox.unavailable", place.reason);
    this.#diskLacks = diskImagesLack();
    this.#options = options;
    this.#firstUserId = options.firstUserId ?? firstUserIdOf(process.pid);
    const session = `${sessionName(process.pid)}-${randomUUID().slice(0, 8)}`;
    this.#tree =
      place.version === 1
        ? new CgroupV1(place, session)
        : new CgroupV2(place.base, session, { isOwn: isOwn(place.base) });
    this.isolation = `control groups (version ${place.version}) and namespaces for files, processes, network and ipc, as a user of its own without capabilities, behind a filter of system calls${this.#diskLacks === undefined ? "" : `; working folders have no limit: ${this.#diskLacks}`}`;
    const bases = place.version === 1 ? [place.pids, place.cpuset, place.memory] : [place.base];
    this.#folder = join(tmpdir(), session);
    this.#reaper = new Reaper(this.#tree.roots, [this.#folder]);
    this.#ready = removeDeadSessions(bases).then(async () => {
      await mkdir(this.#folder, { recursive: true });
    });
  }

  async open(options: SandboxOptions = {}, signal?: AbortSignal): Promise<Sandbox> {
    refuseContainer(this.name, options, ["workingFolder"]);
    refuseDisk(this, options);
    await this.#ready;
    if (options.diskBytes !== undefined) await this.#refuseFullDisk();
    const userId = this.#userId();
    const folder = join(this.#folder, randomUUID().slice(0, 12));
    const own = { ...this.#options, userId, filter: this.#filter, disks: this.#disks };
    const sandbox = new HeldSandbox(this.#tree, folder, own, options, () => {
      this.#sandboxes.delete(sandbox);
      this.#userIds.delete(userId);
    });
    this.#sandboxes.add(sandbox);
    try {
      await sandbox.start();
      await ArchiveSnapshot.ofOwn(options.from)?.unpackInto(sandbox, keptFolders, signal);
    } catch (error) {
      await sandbox.close().catch(() => {}); // what came first is told
      throw error;
    }
    return sandbox;
  }

  diskLacks(): string | undefined {
    return this.#diskLacks;
  }

  /** CG12 */
  async #refuseFullDisk(): Promise<void> {
    const room = await roomIn(this.#folder);
    if (lacksRoom(room))
      throw new TreadleError(
        "sandbox.failed",
        `a sandbox needs room on the disk of '${this.#folder}': '${room.freeBytes}' bytes are free, and ${reserveOf(room)} stay so; make room there, or set TMPDIR to a folder on another disk`,
      );
  }

  /** One that no open sandbox has. */
  #userId(): number {
    for (let tries = 0; tries < numUserIds; tries++) {
      const userId = this.#firstUserId + (this.#opened++ % numUserIds);
      if (this.#userIds.has(userId)) continue;
      this.#userIds.add(userId);
      return userId;
    }
    throw new TreadleError(
      "sandbox.failed",
      `${numUserIds} sandboxes are open, each with a user of its own; close some`,
    );
  }

  async close(): Promise<void> {
    await this.#ready;
    await Promise.all([...this.#sandboxes].map((s) => s.close()));
    await this.#tree.removeSession();
    await rm(this.#folder, { recursive: true, force: true });
    await this.#reaper.close();
  }
}

const holdingExec = "hold";
/** The root of commands, in the namespaces that they enter (CG9). */
const inner = "/sandbox";
/** that a snapshot is of; what is in /dev/shm belongs to processes */
const keptFolders = ["/work", "/tmp"];

/** What has joined the groups of a command and entered its sandbox, and waits to be told what to become. */
type Entered = { readonly exec: string; readonly running: ReturnType<typeof spawnCommand> };

/** Reads its own text by its length, not byte by byte, and leaves the rest of its input to the command. */
const becomeWhatIsTold = `read -r bytes && text=$(head -c "$bytes") && echo ${beginning} && eval "$text"`;

type HeldSandboxOptions = CgroupDriverOptions & {
  readonly userId: number;
  readonly filter: SystemCallFilter;
  readonly disks: DiskGuard;
};

class HeldSandbox extends OpenSandbox {
  readonly id: string;
  readonly stateFolder = "/tmp/.treadle";
  readonly #tree: CgroupTree;
  readonly #folder: string;
  readonly #driver: HeldSandboxOptions;
  readonly #options: SandboxOptions;
  #holder: ChildProcess | undefined;
  #insidePid = 0;
  #execs = 0;
  #proxy: EgressProxy | undefined;
  #forgetFiles = async (): Promise<void> => {};
  #overWith: string | undefined;
  readonly #supervisors = new Set<Supervisor>();
  readonly #waiting = new WaitingCommand<Entered>({
    enter: () => this.#enter(),
    isAlive: ({ running: { child } }) => child.exitCode === null && child.signalCode === null,
    end: ({ exec }) => this.#tree.killExec(this.id, exec),
    mayWait: () => !this.isClosed && this.loss === undefined && !this.holdsShells,
  });

  constructor(
    tree: CgroupTree,
    folder: string,
    driver: HeldSandboxOptions,
    options: SandboxOptions,
    forget: () => void,
  ) {
    super(forget);
    this.id = folder.slice(folder.lastIndexOf("/") + 1);
    this.#tree = tree;
    this.#folder = folder;
    this.#driver = driver;
    this.#options = options;
  }

  async start(): Promise<void> {
    const { memoryBytes, maxProcesses = defaultMaxProcesses, network, diskBytes } = this.#options;
    const { userId, filter } = this.#driver;
    await mkdir(join(this.#folder, "work"), { recursive: true });
    const image = diskBytes === undefined ? undefined : makeDiskImage(this.#image, diskBytes, userId);
    image?.catch(() => {}); // it is awaited below
    await chown(join(this.#folder, "work"), userId, userId);
    const passwd = `root:x:0:0::/:/bin/sh\nsandbox:x:${userId}:${userId}::/tmp:/bin/sh\n`;
    await writeFile(join(this.#folder, "passwd"), passwd);
    await writeFile(join(this.#folder, "group"), `root:x:0:\nsandbox:x:${userId}:\n`);
    // The umask of this process may close them to those inside, and the first of those has no right to pass that over.
    await chmod(join(this.#folder, "work"), 0o755);
    for (const file of ["passwd", "group"]) await chmod(join(this.#folder, file), 0o644);
    await this.#tree.createSandbox(this.id, { memoryBytes, maxProcesses: maxProcesses + ownProcesses });
    const joining = await this.#tree.createExec(this.id, holdingExec);
    await image;
    const holder = spawn(
      "/bin/sh",
      joinThen(
        joining,
        this.#onOwnDisk([
          "bwrap",
          ...[
            "--unshare-pid",
            "--unshare-ipc",
            "--unshare-uts",
            "--unshare-cgroup-try",
            ...(network === "host" ? [] : ["--unshare-net"]),
          ],
          ...["--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL", "--hostname", "sandbox"],
          ...mountsOf(inner, { ...this.#driver, memoryBytes, own: this.#folder, sharesNetwork: network === "host" }),
          ...["--info-fd", "3", "--seccomp", "4", "--", "/bin/sh", "-c", "echo ready; exec sleep infinity"],
        ]),
      ),
      {
        stdio: ["ignore", "pipe", "pipe", "pipe", "pipe"],
        env: { PATH: process.env.PATH ?? baseEnvironment.PATH },
        detached: true,
      },
    );
    this.#holder = holder;
    const filterInput = holder.stdio[4] as Writable;
    filterInput.on("error", () => {}); // one that did not start says why
    filterInput.end(filter.program);
    this.#insidePid = await readyHolder(holder);
    holder.unref();
    if (diskBytes !== undefined) await this.#guardDisk();
    if (network !== undefined && network !== "host") this.#proxy = await openProxy(this.#insidePid, network);
    if (this.isClosed) await this.#proxy?.close();
    if (this.#options.container?.workingFolder !== undefined) await this.#proveWorkingFolder();
    // A command may take its score back, but then goes before these all the same, where this process has the right to say so.
    for (const pid of await this.#tree.processes(this.id, holdingExec))
      await writeFile(`/proc/${pid}/oom_score_adj`, "-1000").catch(() => {});
  }

  get #image(): string {
    return join(this.#folder, "work.ext4");
  }

  /** CG11 */
  #onOwnDisk(command: readonly string[]): readonly string[] {
    if (this.#options.diskBytes === undefined) return command;
    return withDiskImage(this.#image, join(this.#folder, "work"), command);
  }

  /** CG12, CG13 */
  async #guardDisk(): Promise<void> {
    const work = `/proc/${this.#insidePid}/root${inner}/work`;
    const device = await deviceOf(work);
    const unguard = this.#driver.disks.guard({
      writtenBytes: async () => {
        const { freeBytes, totalBytes } = await roomIn(work);
        return totalBytes - freeBytes;
      },
      end: async (why) => {
        this.#overWith ??= why;
        await this.#tree.killExec(this.id, holdingExec);
      },
    });
    this.#forgetFiles = async () => {
      unguard();
      // While its holder lives, nobody else has these numbers; and what has died may have told others what it read.
      if (this.lossOf() === undefined) await forgetDiskImage(work, device);
    };
    if (this.isClosed) unguard();
  }

  get #beginning(): string {
    return raisesOomScore(this.#options.memoryBytes);
  }

  get #environment(): Readonly<Record<string, string>> {
    return { ...baseEnvironment, ...(this.#proxy && proxyEnvironment) };
  }

  get #workingFolder(): string {
    return this.#options.container?.workingFolder ?? "/work";
  }

  /** So that one that is not there is told before anything is run. */
  async #proveWorkingFolder(): Promise<void> {
    const { exitCode, stderr } = await this.run({ command: ["true"] });
    if (exitCode === 0) return;
    throw new TreadleError(
      "sandbox.unavailable",
      `working folder '${this.#workingFolder}' cannot be used: ${stderr.toString().trim()}; name one that is in cgroup.rootFolder or cgroup.folders, or leave it out`,
    );
  }

  protected override lossOf(): string | undefined {
    if (this.#overWith !== undefined) return this.#overWith;
    const holder = this.#holder;
    if (holder !== undefined && holder.exitCode === null && holder.signalCode === null) return undefined;
    const { memoryBytes } = this.#options;
    if (memoryBytes !== undefined && this.#tree.outOfMemoryKills(this.id) > 0)
      return `it ran out of memory: its processes and its files in /tmp and /dev/shm may have ${memoryBytes} bytes`;
    return `what held it ended with ${holder?.signalCode ?? holder?.exitCode ?? "nothing"}`;
  }

  override usedBytes(): number | undefined {
    return this.#tree.usedBytes(this.id);
  }

  /** A supervisor outside of the namespaces starts its actions; one that was lost is replaced by the next action. */
  protected override startShell(): { readonly run: RunProgram; readonly end: () => Promise<void> } {
    let supervisor: Supervisor | undefined;
    let exec = "";
    const run: RunProgram = async (program, request) => {
      await this.#endWaitingShells(supervisor);
      if (supervisor === undefined || supervisor.hasEnded) {
        await supervisor?.kill();
        await this.#waiting.drop();
        exec = `shell-${this.#execs++}`;
        supervisor = await this.#supervisor(exec);
        this.#supervisors.add(supervisor);
      }
      if (request.cores !== undefined) await this.#tree.setCores(this.id, exec, request.cores);
      const memoryKills = this.#tree.outOfMemoryKills(this.id);
      const ranOutOfMemory = (): boolean => this.#tree.outOfMemoryKills(this.id) > memoryKills;
      return runCommand({ ...supervisor.host(program), ranOutOfMemory }, request);
    };
    return { run, end: async () => supervisor?.kill() };
  }

  /** HS6: a shell that waits for its next action is there to be traced, as what waits for a command is (CG4). */
  async #endWaitingShells(but?: Supervisor): Promise<void> {
    const others = [...this.#supervisors].filter((one) => one !== but);
    for (const one of others) this.#supervisors.delete(one);
    await Promise.all(others.map((one) => one.kill()));
  }

  async #supervisor(exec: string): Promise<Supervisor> {
    const files = await this.#tree.createExec(this.id, exec);
    return new Supervisor({
      joining: (command) => joinThen(files, command),
      beginning: this.#beginning,
      entering: this.#entering(["/bin/sh"]),
      path: process.env.PATH ?? baseEnvironment.PATH,
      pipe: join(this.#folder, exec),
      group: {
        tasksFile: this.#tree.tasksFile(this.id, exec),
        kill: () => this.#tree.killExec(this.id, exec),
      },
    });
  }

  protected override copy(options: { readonly maxBytes: number; readonly signal: AbortSignal }): Promise<Snapshot> {
    const runs = { exec: (request: ExecRequest) => this.run(request) };
    return ArchiveSnapshot.of(runs, keptFolders, `${this.#folder}.snapshot-${randomUUID()}`, options);
  }

  protected override async run(request: ExecRequest): Promise<ExecResult> {
    const environment = { ...this.#environment, ...request.environment };
    const text = becoming(environment, request.command);
    await this.#endWaitingShells();
    return this.#waiting.use((entered) => this.#runIn(entered, text, request));
  }

  async #runIn({ exec, running }: Entered, text: string, request: ExecRequest): Promise<Ran> {
    let ended: Promise<void> | undefined;
    const kill = (): Promise<void> => {
      ended ??= this.#tree.killExec(this.id, exec);
      return ended;
    };
    try {
      if (request.cores !== undefined) await this.#tree.setCores(this.id, exec, request.cores);
      const memoryKills = this.#tree.outOfMemoryKills(this.id);
      const told = { ...running, ...toldOutput(running.stdout) };
      const result = await runCommand(
        {
          start: () => {
            running.stdin.write(text);
            return told;
          },
          signal: (name) => {
            void this.#tree.processes(this.id, exec).then((pids) => {
              // nsenter waits for the command and passes its end on: it must outlive it.
              for (const pid of pids) if (pid !== running.child.pid) signalProcess(pid, name);
            });
          },
          kill,
          ranOutOfMemory: () => this.#tree.outOfMemoryKills(this.id) > memoryKills,
        },
        request,
      );
      return { result, hasBegun: await told.begins };
    } finally {
      await kill();
    }
  }

  async #enter(): Promise<Entered> {
    const exec = `exec-${this.#execs++}`;
    const files = await this.#tree.createExec(this.id, exec);
    const args = joinThen(files, this.#entering(["/bin/sh", "-c", `${this.#beginning}; ${becomeWhatIsTold}`]));
    const path = { PATH: process.env.PATH ?? baseEnvironment.PATH };
    const running = spawnCommand({ program: "/bin/sh", args, environment: path });
    // Whoever takes it asks whether it lives.
    running.exited.catch(() => {});
    return { exec, running };
  }

  /** What enters the namespaces, gives up its rights and its session, and becomes the command. */
  #entering(command: readonly string[]): string[] {
    const { userId, filter } = this.#driver;
    const user = String(userId);
    const namespaces = ["--mount", "--pid", "--ipc", "--uts", "--net", `--root=/proc/${this.#insidePid}/root`];
    const rights = ["--reuid", user, "--regid", user, "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"];
    const variables = Object.entries(this.#environment).map(([name, value]) => `${name}=${value}`);
    const [setpriv, env, perl] = ["setpriv", "env", "perl"].map(ofSystem) as [string, string, string];
    const becoming = [setpriv, ...rights, "--no-new-privs", "--", env, "-i", "-C", this.#workingFolder];
    return [
      ...["nsenter", "--target", String(this.#insidePid), ...namespaces, "--"],
      ...behindFilter(filter, { perl, root: inner, command: [...becoming, ...variables, ...command] }),
    ];
  }

  writeFile(path: string, data: string | Uint8Array): Promise<void> {
    return writeThrough(this, path, data);
  }

  readFile(path: string, maxBytes?: number): Promise<Buffer> {
    return readThrough(this, path, maxBytes);
  }

  protected override async remove(): Promise<void> {
    await this.#waiting.drop();
    await this.#forgetFiles();
    await this.#tree.killExec(this.id, holdingExec).catch(() => {});
    try {
      await this.#tree.removeSandbox(this.id);
      await rm(this.#folder, { recursive: true, force: true });
    } finally {
      await this.#proxy?.close();
    }
  }
}

/** Arguments of a shell that enters the control groups and then becomes the program: nothing of it runs outside. */
function joinThen(files: readonly string[], command: readonly string[]): string[] {
  const script =
    'umask 022; n=$1; shift; while [ "$n" -gt 0 ]; do echo $$ > "$1" || exit 125; shift; n=$((n-1)); done; exec "$@"';
  return ["-c", script, "join", String(files.length), ...files, ...command];
}

/** What to tell a shell that waits by `becomeWhatIsTold`. */
function becoming(environment: Readonly<Record<string, string>>, command: readonly string[]): string {
  const variables = Object.entries(environment).map(([name, value]) => `${name}=${value}`);
  const words = ["env", "-i", ...variables, ...command];
  const text = `exec ${words.map(quoted).join(" ")}`;
  return `${Buffer.byteLength(text)}\n${text}`;
}
