/**
 * Commands in containers of a Docker Engine (ARL-Tangram §5.1: `update` for the cores, `exec` for the command).
 *
 * Owned here: the session's containers, one connection to each that keeps it alive, one stream of the engine's events.
 *
 * DK1 a command ends with everything it started, a sandbox with every command. Where the engine is on this machine and we
 *    are root, a command has a list of its processes in the kernel; elsewhere its descendants are found in the container,
 *    and those that left their parents end when nothing else runs there (DK8). A container in which that fails is removed.
 * DK2 cores belong to the container: commands that run in it at once share theirs. On the fast path they are written to its
 *    control group, and the engine's record follows (`ContainerCores`).
 * DK3 when this process dies of anything, its connection to a container ends, on which the container's first process
 *    ends, and with it the container; what was made but never started, or is paused (DK8), is removed by the next driver, by its
 *    label, and so are the images of snapshots.
 * DK4 when memory runs out, a command goes, not what holds the container, with the exception of CG7.
 * DK5 an exec takes the engine tens of milliseconds, so one waits from each command to the next, as in CG4: where commands have
 *    lists of their processes, for only there is it known that nothing of the last one lives.
 * DK6 no file grows beyond the limit on a container's files; one whose files together are beyond it ends, with its cause, when
 *    that is seen. Those that came with a snapshot count, as long as it has the same, changed, or removed: its image keeps them.
 * DK7 where the runtime keeps processes from the kernel (gVisor), they are found in the container, as elsewhere, while cores and
 *    used memory are still those of its control group. When its memory runs out, the runtime goes, and with it the sandbox:
 *    that is its loss, and no command's outcome.
 * DK8 when no command runs, nothing of any lives, and nothing starts before that is known: by the kernel's list of what is in no
 *    command's, or by what the engine sees in the paused container. Nothing that was said inside is taken for it, but
 *    under gVisor, where root counts inside (DK7).
 */
import { randomUUID } from "node:crypto";
import { writeFile } from "node:fs/promises";
import { hostname } from "node:os";
import type { Duplex } from "node:stream";
import { setTimeout as delay } from "node:timers/promises";
import { TreadleError } from "@treadle/contracts";
import type Docker from "dockerode";
import type { z } from "zod";
import { endInTurn } from "../end-in-turn.ts";
import type { EgressProxy } from "../network/egress-proxy.ts";
import { isDeadSession, sessionName } from "./cgroup.ts";
import { type RunningCommand, raisesOomScore, runCommand, signalProcess } from "./command.ts";
import { becomeWhatIsTold, type Entered, hostPid, told } from "./container-command.ts";
import { ContainerCores } from "./container-cores.ts";
import { ContainerDisks, foldersOf } from "./container-disks.ts";
import { ContainerGroup, isAlive } from "./container-group.ts";
import { ContainerProcesses, startTimeoutMs } from "./container-processes.ts";
import { DockerEngine } from "./docker-engine.ts";
import { allowedImage, environmentOf } from "./docker-images.ts";
import { DockerOptions } from "./docker-options.ts";
import {
  coresRemedy,
  EngineInfo,
  gvisorTasks,
  isGvisor,
  keptArchive,
  keptMark,
  runs,
  runtimeLacks,
} from "./docker-runtime.ts";
import { firstLine } from "./first-line.ts";
import type { RunProgram } from "./held-shell.ts";
import { ImageSnapshot } from "./image-snapshot.ts";
import { OpenSandbox } from "./open-sandbox.ts";
import {
  baseEnvironment,
  type CommandSignal,
  type ExecRequest,
  type ExecResult,
  type Sandbox,
  type SandboxDriver,
  type SandboxOptions,
} from "./sandbox.ts";
import { readThrough, writeThrough } from "./sandbox-files.ts";
import { openProxy, proxyEnvironment } from "./sandbox-proxy.ts";
import { securityOptionsOf } from "./system-call-profile.ts";
import { type Ran, toldOutput, WaitingCommand } from "./waiting-command.ts";

const defaultMaxProcesses = 256;
const itsEnd = "its container has ended";
const watchMs = 25;
/** of the container itself: its first process, what keeps it, one that ends others, and one that waits */
const ownProcesses = 5;

/** Ends when its input does (DK3), and meanwhile takes in what has lost its parents. */
const holderScript =
  'mkdir -p /work /tmp && chmod 1777 /work /tmp && exec 3<&0 && { cat <&3 >/dev/null & } && echo "ready $!" && wait "$!"';

