/** A NATS server, node agents and a runner, each in a process of its own, over a project that they share. */
import { type ChildProcess, spawn } from "node:child_process";
import { cp, mkdtemp, readdir, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";
import type { RunEvent } from "@treadle/contracts";
import { type NatsServer, type NatsServerOptions, startNatsServer } from "@treadle/transport/testing";
import { expect } from "vitest";
import { isAlive, segmentsOf, until } from "./cluster.ts";
import { type Keys, keyFlags, keyOverrides, makeKeys } from "./keys.ts";
import { socketFolders } from "./ledger.ts";
import { projectRoot as checkout, command, loaderFlags, runner } from "./project.ts";
import { makeTemporary } from "./temporary-folder.ts";

export type NodeProcess = { readonly child: ChildProcess; readonly output: () => string; kill(): Promise<void> };

export type RunProcess = {
  readonly child: ChildProcess;
  readonly events: RunEvent[];
  /** what the runner itself has said */
  lines(): string[];
  /** waits for a line of the runner that has this in it */
  line(part: string): Promise<string>;
  /** resolves with the exit code, or with the signal that ended it */
  readonly exited: Promise<number | NodeJS.Signals | null>;
  /** waits for an event that fits */
  event<Type extends RunEvent["type"]>(
    type: Type,
    fits?: (event: Extract<RunEvent, { type: Type }>) => boolean,
  ): Promise<Extract<RunEvent, { type: Type }>>;
};

/** One NATS server, or several, which admit the holders of these keys and nobody else. */
type Servers = { readonly url: string; readonly keys: Keys } & AsyncDisposable;
type KeyedServer = NatsServer & { readonly keys: Keys };

export class NodesWorld<Nats extends Servers = KeyedServer> {
  readonly root: string;
  readonly nats: Nats;
  readonly project: string;
  readonly #started: ChildProcess[] = [];
  /** of the processes that are started from now on */
  environment: Readonly<Record<string, string>> = {};

  private constructor(root: string, nats: Nats, project: string) {
    this.root = root;
    this.nats = nats;
    this.project = project;
  }

  static async open(options: NatsServerOptions = {}): Promise<NodesWorld> {
    const keys = await makeKeys();
    const server = await startNatsServer({ ...options, args: ["-c", keys.config, ...(options.args ?? [])] });
    return NodesWorld.over(Object.assign(server, { keys }));
  }

  /** `project`: one that is there, as the checkout is, which nobody changes meanwhile; default: one of test workflows. */
  static async over<Nats extends Servers>(nats: Nats, project?: string): Promise<NodesWorld<Nats>> {
    const root = await mkdtemp(join(tmpdir(), "treadle-n-"));
    await makeTemporary(root);
    const world = new NodesWorld(root, nats, project ?? join(root, "project"));
    if (project !== undefined) return world;
    // Apart from the checkout, whose code may change while tests run; agents refuse other code than the runner's.
    const support = join(checkout, "test/support");
    for (const folder of ["workflows", "workers"]) {
      await cp(join(support, folder), join(world.project, "support", folder), { recursive: true });
    }
    await symlink(join(checkout, "node_modules"), join(world.project, "node_modules"));
    await writeFile(join(world.project, "package.json"), JSON.stringify({ type: "module", private: true }));
    return world;
  }

  /** the script of the command line */
  readonly command = command;
  get runs(): string {
    return join(this.root, "runs");
  }
  get temporary(): string {
    return join(this.root, "tmp");
  }

  /** of the process that was started last */
  get lastExitCode(): number | null | undefined {
    return this.#started.at(-1)?.exitCode;
  }

  /** By which a command reaches the servers, as a runner unless told otherwise. */
  flagsOf(role: "runner" | "node" = "runner"): string[] {
    return ["--nats", this.nats.url, ...keyFlags(this.nats.keys, role)];
  }

  /** The project with one file more. */
  async otherCode(): Promise<string> {
    const other = join(this.root, "other");
    await cp(this.project, other, { recursive: true, verbatimSymlinks: true });
    await writeFile(join(other, "more.ts"), "export const more = 1;\n");
    return other;
  }

  /** `inside`: the command by which another is run elsewhere, as in a network namespace. */
  async startNode(name: string, flags: readonly string[] = [], inside: readonly string[] = []): Promise<NodeProcess> {
    const all = ["node", ...this.flagsOf("node"), "--name", name, "--project", this.project, ...flags];
    return this.#ready(this.start(all, inside), `node agent '${name}'`);
  }

  /** Of this machine's devices; the one of that name that is there already ends. */
  async startPool(name: string, flags: readonly string[] = []): Promise<NodeProcess> {
    return this.#ready(
      this.start(["pool", "start", name, "--runs", this.runs, ...this.flagsOf(), ...flags]),
      `pool '${name}'`,
    );
  }

  /** Any command, in the project. */
  start(args: readonly string[], inside: readonly string[] = []): NodeProcess {
    const child = this.#spawn([command, ...args], "pipe", inside, this.project);
    let output = "";
    for (const stream of [child.stdout, child.stderr]) {
      stream?.on("data", (bytes) => {
        output += bytes;
      });
    }
    const exited = new Promise<void>((resolve) => child.once("exit", () => resolve()));
    const kill = async () => {
      child.kill("SIGKILL");
      await exited;
    };
    return { child, output: () => output, kill };
  }

  async #ready(process: NodeProcess, what: string): Promise<NodeProcess> {
    await until(
      () => {
        if (process.child.exitCode !== null) throw new Error(`${what} ended: ${process.output()}`);
        return process.output().includes("is ready for runs");
      },
      `${what} to be ready`,
      150_000,
    );
    return process;
  }

  /** `runs`: where the folder of a run is, which another machine has not. `name`: of one below `support/workflows`, or its path. */
  startRun(overrides: readonly string[], runId = "new", runs = this.runs, name = "ledger"): RunProcess {
    const workflow = resolve(this.project, "support/workflows", name);
    const nodes = [
      `cluster.nats.url=${this.nats.url}`,
      ...keyOverrides(this.nats.keys),
      "supervision.heartbeatTimeoutMs=30000",
      "cluster.nodeWaitMs=60000",
    ];
    const args = [this.project, runs, workflow, runId, ...nodes, ...overrides];
    const child = this.#spawn([...loaderFlags, runner, ...args], "inherit");
    const events: RunEvent[] = [];
    createInterface({ input: child.stdout as NodeJS.ReadableStream }).on("line", (line) => {
      events.push(JSON.parse(line) as RunEvent);
    });
    const exited = new Promise<number | NodeJS.Signals | null>((resolve) =>
      child.once("exit", (code, signal) => resolve(code ?? signal)),
    );
    const lines = () =>
      events.flatMap((event) => (event.type === "log" && event.worker === "runner" ? [event.line] : []));
    const isOver = () => child.exitCode !== null || child.signalCode !== null;
    return {
      child,
      events,
      lines,
      line: (part) =>
        until(
          () => {
            const found = lines().find((line) => line.includes(part));
            if (found === undefined && isOver()) {
              const how = child.exitCode ?? child.signalCode;
              throw new Error(`no line has '${part}' of a runner that ended with ${how}: ${lines().join("; ")}`);
            }
            return found;
          },
          `a line with '${part}'`,
          60_000,
        ),
      exited,
      event: (type, fits = () => true) =>
        until(
          () => {
            const threw = events.find((event) => (event.type as string) === "threw");
            if (threw && type !== "run-failed") throw new Error(`the run threw: ${JSON.stringify(threw)}`);
            return events.find((event): event is Extract<RunEvent, { type: typeof type }> => {
              return event.type === type && fits(event as Extract<RunEvent, { type: typeof type }>);
            });
          },
          `event '${type}'`,
          120_000,
        ),
    };
  }

  /** S4: no process, socket or shared memory of the run is left on any node, also of those that were killed. */
  async expectNothingLeft(runId: string, pids: readonly number[], runs = this.runs): Promise<void> {
    await until(() => pids.every((pid) => !isAlive(pid)), `processes ${pids.join(", ")} to be gone`, 30_000);
    await until(async () => (await segmentsOf(runId)).length === 0, "shared memory to be removed");
    // Agents that live keep no folder without a run.
    await until(async () => (await socketFolders(this.temporary)).length === 0, "socket folders to be removed");
    expect(await readdir(join(runs, runId))).not.toContain("runner.lock");
  }

  async close(): Promise<void> {
    const left = this.#started.filter((child) => child.exitCode === null && child.signalCode === null);
    const exits = left.map((child) => new Promise((resolve) => child.once("exit", resolve)));
    for (const child of left) child.kill("SIGKILL");
    await Promise.all(exits);
    await this.nats[Symbol.asyncDispose]();
    await this.nats.keys.remove();
    await rm(this.root, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 });
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  #spawn(
    args: readonly string[],
    stderr: "pipe" | "inherit",
    inside: readonly string[] = [],
    cwd = checkout,
  ): ChildProcess {
    const [file, ...all] = [...inside, process.execPath, ...args] as [string, ...string[]];
    const child = spawn(file, all, {
      stdio: ["ignore", "pipe", stderr],
      cwd,
      env: { ...process.env, TMPDIR: this.temporary, ...this.environment },
    });
    this.#started.push(child);
    return child;
  }
}
