import { type ChildProcessByStdio, spawn } from "node:child_process";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type { Readable, Writable } from "node:stream";
import { packageFolder } from "@treadle/contracts/package-folder";
import { z } from "zod";
import type { TrackedEnd, TrackedRow, Tracker } from "./tracker-feed.ts";

export type WandbOptions = {
  readonly project: string;
  readonly entity?: string | undefined;
  readonly mode: "online" | "offline";
  readonly python: string;
  readonly runId: string;
  /** where the client keeps its files */
  readonly folder: string;
};

const Reply = z.object({ error: z.string().optional() });
type Waiting = { resolve(): void; reject(error: Error): void };

// The same file from sources and compiled: both folders have one depth.
const script = join(packageFolder(import.meta.url), "src/trackers/wandb_log.py");

/** A run of Weights & Biases, by its Python client in a process of its own, which ends with this one: its input closes. */
export class WandbTracker implements Tracker {
  readonly name = "W&B";
  readonly #options: WandbOptions;
  #process: ChildProcessByStdio<Writable, Readable, Readable> | undefined;
  #waiting: Waiting[] = [];
  #said = "";

  constructor(options: WandbOptions) {
    this.#options = options;
  }

  async open(signal: AbortSignal): Promise<void> {
    this.#process?.kill("SIGKILL");
    const { project, entity, mode, python, runId, folder } = this.#options;
    const init = { project, ...(entity && { entity }), mode, id: runId, name: runId, dir: folder, resume: "allow" };
    const child = spawn(python, [script, JSON.stringify(init)], { stdio: ["pipe", "pipe", "pipe"] });
    this.#process = child;
    child.stdin.on("error", () => {}); // its end says more
    child.stderr.setEncoding("utf8").on("data", (text: string) => {
      this.#said = (this.#said + text).slice(-500);
    });
    createInterface(child.stdout).on("line", (line) => {
      const { error } = Reply.parse(JSON.parse(line));
      const waiting = this.#waiting.shift();
      if (error === undefined) waiting?.resolve();
      else waiting?.reject(new Error(error));
    });
    const end = (why: string) => {
      for (const { reject } of this.#waiting.splice(0)) reject(new Error(`${why} ${this.#said}`.trim()));
    };
    child.on("error", (error) => end(`'${python}' did not start: ${error.message}`));
    child.on("close", (code) => end(`its process ended with exit code ${code}`));
    await this.#answer(signal);
  }

  async write(rows: readonly TrackedRow[], signal: AbortSignal): Promise<void> {
    // JSON has no infinities.
    const finite = (values: TrackedRow["values"]) =>
      Object.fromEntries(Object.entries(values).filter(([, value]) => Number.isFinite(value)));
    await Promise.all(rows.map(({ step, values }) => this.#say({ step, values: finite(values) }, signal)));
  }

  /** Whether the client is done or late, its process ends. */
  async close(end: TrackedEnd, signal: AbortSignal): Promise<void> {
    try {
      await this.#say({ exit: end === "failed" ? 1 : 0 }, signal);
      this.#process?.stdin.end();
    } catch (error) {
      this.#process?.kill("SIGKILL");
      throw error;
    }
  }

  #say(message: object, signal: AbortSignal): Promise<void> {
    if (this.#process === undefined || this.#process.exitCode !== null) {
      return Promise.reject(new Error(`its process has ended ${this.#said}`.trim()));
    }
    this.#process.stdin.write(`${JSON.stringify(message)}\n`);
    return this.#answer(signal);
  }

  #answer(signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#waiting.push({ resolve, reject });
      signal.addEventListener("abort", () => this.#process?.kill("SIGKILL"), { once: true });
    });
  }
}