export class DockerDriver implements SandboxDriver {
  readonly name = "docker";
  readonly isolation: string;
  readonly #options: z.infer<typeof DockerOptions>;
  readonly #engine: DockerEngine;
  readonly #session = `${sessionName(process.pid)}-${randomUUID().slice(0, 8)}`;
  readonly #ready: Promise<Host>;
  readonly #disks: ContainerDisks;
  readonly #sandboxes = new Set<ContainerSandbox>();
  readonly #snapshots = new Set<ImageSnapshot>();

  /** Whether the engine can be used is told by `dockerDriverLacks`; here the first sandbox fails. */
  constructor(options: DockerOptions, { diskLookMs }: { readonly diskLookMs?: number } = {}) {
    this.#options = DockerOptions.parse(options);
    const { image, socket, userId, runtime } = this.#options;
    this.isolation = `Docker containers of '${image}', as user ${userId} without capabilities${runtime === undefined ? "" : `, by runtime '${runtime}'`}`;
    this.#engine = new DockerEngine(this.#session, socket);
    this.#disks = new ContainerDisks(this.#engine, this.#session, diskLookMs);
    this.#ready = this.#prepare();
    this.#ready.catch(() => {});
  }

  async open(options: SandboxOptions = {}, signal: AbortSignal = new AbortController().signal): Promise<Sandbox> {
    const host = await this.#ready;
    const labels = { "treadle.session": this.#session, "treadle.host": hostname() };
    const sandbox = new ContainerSandbox(this.#engine, this.#options, options, host, {
      disks: this.#disks,
      forget: () => this.#sandboxes.delete(sandbox),
      keep: (snapshot) => this.#snapshots.add(snapshot),
    });
    this.#sandboxes.add(sandbox);
    try {
      await sandbox.start(labels, signal);
    } catch (error) {
      await sandbox.close().catch(() => {}); // what came first is told
      throw error;
    }
    return sandbox;
  }

  diskLacks(): undefined {
    return undefined;
  }

