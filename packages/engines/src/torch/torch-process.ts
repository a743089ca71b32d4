/**
 * The Python process of one engine: started, watched, ended.
 *
 * TP1 it ends when its standard input does, which this process holds: none outlives its parent, however that dies. One that is
 *     stopped ends with its parent on Linux (PF1).
 * TP2 it listens on a socket in a folder that only this user may enter, and answers whoever has its token.
 * TP3 whoever waits for a process that ended is told how it ended, and what it said last.
 */
import { type ChildProcessWithoutNullStreams, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";
import { createInterface } from "node:readline";
import { setTimeout as delay } from "node:timers/promises";
import { TreadleError } from "@treadle/contracts";
import { pythonPackageFolder } from "@treadle/contracts/package-folder";
import { pythonInterpreter } from "@treadle/contracts/program-rights";
import { z } from "zod";
import type { TransformerConfig } from "../embedded/transformer-config.ts";
import type { TorchConfig } from "./torch-config.ts";
import { type EngineAddress, linkSettings, loopback } from "./torch-links.ts";
import { type WeightFiles, weightFilesOf } from "./weight-files.ts";

/** The Python package of the process. It runs from there; to install it brings what it needs. */
export const torchPackageFolder = (): string => pythonPackageFolder(import.meta.url, "treadle_torch");

const keptLines = 20;
const endingMs = 5_000;

/** What an engine is made for, and there must be room for when it is loaded; `any`: for its weights. */
export type EngineUse = "any" | "training" | "scoring" | "generation";

const FirstLine = z.union([
  z.strictObject({ ready: z.literal(true) }),
  z.strictObject({ code: z.enum(["config.invalid", "device.out-of-memory"]), message: z.string() }),
]);

export class TorchProcess {
  readonly address: string;
  readonly token: string;
  /** undefined where weights travel as bytes alone */
  readonly weightFiles: WeightFiles | undefined;
  readonly #child: ChildProcessWithoutNullStreams;
  readonly #lines: string[] = [];
  /** resolves when it has ended, with the error that whoever still needs it gets */
  readonly ended: Promise<TreadleError>;
  #failure: TreadleError | undefined;
  /** why it was ended, where its own end does not say */
  #cause: string | undefined;
  #isReady = false;

  private constructor(python: string, folder: string, weightFiles: WeightFiles | undefined) {
    this.weightFiles = weightFiles;
    this.address = `unix:${join(folder, "engine.sock")}`;
    this.token = randomBytes(32).toString("hex");
    this.#child = spawn(python, ["-m", "treadle_torch"], { stdio: "pipe", env: environment() });
    // Its end is told by `ended`.
    this.#child.stdin.on("error", () => {});
    createInterface({ input: this.#child.stderr }).on("line", (line) => {
      this.#lines.push(line);
      if (this.#lines.length > keptLines) this.#lines.shift();
    });
    this.ended = new Promise((resolve) => {
      const end = (how: string) => {
        this.#failure ??= this.#describe(python, how);
        resolve(this.#failure);
        void rm(folder, { recursive: true, force: true });
        const store = weightFiles?.store;
        // The process itself has removed it, unless it was killed.
        if (store) void rm(join(store.root, store.name), { recursive: true, force: true }).catch(() => {});
      };
      this.#child.on("error", (error) => end(error.message));
      this.#child.on("close", (code, signal) => end(signal ? `ended by signal ${signal}` : `ended with code ${code}`));
    });
  }

  get pid(): number | undefined {
    return this.#child.pid;
  }

  /** Why it is no more; undefined while it runs. */
  get failure(): TreadleError | undefined {
    return this.#failure;
  }

  /**
   * An engine that is not loaded has no memory on its devices before it is restored. One of several `processes` is the first of
   * them, which starts the others and ends with each of them.
   */
  static async start(
    model: TransformerConfig,
    config: TorchConfig,
    {
      loaded = true,
      weightFiles = weightFilesOf(config, undefined),
      processes = 1,
      adapts = true,
      address = loopback,
      use = "any",
    }: {
      readonly loaded?: boolean;
      readonly adapts?: boolean;
      /** where it meets processes of other engines, which `collective` lets it */
      readonly address?: EngineAddress | undefined;
      readonly use?: EngineUse;
      readonly weightFiles?: WeightFiles | undefined;
      readonly processes?: number;
    } = {},
  ): Promise<TorchProcess> {
    const { vocabSize, contextLength, layers, width, heads, valueHead, seed, slots } = model;
    const collective = linkSettings(config, address);
    const python = pythonInterpreter(config.python, "engine.python"); // PGR1
    const folder = await mkdtemp(join(tmpdir(), "treadle-torch-"));
    const started = new TorchProcess(python, folder, weightFiles);
    const settings = {
      address: started.address,
      folder,
      token: started.token,
      rank: 0,
      processes,
      // Processes wait for each other as long as one may take to start, or a call of theirs to be answered.
      timeout_s: Math.max(config.startTimeoutMs, config.callTimeoutMs) / 1000,
      silence_s: config.healthTimeoutMs / 1000,
      threads: config.threads,
      slots,
      device: config.device,
      dtype: config.dtype,
      checkpoint_activations: config.checkpointActivations,
      compile: config.compile,
      cuda_graphs: config.cudaGraphs,
      lora: adapts && config.lora ? { alpha: 2 * config.lora.rank, ...config.lora } : null,
      loaded,
      shared: config.process === "shared",
      collective,
      use,
      weight_files: {
        store: weightFiles?.store ?? null,
        roots: weightFiles?.roots ?? [],
        on_device: weightFiles?.onDevice ?? false,
      },
      model: {
        path: config.path ?? null,
        random_weights: config.randomWeights,
        vocab_size: vocabSize,
        context_length: contextLength,
        layers,
        width,
        heads,
        value_head: valueHead,
        seed,
      },
    };
    started.#child.stdin.write(`${JSON.stringify(settings)}\n`);
    await started.#ready(config.startTimeoutMs);
    return started;
  }

  /** `cause`: for which its client ends it; the first is told. */
  async end(cause?: string): Promise<void> {
    this.#cause ??= cause;
    this.#child.stdin.end();
    await Promise.race([this.ended, delay(endingMs, undefined, { ref: false })]);
    if (this.#failure === undefined) this.#child.kill("SIGKILL");
    await this.ended;
  }

  async #ready(timeoutMs: number): Promise<void> {
    const timeout = new AbortController();
    const line = once(createInterface({ input: this.#child.stdout }), "line", { signal: timeout.signal });
    const late = delay(timeoutMs, undefined, { signal: timeout.signal, ref: false }).then(
      () =>
        new TreadleError(
          "service.failed",
          `the engine's Python process said nothing within ${timeoutMs} ms; raise engine.startTimeoutMs`,
        ),
    );
    try {
      const first = await Promise.race([line, this.ended, late]);
      if (first instanceof TreadleError) throw first;
      const said = FirstLine.parse(JSON.parse(String(first[0])));
      if ("code" in said) throw new TreadleError(said.code, said.message);
      this.#isReady = true;
    } catch (error) {
      await this.end();
      throw error;
    } finally {
      timeout.abort();
      await Promise.allSettled([line, late]);
    }
  }

  /** TP3. */
  #describe(python: string, how: string): TreadleError {
    if (this.#cause)
      return new TreadleError("service.failed", `the engine's Python process '${this.pid}' was ended: ${this.#cause}`);
    const said = this.#lines.join("\n");
    // What has been there is; only a warning names it later.
    const missing = this.#isReady ? undefined : /No module named '([\w.]+)'/.exec(said)?.[1];
    if (missing || how.includes("ENOENT")) {
      const lacks = missing ? `has no module '${missing}'` : "is not there";
      return new TreadleError(
        "config.invalid",
        `'${python}', which runs engines of kind 'torch', ${lacks}; run 'python3 -m pip install "${torchPackageFolder()}"' in an environment of its own, and set engine.python or TREADLE_PYTHON to its interpreter`,
      );
    }
    return new TreadleError(
      "service.failed",
      `the engine's Python process ${how}${said && `; it said last:\n${said}`}`,
    );
  }
}

/** The process runs the sources that belong to this version, whatever version of them is installed. */
function environment(): NodeJS.ProcessEnv {
  const sources = join(torchPackageFolder(), "src");
  const { PYTHONPATH } = process.env;
  return { ...process.env, PYTHONPATH: PYTHONPATH ? `${sources}${delimiter}${PYTHONPATH}` : sources };
}
