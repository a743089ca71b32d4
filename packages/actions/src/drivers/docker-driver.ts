/**
 * Commands in containers of a Docker Engine (ARL-Tangram §5.1: `update` for the cores, `exec` for the command).
 *
 * Owned here: the session's containers, one connection to each that keeps it alive, one stream of the engine's events.
 *
 * DK1 a command ends with everything it started, a sandbox with every command. Where the engine is on this machine and we
 *    are root, a command has a list of its processes in the kernel; elsewhere its descendants are found in the container,
 *    and those that left their parents end when nothing else runs there. A container in which that fails is removed.
 * DK2 cores belong to the container: commands that run in it at once share theirs. On the fast path they are written to its
 *    control group, and the engine's record follows (`ContainerCores`).
 * DK3 when this process dies of anything, its connection to a container ends, on which the container's first process
 *    ends, and with it the container; what was made but never started is removed by the next driver, by its label, and so are
 *    the images of snapshots.
 * DK4 when memory runs out, a command goes, not what holds the container.
 */
import { randomUUID } from "node:crypto";
import { writeFile } from "node:fs/promises";
import { hostname } from "node:os";
import type { Duplex, PassThrough } from "node:stream";
import { setTimeout as delay } from "node:timers/promises";
import { TreadleError } from "@treadle/contracts";
import type Docker from "dockerode";
import { z } from "zod";
import { isDeadSession, sessionName } from "./cgroup.ts";
import { goesFirst, type RunningCommand, runCommand, signalProcess } from "./command.ts";
import { ContainerCores } from "./container-cores.ts";
import { ContainerGroup } from "./container-group.ts";
import { DockerEngine, type EngineExec } from "./docker-engine.ts";
import { DockerOptions } from "./docker-options.ts";
import { OpenSandbox } from "./open-sandbox.ts";
import {
  baseEnvironment,
  type CommandSignal,
  type ExecRequest,
  type ExecResult,
  type Sandbox,
  type SandboxDriver,
  type SandboxOptions,
  type Snapshot,
  tooLarge,
} from "./sandbox.ts";
import { readThrough, writeThrough } from "./sandbox-files.ts";

const defaultMaxProcesses = 256;
const startTimeoutMs = 30_000;
const watchMs = 25;
/** of the container itself: its first process, what keeps it, and one that ends others */
const ownProcesses = 4;

/** Ends when its input does (DK3), and meanwhile takes in what has lost its parents. */
const holderScript =
  'mkdir -p /work /tmp && chmod 1777 /work /tmp && exec 3<&0 && { cat <&3 >/dev/null & } && echo ready && wait "$!"';

export class DockerDriver implements SandboxDriver {
  readonly name = "docker";
  readonly isolation: string;
  readonly #options: z.infer<typeof DockerOptions>;
  readonly #engine: DockerEngine;
  readonly #session = `${sessionName(process.pid)}-${randomUUID().slice(0, 8)}`;
  readonly #ready: Promise<{ cores: number }>;
  readonly #sandboxes = new Set<ContainerSandbox>();
  readonly #snapshots = new Set<ImageSnapshot>();

  /** Whether the engine can be used is told by `dockerDriverLacks`; here the first sandbox fails. */
  constructor(options: DockerOptions) {
    this.#options = DockerOptions.parse(options);
    const { image, socket, userId } = this.#options;
    this.isolation = `Docker containers of '${image}', as user ${userId} without capabilities`;
    this.#engine = new DockerEngine(this.#session, socket);
    this.#ready = this.#prepare();
    this.#ready.catch(() => {});
  }

  async open(options: SandboxOptions = {}, signal: AbortSignal = new AbortController().signal): Promise<Sandbox> {
    const { cores } = await this.#ready;
    const labels = { "treadle.session": this.#session, "treadle.host": hostname() };
    const sandbox = new ContainerSandbox(this.#engine, this.#options, options, cores, {
      forget: () => this.#sandboxes.delete(sandbox),
      keep: (snapshot) => this.#snapshots.add(snapshot),
    });
    this.#sandboxes.add(sandbox);
    try {
      await sandbox.start(labels, signal);
    } catch (error) {
      await sandbox.close();
      throw error;
    }
    return sandbox;
  }