  async close(): Promise<void> {
    await this.#ready.catch(() => {});
    await endInTurn(
      () => [...this.#sandboxes].map((sandbox) => sandbox.close()),
      () => [...this.#snapshots].map((snapshot) => snapshot.drop()),
    ).finally(() => this.#engine.close());
  }

  async #prepare(): Promise<Host> {
    const engine = this.#engine;
    const { docker } = engine;
    const info = EngineInfo.parse(await engine.call("info", docker.info()));
    const lacks = runtimeLacks(info, this.#options.runtime);
    if (lacks !== undefined) throw new TreadleError("sandbox.unavailable", lacks);
    await engine.listen();
    const filters = { label: [`treadle.host=${hostname()}`] };
    for (const { Id, Labels } of await engine.call("list", docker.listContainers({ all: true, filters })))
      if (isDeadSession(Labels["treadle.session"] ?? "")) await engine.removeContainer(Id);
    for (const { Id, RepoTags, Labels } of await engine.call("images", docker.listImages({ filters })))
      if (isDeadSession(Labels?.["treadle.session"] ?? ""))
        for (const name of namesOf(RepoTags, Id)) await engine.removeImage(name);
    const [own, securityOptions] = [isGvisor(info, this.#options.runtime), securityOptionsOf(info, this.#options)];
    return { cores: info.NCPU, isGvisor: own, securityOptions };
  }
}

/** The engine tells of none by a name that is none. */
function namesOf(tags: readonly string[] | null | undefined, id: string): readonly string[] {
  const names = (tags ?? []).filter((name) => !name.startsWith("<none>"));
  return names.length > 0 ? names : [id];
}

type Host = { readonly cores: number; readonly isGvisor: boolean; readonly securityOptions: readonly string[] };

const longestFile = (bytes: number) => ({ Name: "fsize", Soft: bytes, Hard: bytes });

type ContainerOwner = {
  readonly disks: ContainerDisks;
  readonly forget: () => void;
  readonly keep: (snapshot: ImageSnapshot) => void;
};

class ContainerSandbox extends OpenSandbox {
  readonly stateFolder = "/tmp/.treadle";
  readonly #engine: DockerEngine;
  readonly #driver: z.infer<typeof DockerOptions>;
  readonly #options: SandboxOptions;
  readonly #allCores: readonly number[];
  readonly #isGvisor: boolean;
  readonly #securityOptions: readonly string[];
  readonly #mark = keptMark(randomUUID());
  readonly #keep: (snapshot: ImageSnapshot) => void;
  readonly #disks: ContainerDisks;
  #unwatch = (): void => {};
  #container: Docker.Container | undefined;
  #keeping: Duplex | undefined;
  /** for its cores and its memory */
  #control: ContainerGroup | undefined;
  /** the same where it lists processes, too (DK7) */
  #group: ContainerGroup | undefined;
  /** on this machine, of the container itself, where it lists them */
  #kept: readonly number[] = [];
  /** of commands, where it does not */
  #processes: ContainerProcesses | undefined;
  #proxy: EgressProxy | undefined;
  #cores!: ContainerCores;
  #imageEnvironment: Readonly<Record<string, string>> = {};
  #death: string | undefined;
  #tellDeath: () => void = () => {};
  readonly #dies = new Promise<number>((resolve) => {
    this.#tellDeath = () => resolve(128 + 9);
  });
  #execs = 0;
  readonly #waiting = new WaitingCommand<Entered>({
    enter: () => this.#enter(),
    isAlive: ({ hasEnded }) => !hasEnded,
    end: (entered) => this.#kill(entered),
    mayWait: () => this.#group !== undefined && !this.isClosed && this.loss === undefined,
    clear: () => this.#clear(),
  });

  constructor(
    engine: DockerEngine,
    driver: z.infer<typeof DockerOptions>,
    options: SandboxOptions,
    { cores, isGvisor, securityOptions }: Host,
    { forget, keep, disks }: ContainerOwner,
  ) {
    super(forget);
    this.#keep = keep;
    this.#disks = disks;
    this.#engine = engine;
    this.#driver = driver;
    this.#options = options;
    this.#isGvisor = isGvisor;
    this.#securityOptions = securityOptions;
    this.#allCores = Array.from({ length: cores }, (_, core) => core);
  }

  get id(): string {
    return this.#container?.id ?? "";
  }

  /**
   * `signal` ends the wait for a pull at once (the engine may go on with it), and all else after the call of the engine that is
   * under way.
   */
  async start(labels: Record<string, string>, signal: AbortSignal): Promise<void> {
    const { memoryBytes, maxProcesses = defaultMaxProcesses, network, diskBytes } = this.#options;
    const engine = this.#engine;
    const from = ImageSnapshot.ofOwn(this.#options.from);
    if (from !== undefined && from.bytes > (diskBytes ?? Number.POSITIVE_INFINITY))
      throw new TreadleError(
        "sandbox.failed",
        `a snapshot of '${from.bytes}' bytes does not fit in the '${diskBytes}' of what begins from it; give it more disk_bytes, or snapshot less`,
      );
    const image = from?.image ?? (await allowedImage(engine, this.#driver, this.#options.container?.image, signal));
    signal.throwIfAborted();
    this.#imageEnvironment = await environmentOf(engine, image);
    signal.throwIfAborted();
    const script = this.#isGvisor ? `mkdir -p ${this.#mark} && ${holderScript}` : holderScript;
    const container = await engine.call(
      "create",
      engine.docker.createContainer({
        Image: image,
        Labels: labels,
        Entrypoint: ["/bin/sh", "-c", script],
        Cmd: [],
        User: "0:0",
        WorkingDir: "/work",
        AttachStdin: true,
        AttachStdout: true,
        OpenStdin: true,
        StdinOnce: true,
        Healthcheck: { Test: ["NONE"] },
        HostConfig: {
          AutoRemove: true,
          Init: false,
          NetworkMode: network === "host" ? "bridge" : "none",
          ...(memoryBytes === undefined ? {} : { Memory: memoryBytes, MemorySwap: memoryBytes }),
          ...(this.#driver.runtime === undefined ? {} : { Runtime: this.#driver.runtime }),
          PidsLimit: this.#isGvisor ? gvisorTasks(maxProcesses + ownProcesses) : maxProcesses + ownProcesses,
          ...(diskBytes === undefined ? {} : { Ulimits: [longestFile(Math.floor(diskBytes))] }),
          CapDrop: ["ALL"],
          SecurityOpt: [...this.#securityOptions],
          LogConfig: { Type: "none", Config: {} },
        },
      }),
    );
    this.#container = container;
    if (this.#isGvisor) await engine.call("put", container.putArchive(keptArchive(), { path: "/" }));
    signal.throwIfAborted();
    const attached = { stream: true, stdin: true, stdout: true, stderr: true, hijack: true };
    const keeping = (await engine.call("attach", container.attach(attached))) as Duplex;
    this.#keeping = keeping;
    const { stdout } = engine.streamsOf(keeping);
    keeping.once("close", () => {
      this.#death ??= itsEnd;
      this.#tellDeath();
    });
    await engine.call("start", container.start());
    const first = await firstLine(stdout, startTimeoutMs);
    const keeper = Number(/^ready (\d+)$/.exec(first)?.[1]);
    if (Number.isNaN(keeper))
      throw new TreadleError("sandbox.failed", `a container of '${image}' did not start: ${first}`);
    stdout.resume();
    (keeping as { unref?: () => void }).unref?.();
    const described = await engine.call("inspect", container.inspect());
    const { State } = described;
    await this.#limitDisk(described, from?.bytes ?? 0);
    if (this.#driver.fastPath) {
      this.#control = ContainerGroup.of(State.Pid, container.id);
      if (runs(State.Pid, script)) this.#group = this.#control;
      // A command may take its score back, but then goes before these all the same, where this process has the right to say so.
      this.#kept = this.#group?.ownProcesses() ?? [];
      for (const pid of this.#kept) await writeFile(`/proc/${pid}/oom_score_adj`, "-1000").catch(() => {});
    }
    if (this.#group === undefined) {
      const isGvisor = this.#isGvisor;
      this.#processes = new ContainerProcesses({ engine, container, user: this.#user, isGvisor, keeper });
      await this.#processes.begin();
    }
    if (network !== undefined && network !== "host") {
      if (this.#group === undefined)
        throw new TreadleError(
          "sandbox.unavailable",
          "network: a proxy needs root, the engine on this machine, docker.fastPath, and no gVisor; use 'host' or 'none' where one is missing",
        );
      this.#proxy = await openProxy(State.Pid, network);
      if (this.isClosed) await this.#proxy.close();
    }
    const update = async (list: string): Promise<void> => {
      await engine.call("update", container.update({ CpusetCpus: list }));
    };
    const isHidden = this.#control !== undefined && this.#group === undefined;
    if (this.#isGvisor && !isHidden)
      await update(this.#allCores.join()).catch((cause: Error) => {
        throw new TreadleError("sandbox.unavailable", coresRemedy(this.#driver.runtime, cause.message), { cause });
      });
    // gVisor refuses `update`: nobody else changes the engine's record then.
    this.#cores = new ContainerCores(this.#control, isHidden ? async () => {} : update);
    signal.throwIfAborted();
    if (this.#options.container?.user !== undefined) await this.#proveUser(image);
    signal.throwIfAborted();
    if (this.#options.container?.workingFolder !== undefined) await this.#proveFolder(image);
    signal.throwIfAborted();
  }

  /** DK6. Where its files are is known once it runs. */
  async #limitDisk(described: unknown, fromBytes: number): Promise<void> {
    const { diskBytes } = this.#options;
    if (diskBytes === undefined) return;
    const folders = await foldersOf(described);
    this.#unwatch = this.#disks.watch(this.#container!.id, {
      limitBytes: diskBytes - fromBytes,
      folders,
      exceeded: (bytes) => {
        void this.#abandon(`its files take ${fromBytes + bytes} bytes, and may take ${diskBytes}`).catch(() => {});
      },
    });
    if (this.isClosed) this.#unwatch();
  }

  /** So that one that the image lacks is told before anything is run. */
  async #proveUser(image: string): Promise<void> {
    const user = this.#user;
    await this.#prove(
      "/",
      `user '${user}' cannot be used in image '${image}'`,
      "name one of its /etc/passwd, or give a number",
    );
  }

  /** Nor one that is no folder there, or that its user may not enter. */
  async #proveFolder(image: string): Promise<void> {
    const folder = this.#workingFolder;
    const what = `working folder '${folder}' cannot be used in image '${image}' by user '${this.#user}'`;
    await this.#prove(folder, what, "name one that is there and that the user may enter, or leave it out");
  }

  async #prove(folder: string, what: string, remedy: string): Promise<void> {
    const say = (why: string): string => `${what}: ${why}; ${remedy}`;
    const proof = this.#engine.exec(this.#container!, {
      Cmd: ["/bin/sh", "-c", 'cd -- "$1"', "sh", folder],
      User: this.#user,
      WorkingDir: "/",
    });
    const { stdin, stderr, exited } = await proof.catch((cause: Error) => {
      throw new TreadleError("sandbox.unavailable", say(cause.message), { cause });
    });
    stdin.end();
    const line = firstLine(stderr, startTimeoutMs);
    if ((await exited) === 0) return;
    const why = (await line.catch(() => "")) || "a shell does not start there";
    throw new TreadleError("sandbox.unavailable", say(why));
  }

  get #user(): string {
    return this.#options.container?.user ?? `${this.#driver.userId}:${this.#driver.userId}`;
  }

  get #workingFolder(): string {
    return this.#options.container?.workingFolder ?? "/work";
  }

  writeFile(path: string, data: string | Uint8Array): Promise<void> {
    return writeThrough(this, path, data);
  }

  readFile(path: string, maxBytes?: number): Promise<Buffer> {
    return readThrough(this, path, maxBytes);
  }

  protected override async copy(options: { readonly maxBytes: number; readonly signal: AbortSignal }) {
    await this.#waiting.drop(); // the engine starts nothing in a container that it has stopped
    const [before, mark] = [ImageSnapshot.ofOwn(this.#options.from), this.#isGvisor ? this.#mark : undefined];
    const snapshot = await ImageSnapshot.of(this.#engine, this.#container!, { before, mark, ...options });
    this.#keep(snapshot);
    return snapshot;
  }

  protected override lossOf(): string | undefined {
    const hasNoCause = this.#death === itsEnd && this.#isGvisor && this.#engine.ranOutOfMemory(this.id);
    return hasNoCause ? "its memory ran out, and its runtime ended with it" : this.#death;
  }

  override usedBytes(): number | undefined {
    return this.#control?.usedBytes();
  }

  /** HS6 */
  protected override startShell(): { readonly run: RunProgram } {
    const { run } = super.startShell();
    return {
      run: async (program, request) => {
        const lacks = this.#processes?.lacks;
        if (lacks !== undefined) throw new TreadleError("sandbox.unavailable", `no shell can be held: ${lacks}`);
        return run(program, request);
      },
    };
  }

  protected override async run(request: ExecRequest): Promise<ExecResult> {
    const ofProxy = this.#proxy && proxyEnvironment;
    const variables = { ...baseEnvironment, ...this.#imageEnvironment, ...ofProxy, ...request.environment };
    const assigned = Object.entries(variables).map(([key, value]) => `${key}=${value}`);
    const text = told([...assigned, ...request.command]);
    const release = await this.#cores.hold(request.cores ?? this.#allCores);
    try {
      return await this.#waiting.use((entered) => this.#runIn(entered, text, request));
    } finally {
      release();
    }
  }

  async #runIn(command: Entered, text: string, request: ExecRequest): Promise<Ran> {
    let watch: NodeJS.Timeout | undefined;
    const memoryKills = this.#group?.outOfMemoryKills() ?? 0;
    const told = toldOutput(command.stdout);
    try {
      const running: RunningCommand = {
        ...command,
        ...told,
        exited: Promise.race([command.exited, ...(this.#isGvisor ? [this.#dies] : [])]).then((code) => ({
          code,
          signal: null,
        })),
      };
      const result = await runCommand(
        {
          start: () => {
            command.stdin.write(text);
            watch = this.#watch(command);
            return running;
          },
          signal: (name) => this.#signal(command, name).catch(() => {}),
          kill: () => this.#kill(command),
          ranOutOfMemory: () => (this.#group?.outOfMemoryKills() ?? 0) > memoryKills,
        },
        request,
      );
      await this.#refuseLost(result);
      const hasBegun = await told.begins;
      const isKilled = this.#group === undefined && result.exitCode === 128 + 9;
      if (isKilled && (await this.#ranOutOfMemory()))
        return { result: { ...result, status: "out-of-memory", exitCode: null }, hasBegun };
      return { result, hasBegun };
    } finally {
      clearInterval(watch);
      await this.#kill(command);
    }
  }

  /** DK7: the end of a command that went with its runtime is none of its own. */
  async #refuseLost({ status }: ExecResult): Promise<void> {
    if (!this.#isGvisor || status === "timeout" || status === "cancelled" || this.isClosed) return;
    if (await this.#engine.hasEnded(this.#container!)) this.#death ??= itsEnd;
    if (this.#death !== undefined) this.refuse();
  }

  /** It is told only when it is on its list (DK1). */
  async #enter(): Promise<Entered> {
    const name = `treadle-${this.#execs++}`;
    const group = this.#group;
    const begin = `${raisesOomScore(this.#options.memoryBytes)}${group === undefined ? "; echo $$ >&2" : ""}`;
    this.#processes?.enters();
    await group?.createExec(name);
    const exec = await this.#engine.exec(this.#container!, {
      Cmd: ["/bin/sh", "-c", `${begin}; ${becomeWhatIsTold}`],
      User: this.#user,
      WorkingDir: this.#workingFolder,
    });
    const entered: Entered = { ...exec, name, insidePid: undefined, pid: undefined, hasEnded: false };
    const end = (): void => {
      entered.hasEnded = true;
    };
    exec.exited.then(end, end);
    if (group === undefined) {
      const said = await firstLine(exec.stderr, startTimeoutMs);
      // Whoever runs beside it may have written there, too.
      if (!/^\d+$/.test(said)) {
        exec.stdin.end();
        throw new TreadleError("sandbox.failed", `a command did not start in '${this.id}': it said '${said}'`);
      }
      entered.insidePid = Number(said);
      this.#processes!.add(entered.insidePid);
      return entered;
    }
    try {
      entered.pid = await hostPid(this.#engine, exec.exec);
      await group.join(name, entered.pid);
    } catch (cause) {
      await group.killExec(name).catch(() => {});
      if (cause instanceof TreadleError) throw cause;
      const why = (cause as Error).message;
      throw new TreadleError("sandbox.failed", `a command was ended before it began in '${this.id}': ${why}`, {
        cause,
      });
    }
    return entered;
  }

  /** The engine waits seconds for whoever else holds the output open before it tells of an end. */
  #watch({ name, pid }: Entered): NodeJS.Timeout | undefined {
    if (pid === undefined) return undefined;
    const watch = setInterval(() => {
      if (isAlive(pid)) return;
      clearInterval(watch);
      void this.#group?.killExec(name).catch(() => {});
    }, watchMs);
    return watch;
  }

  async #signal({ name, insidePid }: Entered, signal: CommandSignal): Promise<void> {
    if (this.#group === undefined) await this.#processes!.signal(insidePid!, signal);
    else for (const pid of this.#group.processes(name)) signalProcess(pid, signal);
  }

  async #kill(entered: Entered): Promise<void> {
    const { name, insidePid } = entered;
    if (this.#group !== undefined) {
      // Its folder is gone when it was ended before, or with its container.
      await this.#group.killExec(name).catch(() => this.#abandon());
      return;
    }
    const processes = this.#processes!;
    if (insidePid === undefined || !processes.has(insidePid)) return;
    try {
      if (await this.#waiting.alone(() => processes.clear(entered.hasEnded))) return;
      await processes.end(insidePid);
      // One that runs beside it may have told another number in its place.
      if (!entered.hasEnded) await Promise.race([entered.exited, delay(startTimeoutMs, undefined, { ref: false })]);
      if (!entered.hasEnded) await this.#abandon();
    } catch {
      await this.#abandon();
    }
  }

  /** DK8 */
  async #clear(): Promise<void> {
    if (this.isClosed || this.loss !== undefined) return;
    await (this.#group?.endOthers(this.#kept) ?? this.#processes!.clear(true)).catch(() => this.#abandon());
  }

  /** What cannot be ended ends with its container. */
  async #abandon(why = itsEnd): Promise<void> {
    if (this.#death !== undefined || this.isClosed) return;
    this.#death = why;
    await this.#engine.removeContainer(this.#container!.id);
  }

  async #ranOutOfMemory(): Promise<boolean> {
    return (await this.#engine.unlessGone("inspect", this.#container!.inspect()))?.State.OOMKilled === true;
  }

  protected override async remove(): Promise<void> {
    this.#unwatch();
    this.#cores?.close();
    await this.#waiting.drop();
    try {
      if (this.#container !== undefined) await this.#engine.removeContainer(this.#container.id);
    } finally {
      this.#keeping?.destroy();
      await this.#proxy?.close();
    }
  }
}
