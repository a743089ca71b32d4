import { randomUUID } from "node:crypto";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { availableParallelism, tmpdir } from "node:os";
import { dirname, join, resolve, sep } from "node:path";
import { TreadleError } from "@treadle/contracts";
import { runCommand } from "./command.ts";
import { Reaper } from "./reaper.ts";
import { baseEnvironment, type ExecRequest, type ExecResult, type Sandbox, type SandboxDriver } from "./sandbox.ts";

/**
 * Runs commands as plain processes of the current user, for trusted code and machines without control groups. Cores
 * are an affinity that a command may change back; memory and process limits are ignored. A process that starts a
 * session of its own (`setsid`) escapes the end of its command.
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

  async open(): Promise<Sandbox> {
    const id = randomUUID();
    const folder = join(await this.#root, id);
    await mkdir(folder, { recursive: true });
    const sandbox = new ProcessSandbox(id, folder, await this.#reaper, () => this.#sandboxes.delete(sandbox));
    this.#sandboxes.add(sandbox);
    return sandbox;
  }

  async close(): Promise<void> {
    await Promise.all([...this.#sandboxes].map((s) => s.close()));
    await (await this.#reaper).close();
    await rm(await this.#root, { recursive: true, force: true });
  }
}

class ProcessSandbox implements Sandbox {
  readonly id: string;
  readonly #folder: string;
  readonly #reaper: Reaper;
  readonly #forget: () => void;
  readonly #closing = new AbortController();
  readonly #running = new Set<Promise<ExecResult>>();

  constructor(id: string, folder: string, reaper: Reaper, forget: () => void) {
    this.id = id;
    this.#folder = folder;
    this.#reaper = reaper;
    this.#forget = forget;
  }

  async exec(request: ExecRequest): Promise<ExecResult> {
    if (this.#closing.signal.aborted) throw new TreadleError("sandbox.failed", `sandbox '${this.id}' is closed`);
    const { cores, command } = request;
    const allCores = Array.from({ length: availableParallelism() }, (_, i) => i);
    const signal =
      request.signal === undefined ? this.#closing.signal : AbortSignal.any([request.signal, this.#closing.signal]);
    let group: number | undefined;
    const kill = (name: NodeJS.Signals): void => {
      try {
        if (group !== undefined) process.kill(-group, name);
      } catch {
        // The group has ended.
      }
    };
    const run = runCommand(
      {
        program: "taskset",
        args: ["-c", (cores ?? allCores).join(","), ...command],
        environment: { ...baseEnvironment, ...request.environment },
        cwd: this.#folder,
        started: (child) => {
          group = child.pid;
          if (group !== undefined) this.#reaper.watch(group);
        },
        terminate: () => kill("SIGTERM"),
        kill: async () => {
          kill("SIGKILL");
          if (group !== undefined) this.#reaper.forget(group);
        },
      },
      { ...request, signal },
    );
    this.#running.add(run);
    try {
      return await run;
    } finally {
      this.#running.delete(run);
    }
  }

  async writeFile(path: string, data: string | Uint8Array): Promise<void> {
    const target = this.#inside(path);
    await mkdir(dirname(target), { recursive: true });
    await writeFile(target, data);
  }

  async readFile(path: string, maxBytes = 64 * 2 ** 20): Promise<Buffer> {
    const data = await readFile(this.#inside(path)).catch((cause: Error) => {
      throw new TreadleError("sandbox.failed", `'${path}' could not be read: ${cause.message}`, { cause });
    });
    if (data.length > maxBytes)
      throw new TreadleError(
        "sandbox.failed",
        `'${path}' has ${data.length} bytes, at most ${maxBytes} were allowed; raise maxBytes`,
      );
    return data;
  }

  async close(): Promise<void> {
    this.#closing.abort();
    await Promise.allSettled(this.#running);
    await rm(this.#folder, { recursive: true, force: true });
    this.#forget();
  }

  #inside(path: string): string {
    const target = resolve(this.#folder, path);
    if (!target.startsWith(this.#folder + sep))
      throw new TreadleError("sandbox.failed", `'${path}' leaves the sandbox's folder; give a path below it`);
    return target;
  }
}
