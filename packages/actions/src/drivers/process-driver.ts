import { randomUUID } from "node:crypto";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { availableParallelism, tmpdir } from "node:os";
import { delimiter, dirname, join, resolve, sep } from "node:path";
import { TreadleError } from "@treadle/contracts";
import { Reaper } from "@treadle/transport";
import { ArchiveSnapshot } from "./archive-snapshot.ts";
import { runCommand, spawnCommand } from "./command.ts";
import { OpenSandbox } from "./open-sandbox.ts";
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

/** Absent outside of Linux, where commands run on whatever cores the system gives them. */
const taskset = (process.env.PATH ?? baseEnvironment.PATH)
  .split(delimiter)
  .map((folder) => join(folder, "taskset"))
  .find((file) => existsSync(file));

/** What starts a program on some cores; `env`, where nothing can, answers for a missing program in the same way. */
const pinned = (cores: readonly number[]): [program: string, ...args: string[]] =>
  taskset !== undefined ? [taskset, "-c", cores.join()] : ["env"];

/**
 * Runs commands as plain processes of the current user, for trusted code and machines without control groups. Cores
 * are an affinity that a command may change back; memory and process limits are ignored. A process that starts a
 * session of its own (`setsid`) escapes the end of its command; and where the kernel lets a user trace its own processes, a
 * command can change this one.
 */
export class ProcessDriver implements SandboxDriver {
  readonly name = "process";
  readonly isolation = "none: commands see the host's files, processes and network as the current user";
  readonly #sandboxes = new Set<ProcessSandbox>();
  readonly #root: Promise<string>;
  readonly #reaper: Promise<Reaper>;

  constructor() {
    this.#root = mkdtemp(join(tmpdir(), "treadle-process-"));
    this.#reaper = this.#root.then((root) => new Reaper([], [root]));
  }

  diskLacks(): string {
    return "it isolates nothing; use 'cgroup' or 'docker'";
  }

  async open(options: SandboxOptions = {}, signal?: AbortSignal): Promise<Sandbox> {
    refuseContainer(this.name, options);
    refuseDisk(this, options);
    if (options.network !== undefined && options.network !== "host")
      throw new TreadleError(
        "sandbox.unavailable",
        "the driver 'process' holds no list of what may be reached; use the driver 'cgroup' or 'docker', or network: host",
      );
    const id = randomUUID();
    const folder = join(await this.#root, id);
    await mkdir(folder, { recursive: true });
    const sandbox = new ProcessSandbox(id, folder, await this.#reaper, () => this.#sandboxes.delete(sandbox));
    this.#sandboxes.add(sandbox);
    try {
      await ArchiveSnapshot.ofOwn(options.from)?.unpackInto(sandbox, sandbox.kept, signal);
    } catch (error) {
      await sandbox.close();
      throw error;
    }
    return sandbox;
  }

  async close(): Promise<void> {
    await Promise.all([...this.#sandboxes].map((s) => s.close()));
    await (await this.#reaper).close();
    await rm(await this.#root, { recursive: true, force: true });
  }
}

class ProcessSandbox extends OpenSandbox {
  readonly id: string;
  readonly #folder: string;
  readonly #reaper: Reaper;

  constructor(id: string, folder: string, reaper: Reaper, forget: () => void) {
    super(forget);
    this.id = id;
    this.#folder = folder;
    this.#reaper = reaper;
  }

  get stateFolder(): string {
    return `${this.#folder}.state`;
  }

  protected override lossOf(): string | undefined {
    return existsSync(this.#folder) ? undefined : "its folder was removed";
  }

  /** what a snapshot is of */
  get kept(): readonly string[] {
    return [this.#folder, this.stateFolder];
  }

  protected override copy(options: { readonly maxBytes: number; readonly signal: AbortSignal }): Promise<Snapshot> {
    const runs = { exec: (request: ExecRequest) => this.run(request) };
    return ArchiveSnapshot.of(runs, this.kept, `${this.#folder}.snapshot-${randomUUID()}`, options);
  }

  protected override run(request: ExecRequest): Promise<ExecResult> {
    const { cores, command } = request;
    const allCores = Array.from({ length: availableParallelism() }, (_, i) => i);
    let group: number | undefined;
    const [program, ...args] = pinned(cores ?? allCores);
    return runCommand(
      {
        start: () => {
          const environment = { ...baseEnvironment, ...request.environment };
          const running = spawnCommand({ program, args: [...args, ...command], environment, cwd: this.#folder });
          group = running.child.pid;
          if (group !== undefined) this.#reaper.watch(group);
          return running;
        },
        signal: (name) => signalGroup(group, name),
        kill: async () => {
          signalGroup(group, "SIGKILL");
          if (group !== undefined) this.#reaper.forget(group);
        },
      },
      request,
    );
  }

  async writeFile(path: string, data: string | Uint8Array): Promise<void> {
    const target = this.placed(path);
    await mkdir(dirname(target), { recursive: true });
    await writeFile(target, data);
  }

  async readFile(path: string, maxBytes = 64 * 2 ** 20): Promise<Buffer> {
    const data = await readFile(this.placed(path)).catch((cause: Error) => {
      throw new TreadleError("sandbox.failed", `'${path}' could not be read: ${cause.message}`, { cause });
    });
    if (data.length > maxBytes)
      throw new TreadleError(
        "sandbox.failed",
        `'${path}' has ${data.length} bytes, at most ${maxBytes} were allowed; raise maxBytes`,
      );
    return data;
  }

  protected override async remove(): Promise<void> {
    for (const folder of [this.#folder, this.stateFolder]) await rm(folder, { recursive: true, force: true });
  }

  protected override placed(path: string): string {
    const target = resolve(this.#folder, path);
    if (target !== this.#folder && !target.startsWith(this.#folder + sep))
      throw new TreadleError("sandbox.failed", `'${path}' leaves the sandbox's folder; give a path below it`);
    return target;
  }
}

function signalGroup(group: number | undefined, name: NodeJS.Signals): void {
  try {
    if (group !== undefined) process.kill(-group, name);
  } catch {
    // The group has ended.
  }
}