  async close(): Promise<void> {
    await this.#ready.catch(() => {});
    await Promise.all([...this.#sandboxes].map((sandbox) => sandbox.close()));
    await Promise.all([...this.#snapshots].map((snapshot) => snapshot.drop()));
    this.#engine.close();
  }

  async #prepare(): Promise<{ cores: number }> {
    const engine = this.#engine;
    const { docker } = engine;
    const { NCPU } = z.object({ NCPU: z.int().positive() }).parse(await engine.call("info", docker.info()));
    await engine.listen();
    const filters = { label: [`treadle.host=${hostname()}`] };
    for (const { Id, Labels } of await engine.call("list", docker.listContainers({ all: true, filters })))
      if (isDeadSession(Labels["treadle.session"] ?? "")) await removeContainer(docker.getContainer(Id));
    for (const { Id, Labels } of await engine.call("images", docker.listImages({ filters })))
      if (isDeadSession(Labels?.["treadle.session"] ?? "")) await removeImage(docker, Id);
    return { cores: NCPU };
  }
}

type Started = EngineExec & {
  /** in the kernel, where it can be seen; else by the number of its first process in the container */
  readonly name: string;
  readonly insidePid: number | undefined;
};

class ContainerSandbox extends OpenSandbox {
  readonly stateFolder = "/tmp/.treadle";
  readonly #engine: DockerEngine;
  readonly #driver: z.infer<typeof DockerOptions>;
  readonly #options: SandboxOptions;
  readonly #allCores: readonly number[];
  readonly #keep: (snapshot: ImageSnapshot) => void;
  /** first processes, inside, of what runs */
  readonly #inside = new Set<number>();
  #container: Docker.Container | undefined;
  #keeping: Duplex | undefined;
  #group: ContainerGroup | undefined;
  #cores!: ContainerCores;
  #imageEnvironment: Readonly<Record<string, string>> = {};
  #hasDied = false;
  #execs = 0;

  constructor(
    engine: DockerEngine,
    driver: z.infer<typeof DockerOptions>,
    options: SandboxOptions,
    cores: number,
    { forget, keep }: { readonly forget: () => void; readonly keep: (snapshot: ImageSnapshot) => void },
  ) {
    super(forget);
    this.#keep = keep;
    this.#engine = engine;
    this.#driver = driver;
    this.#options = options;
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
    const { memoryBytes, maxProcesses = defaultMaxProcesses, network = false } = this.#options;
    const engine = this.#engine;
    const image =
      ImageSnapshot.ofOwn(this.#options.from)?.image ??
      (await allowedImage(engine, this.#driver, this.#options.container?.image, signal));
    signal.throwIfAborted();
    this.#imageEnvironment = await environmentOf(engine, image);
    signal.throwIfAborted();
    const container = await engine.call(
      "create",
      engine.docker.createContainer({
        Image: image,
        Labels: labels,
        Entrypoint: ["/bin/sh", "-c", holderScript],
        Cmd: [],
        User: "0:0",
        WorkingDir: "/work",
        AttachStdin: true,
        AttachStdout: true,
        OpenStdin: true,
        StdinOnce: true,
        HostConfig: {
          AutoRemove: true,
          NetworkMode: network ? "bridge" : "none",
          ...(memoryBytes === undefined ? {} : { Memory: memoryBytes, MemorySwap: memoryBytes }),
          PidsLimit: maxProcesses + ownProcesses,
          CapDrop: ["ALL"],
          SecurityOpt: ["no-new-privileges"],
          LogConfig: { Type: "none", Config: {} },
        },
      }),
    );
    this.#container = container;
    signal.throwIfAborted();
    const attached = { stream: true, stdin: true, stdout: true, stderr: true, hijack: true };
    const keeping = (await engine.call("attach", container.attach(attached))) as Duplex;
    this.#keeping = keeping;
    const { stdout } = engine.streamsOf(keeping);
    keeping.once("close", () => {
      this.#hasDied = true;
    });
    await engine.call("start", container.start());
    const first = await firstLine(stdout, startTimeoutMs);
    if (first !== "ready")
      throw new TreadleError("sandbox.failed", `a container of '${image}' did not start: ${first}`);
    stdout.resume();
    (keeping as { unref?: () => void }).unref?.();
    if (this.#driver.fastPath) {
      const { State } = await engine.call("inspect", container.inspect());
      this.#group = ContainerGroup.of(State.Pid, container.id);
      // A command may take its rank back (DK4), but never these.
      for (const pid of this.#group?.ownProcesses() ?? [])
        await writeFile(`/proc/${pid}/oom_score_adj`, "-1000").catch(() => {});
    }
    this.#cores = new ContainerCores(this.#group, async (list) => {
      await engine.call("update", container.update({ CpusetCpus: list }));
    });
    signal.throwIfAborted();
    if (this.#options.container?.user !== undefined) await this.#proveUser(image);
    signal.throwIfAborted();
    if (this.#options.container?.workingFolder !== undefined) await this.#proveFolder(image);
    signal.throwIfAborted();
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

  /** The engine keeps what differs from the image, all of it, the system's folders too; it stops the container for a moment. */
  protected override async copy({ maxBytes, signal }: { readonly maxBytes: number; readonly signal: AbortSignal }) {
    const engine = this.#engine;
    const container = this.#container!;
    const filters = { id: [container.id] };
    const listed = await engine.call("list", engine.docker.listContainers({ size: true, filters }));
    const [{ SizeRw }] = z.tuple([z.object({ SizeRw: z.number().default(0) })]).parse(listed);
    if (SizeRw > maxBytes) throw tooLarge(maxBytes);
    signal.throwIfAborted();
    const { Id } = z.object({ Id: z.string() }).parse(await engine.call("commit", container.commit({ pause: true })));
    const snapshot = new ImageSnapshot(engine.docker, Id, SizeRw);
    this.#keep(snapshot);
    return snapshot;
  }

  protected override lossOf(): string | undefined {
    return this.#hasDied ? "its container has ended" : undefined;
  }

  override usedBytes(): number | undefined {
    return this.#group?.usedBytes();
  }

  protected override async run(request: ExecRequest): Promise<ExecResult> {
    const release = await this.#cores.hold(request.cores ?? this.#allCores);
    const memoryKills = this.#group?.outOfMemoryKills() ?? 0;
    let started: Started | undefined;
    try {
      const variables = { ...baseEnvironment, ...this.#imageEnvironment, ...request.environment };
      const command = await this.#start(variables, request.command);
      started = command;
      const running: RunningCommand = {
        ...command,
        exited: command.exited.then((code) => ({ code, signal: null })),
      };
      const result = await runCommand(
        {
          start: () => running,
          signal: async (name) => void (await this.#signal(command, name).catch(() => {})),
          kill: () => this.#kill(command),
          ranOutOfMemory: () => (this.#group?.outOfMemoryKills() ?? 0) > memoryKills,
        },
        request,
      );
      const isKilled = this.#group === undefined && result.exitCode === 128 + 9;
      if (isKilled && (await this.#ranOutOfMemory())) return { ...result, status: "out-of-memory", exitCode: null };
      return result;
    } finally {
      release();
      if (started !== undefined) await this.#kill(started);
    }
  }

  /** Its first process waits until it is on its list (DK1). */
  async #start(environment: Readonly<Record<string, string>>, command: readonly string[]): Promise<Started> {
    const name = `treadle-${this.#execs++}`;
    const group = this.#group;
    const begin = `${goesFirst}; ${group === undefined ? "echo $$ >&2" : "read -r _"}`;
    const variables = Object.entries(environment).map(([key, value]) => `${key}=${value}`);
    await group?.createExec(name);
    const started = await this.#engine.exec(this.#container!, {
      Cmd: ["/bin/sh", "-c", `${begin}; exec env -i "$@"`, "sh", ...variables, ...command],
      User: this.#user,
      WorkingDir: this.#workingFolder,
    });
    if (group === undefined) {
      const insidePid = Number(await firstLine(started.stderr, startTimeoutMs));
      this.#inside.add(insidePid);
      return { ...started, name, insidePid };
    }
    const pid = await this.#hostPid(started.exec);
    await group.join(name, pid);
    started.stdin.write("\n");
    // The engine waits seconds for whoever else holds the output open before it tells of an end.
    const watch = setInterval(() => {
      if (isAlive(pid)) return;
      clearInterval(watch);
      void group.killExec(name).catch(() => {});
    }, watchMs);
    void started.exited.catch(() => {}).finally(() => clearInterval(watch));
    return { ...started, name, insidePid: undefined };
  }

  /** The engine answers a start a moment before the process is there. */
  async #hostPid(exec: Docker.Exec): Promise<number> {
    const startedMs = performance.now();
    for (;;) {
      const { Pid, ExitCode, Running } = await this.#engine.call("exec inspect", exec.inspect());
      if (Pid > 0) return Pid;
      if (!Running && ExitCode !== null && ExitCode !== 0)
        throw new TreadleError("sandbox.failed", `a command did not start in '${this.id}': exit code ${ExitCode}`);
      if (performance.now() - startedMs > startTimeoutMs)
        throw new TreadleError("sandbox.failed", `a command did not start in '${this.id}' within ${startTimeoutMs} ms`);
      await delay(1);
    }
  }

  async #signal({ name, insidePid }: Started, signal: CommandSignal): Promise<number> {
    if (this.#group !== undefined) {
      for (const pid of this.#group.processes(name)) signalProcess(pid, signal);
      return 0;
    }
    const alone = [...this.#inside].every((pid) => pid === insidePid);
    const { stdout, exited, stdin } = await this.#engine.exec(this.#container!, {
      Cmd: ["/bin/sh", "-c", signalScript, "sh", signal.slice(3), alone ? "1" : "0", String(insidePid)],
      User: this.#user,
    });
    stdin.end();
    const left = Number(await firstLine(stdout, startTimeoutMs));
    if ((await exited) !== 0 || !Number.isInteger(left))
      throw new TreadleError("sandbox.failed", "nothing was signalled");
    return left;
  }

  async #kill(started: Started): Promise<void> {
    const { name, insidePid } = started;
    if (this.#group !== undefined) {
      // Its folder is gone when it was ended before, or with its container.
      await this.#group.killExec(name).catch(() => this.#abandon());
      return;
    }
    if (insidePid === undefined || !this.#inside.has(insidePid)) return;
    try {
      for (let tries = 0; (await this.#signal(started, "SIGKILL")) > 0; tries++)
        if (tries === 20) throw new TreadleError("sandbox.failed", "processes did not end after SIGKILL");
    } catch {
      await this.#abandon();
    }
    this.#inside.delete(insidePid);
  }

  /** What cannot be ended ends with its container. */
  async #abandon(): Promise<void> {
    if (this.#hasDied || this.isClosed) return;
    this.#hasDied = true;
    await removeContainer(this.#container!);
  }

  async #ranOutOfMemory(): Promise<boolean> {
    return (await this.#engine.call("inspect", this.#container!.inspect())).State.OOMKilled;
  }

  protected override async remove(): Promise<void> {
    this.#cores?.close();
    if (this.#container !== undefined) await removeContainer(this.#container);
    this.#keeping?.destroy();
  }
}

/** An image made of a container. */
class ImageSnapshot implements Snapshot {
  readonly image: string;
  readonly bytes: number;
  readonly #docker: Docker;

  constructor(docker: Docker, image: string, bytes: number) {
    this.#docker = docker;
    this.image = image;
    this.bytes = bytes;
  }

  /** Throws `action.invalid` for one of another driver. */
  static ofOwn(snapshot: Snapshot | undefined): ImageSnapshot | undefined {
    if (snapshot === undefined || snapshot instanceof ImageSnapshot) return snapshot;
    throw new TreadleError("action.invalid", "a snapshot is of another driver's sandbox; give one of this driver's");
  }

  drop(): Promise<void> {
    return removeImage(this.#docker, this.image);
  }
}

/**
 * Signals a process and its descendants, with `orphans` those of its user that have lost their parents as well, and prints
 * how many it found.
 */
const signalScript = `
signal=$1; orphans=$2; hit=" $3 "; again=1
while [ $again = 1 ]; do
  again=0
  for folder in /proc/[0-9]*; do
    pid=\${folder#/proc/}
    case "$hit" in *" $pid "*) continue ;; esac
    [ -O "$folder" ] && read -r line 2>/dev/null < "$folder/stat" || continue
    set -- \${line##*) }
    [ "$1" = Z ] && continue
    case "$hit" in
      *" $2 "*) ;;
      *) [ $orphans = 1 ] && [ "$2" = 1 ] || continue ;;
    esac
    hit="$hit$pid "
    again=1
  done
done
count=0
for pid in $hit; do kill -$signal $pid 2>/dev/null && count=$((count+1)); done
echo $count
`;

/** The one to start; throws `sandbox.unavailable` where it may not be had, or is not. */
async function allowedImage(
  { docker }: DockerEngine,
  { image: own, images, pull }: z.infer<typeof DockerOptions>,
  asked: string = own,
  signal: AbortSignal,
): Promise<string> {
  const allowed = [own, ...images];
  if (!allowed.some((one) => one === asked || (one.endsWith("*") && asked.startsWith(one.slice(0, -1)))))
    throw new TreadleError(
      "sandbox.unavailable",
      `image '${asked}' is not allowed here; allowed are ${allowed.map((one) => `'${one}'`).join(", ")}; add it to docker.images`,
    );
  const found = await docker
    .getImage(asked)
    .inspect()
    .then(
      () => true,
      (error: { statusCode?: number }) => {
        if (error.statusCode !== 404) throw error;
        return false;
      },
    );
  if (found) return asked;
  if (pull === "never")
    throw new TreadleError(
      "sandbox.unavailable",
      `the Docker engine has no image '${asked}'; fetch it with 'docker pull ${asked}', or set docker.pull: missing`,
    );
  try {
    // This side stops waiting at once; the engine may take its time to end a pull whose connection has ended.
    const progress = (await docker.pull(asked, { abortSignal: signal })) as NodeJS.ReadableStream & Destroyable;
    const cancel = (): void => void progress.destroy(signal.reason);
    signal.addEventListener("abort", cancel, { once: true });
    try {
      await new Promise<void>((resolve, reject) => {
        progress.once("error", reject);
        progress.once("close", () => reject(new Error("the engine ended the connection")));
        docker.modem.followProgress(progress, (error, told: readonly { error?: string }[]) => {
          // What fails on the way is told in what is said of the progress.
          const failure = error ?? told.find((one) => one.error !== undefined)?.error;
          if (failure == null) resolve();
          else reject(typeof failure === "string" ? new Error(failure) : failure);
        });
      });
    } finally {
      signal.removeEventListener("abort", cancel);
    }
    return asked;
  } catch (cause) {
    signal.throwIfAborted();
    const why = (cause as Error).message.trim();
    throw new TreadleError("sandbox.unavailable", `image '${asked}' could not be pulled: ${why}`, { cause });
  }
}

type Destroyable = { destroy(error?: Error): unknown };

/** What the image says of every process in it, such as a PATH. */
async function environmentOf(engine: DockerEngine, image: string): Promise<Record<string, string>> {
  const { Config } = await engine.call("inspect image", engine.docker.getImage(image).inspect());
  const variables = (Config?.Env ?? []).map((line) => {
    const at = line.indexOf("=");
    return at < 1 ? undefined : ([line.slice(0, at), line.slice(at + 1)] as const);
  });
  return Object.fromEntries(variables.filter((one) => one !== undefined));
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

async function removeContainer(container: Docker.Container): Promise<void> {
  await container.remove({ force: true, v: true }).catch((error: { statusCode?: number }) => {
    // Gone, or on its way.
    if (error.statusCode !== 404 && error.statusCode !== 409) throw error;
  });
}

async function removeImage(docker: Docker, image: string): Promise<void> {
  await docker
    .getImage(image)
    .remove({ force: true })
    .catch((error: { statusCode?: number }) => {
      // Gone, or of a container that is on its way: then the next driver removes it.
      if (error.statusCode !== 404 && error.statusCode !== 409) throw error;
    });
}

/** Leaves the rest in the stream. Empty when it ends before. */
function firstLine(stream: PassThrough, timeoutMs: number): Promise<string> {
  return new Promise((resolve, reject) => {
    let seen = Buffer.alloc(0);
    const finish = (line: string): void => {
      clearTimeout(timer);
      stream.off("readable", look);
      stream.off("end", end);
      resolve(line);
    };
    const end = (): void => finish(seen.toString());
    const look = (): void => {
      for (let chunk = stream.read() as Buffer | null; chunk !== null; chunk = stream.read() as Buffer | null) {
        seen = Buffer.concat([seen, chunk]);
        const at = seen.indexOf("\n");
        if (at < 0) continue;
        const rest = seen.subarray(at + 1);
        finish(seen.toString("utf8", 0, at));
        if (rest.length > 0) stream.unshift(rest);
        return;
      }
    };
    const timer = setTimeout(() => {
      stream.off("readable", look);
      stream.off("end", end);
      reject(new TreadleError("sandbox.failed", `a container said nothing within ${timeoutMs} ms`));
    }, timeoutMs);
    stream.on("readable", look);
    stream.once("end", end);
    look();
  });
}
