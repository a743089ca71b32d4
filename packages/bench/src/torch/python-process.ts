import { type ChildProcessWithoutNullStreams, execFile, spawn } from "node:child_process";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { promisify } from "node:util";
import { pythonPackageFolder } from "@treadle/contracts/package-folder";
import type { TransformerConfig } from "@treadle/engines";

/** The interpreter that engines of kind `torch` take, too. */
const interpreter = (): string => process.env["TREADLE_PYTHON"] ?? "python3";

/** Why engines on PyTorch cannot be measured here; undefined where they can. */
export const lacksTorch = (): Promise<string | undefined> =>
  promisify(execFile)(interpreter(), ["-c", "import torch, transformers, grpc"]).then(
    () => undefined,
    () => `PyTorch, which '${interpreter()}' does not import`,
  );

/** As Python's `ModelOptions` name the sizes of a model that it draws. */
export function modelInPython({ vocabSize, contextLength, layers, width, heads, seed }: TransformerConfig) {
  const sizes = { vocab_size: vocabSize, context_length: contextLength, layers, width, heads };
  return { path: null, ...sizes, value_head: false, seed };
}

/** A script of `python/treadle_torch/bench` that answers each line with a line. */
export class PythonProcess implements AsyncDisposable {
  readonly #script: string;
  readonly #child: ChildProcessWithoutNullStreams;
  readonly #lines: AsyncIterator<string>;
  #said = "";

  constructor(script: string, args: readonly string[] = []) {
    this.#script = script;
    const path = join(pythonPackageFolder(import.meta.url, "treadle_torch"), "bench", script);
    this.#child = spawn(interpreter(), [path, ...args], { stdio: "pipe" });
    this.#child.stdin.on("error", () => {}); // it has ended, as whoever waits for a line is told
    this.#child.stderr.on("data", (data) => {
      this.#said = `${this.#said}${data}`.slice(-2000);
    });
    this.#lines = createInterface({ input: this.#child.stdout })[Symbol.asyncIterator]();
  }

  write(line: string): void {
    this.#child.stdin.write(`${line}\n`);
  }

  async line(): Promise<string> {
    const { value, done } = await this.#lines.next();
    if (done) throw new Error(`'${this.#script}' has ended: ${this.#said}`);
    return value;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const ended = new Promise((resolve) => this.#child.once("close", resolve));
    if (this.#child.exitCode === null && this.#child.signalCode === null) {
      this.#child.kill("SIGKILL");
      await ended;
    }
  }
}
