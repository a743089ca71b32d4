/**
 * A NATS server of a test's or benchmark's own: the one in PATH, else the distribution's package unpacked into a cache
 * folder, which needs no root. It listens on a free port, keeps its streams in a folder of its own, and ends with its
 * handle.
 */
import { type ChildProcess, execFile, spawn } from "node:child_process";
import { randomInt } from "node:crypto";
import { existsSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { unpackPackages } from "./debian-packages.ts";

const run = promisify(execFile);

export type NatsServerOptions = {
  /** default 127.0.0.1 */
  readonly host?: string;
  /** default: a free one */
  readonly port?: number;
  /** more arguments for nats-server */
  readonly args?: readonly string[];
  /** the command by which another is run elsewhere, as in a network namespace */
  readonly inside?: readonly string[];
};

export class NatsServer implements AsyncDisposable {
  readonly host: string;
  readonly port: number;
  readonly #binary: string;
  readonly #folder: string;
  readonly #args: readonly string[];
  readonly #inside: readonly string[];
  #child: ChildProcess | undefined;
  readonly #endWithUs = () => this.#child?.kill("SIGKILL");

  constructor(binary: string, folder: string, host: string, port: number, options: NatsServerOptions) {
    this.#binary = binary;
    this.#folder = folder;
    this.host = host;
    this.port = port;
    this.#args = options.args ?? [];
    this.#inside = options.inside ?? [];
    process.once("exit", this.#endWithUs);
  }

  get url(): string {
    return `nats://${this.host}:${this.port}`;
  }

  /** Starts it, or starts it again with what it had kept; one that runs goes on. */
  async start(): Promise<void> {
    if (this.#isRunning) return;
    const args = ["-a", this.host, "-p", String(this.port), "-js", "-sd", this.#folder, ...this.#args];
    const [file, ...all] = [...this.#inside, this.#binary, ...args] as [string, ...string[]];
    const child = spawn(file, all, { stdio: ["ignore", "ignore", "pipe"] });
    this.#child = child;
    await ready(child.stderr, exitOf(child));
  }

  async stop(signal: "SIGTERM" | "SIGKILL" = "SIGTERM"): Promise<void> {
    const child = this.#child;
    if (child === undefined || !this.#isRunning) return;
    const exited = exitOf(child);
    child.kill(signal);
    const timer = setTimeout(() => child.kill("SIGKILL"), 5000);
    await exited;
    clearTimeout(timer);
  }

  get #isRunning(): boolean {
    return this.#child !== undefined && this.#child.exitCode === null && this.#child.signalCode === null;
  }

  /** Suspends or resumes it. */
  signal(signal: "SIGSTOP" | "SIGCONT"): void {
    this.#child?.kill(signal);
  }

  async version(): Promise<string> {
    const { stdout } = await run(this.#binary, ["--version"]);
    return stdout.trim().replace(/^.*v/, "");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
    process.off("exit", this.#endWithUs);
    await rm(this.#folder, { recursive: true, force: true });
  }
}

/** Rejects with the reason when no server can be had. */
export async function startNatsServer(options: NatsServerOptions = {}): Promise<NatsServer> {
  const binary = await findServer();
  const folder = await mkdtemp(join(tmpdir(), "treadle-nats-"));
  const port = options.port ?? (await freePort());
  const server = new NatsServer(binary, folder, options.host ?? "127.0.0.1", port, options);
  try {
    await server.start();
    return server;
  } catch (error) {
    await server[Symbol.asyncDispose]();
    throw error;
  }
}

const exitOf = (child: ChildProcess): Promise<void> => new Promise((resolve) => child.once("exit", () => resolve()));

/** Its log goes to standard error; what it prints when it listens is the signal. */
function ready(log: NodeJS.ReadableStream, exited: Promise<void>): Promise<void> {
  return new Promise((resolve, reject) => {
    let text = "";
    const timer = setTimeout(() => reject(new Error("nats-server was not ready within 10 s")), 10_000);
    log.on("data", (bytes: Buffer) => {
      if (text.length < 65_536) text += bytes.toString();
      if (!text.includes("Server is ready")) return;
      clearTimeout(timer);
      resolve();
    });
    void exited.then(() => {
      clearTimeout(timer);
      reject(new Error(`nats-server ended at once: ${text.slice(-200)}`));
    });
  });
}

async function findServer(): Promise<string> {
  for (const folder of (process.env["PATH"] ?? "").split(":")) {
    if (folder && existsSync(join(folder, "nats-server"))) return join(folder, "nats-server");
  }
  const unpacked = await unpackPackages("nats-server", ["nats-server"]);
  for (const place of ["usr/sbin", "usr/bin"]) {
    if (existsSync(join(unpacked, place, "nats-server"))) return join(unpacked, place, "nats-server");
  }
  throw new Error("the package 'nats-server' holds no such program");
}

/**
 * Below the ports that systems give to outgoing connections, from 32768 or higher: whoever ends and listens there again
 * finds it free.
 */
export async function freePort(): Promise<number> {
  for (let tries = 0; tries < 100; tries++) {
    const port = randomInt(10_000, 32_768);
    if (await isFree(port)) return port;
  }
  throw new Error("none of 100 ports is free");
}

function isFree(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const probe = createServer();
    probe.once("error", () => resolve(false));
    probe.listen(port, "127.0.0.1", () => probe.close(() => resolve(true)));
  });
}
