/** What every engine does that computes in a Python process: it generates and scores there, and has its memory moved. Whose process that is, it does not know. */
import { type Completion, ReleasableTag, type Sampling, type TreadleError } from "@treadle/contracts";
import { checkPrompts, checkRows, requireValueHead } from "../embedded/batches.ts";
import type { TransformerConfig } from "../embedded/transformer-config.ts";
import type { EngineMemory, GenerateOptions, TokenRows } from "../engine.ts";
import { resolveSampling } from "../model-engine.ts";
import { refuseOnNewWeights } from "../new-weights.ts";
import { OrderedEngine } from "../ordered-engine.ts";
import type { Message, TorchClient } from "./torch-client.ts";
import type { StreamMs } from "./torch-config.ts";
import { TorchGenerations } from "./torch-generations.ts";
import { type Described, memoryIn, scored, tagsMessage } from "./torch-messages.ts";

export type InProcess = {
  readonly config: TransformerConfig;
  readonly client: TorchClient;
  readonly described: Described;
  readonly streamMs: StreamMs;
  /** resolves when the process has ended, or is taken for ended */
  readonly processEnded: Promise<TreadleError>;
  /** whether it has memory on its device already */
  readonly isLoaded: boolean;
  /** whether others count what it has, too */
  readonly isShared: boolean;
};

export abstract class TorchClientEngine extends OrderedEngine {
  readonly kind = "torch";
  readonly tellsProgress: boolean;
  readonly config: TransformerConfig;
  /** not when it is closed first */
  readonly ended: Promise<TreadleError>;
  protected readonly client: TorchClient;
  protected readonly described: Described;
  protected readonly isShared: boolean;
  protected isClosed = false;
  readonly #generations: TorchGenerations;
  #control: Promise<unknown> = Promise.resolve();
  #memory: EngineMemory = { residentBytes: 0, loadedBytes: 0, hostBytes: 0 };
  /** what it keeps between calls is known once it was */
  #wasLoaded: boolean;

  protected constructor({ config, client, described, streamMs, processEnded, isLoaded, isShared }: InProcess) {
    super();
    this.config = config;
    this.client = client;
    this.described = described;
    this.isShared = isShared;
    this.tellsProgress = streamMs !== "never";
    if (!isLoaded) void super.release(); // until it is restored
    this.#wasLoaded = isLoaded;
    this.#generations = new TorchGenerations(client, described, streamMs === "never" ? undefined : streamMs, {
      policyVersion: () => this.policyVersion,
      ended: () => this.look(),
      failed: (error) => this.failed(error),
    });
    this.ended = new Promise((resolve) => {
      void processEnded.then((error) => {
        if (!this.isClosed) resolve(error);
      });
    });
  }

  abstract get policyVersion(): number;

  /** A call has failed, or has been lost. */
  protected abstract failed(error: unknown): void;

  /** What the process says of itself, of which the memory is known already. */
  protected looked(_reply: Message): void {}

  /** Of these tags, those that the process restores for it. */
  protected restorable(tags: readonly ReleasableTag[]): readonly ReleasableTag[] {
    return tags;
  }

  memory(): EngineMemory {
    return this.#memory;
  }

  async generate(
    prompts: readonly Int32Array[],
    sampling: Sampling,
    options: GenerateOptions = {},
  ): Promise<Completion[]> {
    this.refuseReleased("generate");
    const resolved = resolveSampling(sampling);
    refuseOnNewWeights(this.kind, options);
    checkPrompts(prompts, options, this.described.contextLength, this.described.vocabSize);
    return this.computing(this.#generations.generate(prompts, resolved, options));
  }

  abort(): void {
    this.#generations.abort();
  }

  pause(): Promise<void> {
    return this.#controlled("Pause");
  }

  resume(): void {
    this.#controlled("Resume").catch(() => {}); // whoever waits for a token is told
  }

  logprobs(rows: TokenRows): Promise<Float32Array> {
    return this.#score("logprobs", rows);
  }

  async values(rows: TokenRows): Promise<Float32Array> {
    requireValueHead(this.config.valueHead);
    return this.#score("values", rows);
  }

  override async release(tags: readonly ReleasableTag[] = ReleasableTag.options): Promise<void> {
    if (tags.length === 0) return; // a message without any is of all
    const released = super.release(tags);
    await this.#controlled("Release", tagsMessage(tags));
    await released;
    await this.look();
  }

  override async restore(tags: readonly ReleasableTag[] = ReleasableTag.options): Promise<void> {
    if (tags.length === 0) return;
    const restored = this.restorable(tags);
    if (restored.length > 0) await this.#controlled("Restore", tagsMessage(restored));
    await super.restore(tags);
    this.#wasLoaded = true;
    await this.look();
  }

  protected async whole<T>(call: Promise<T>): Promise<T> {
    try {
      return await call;
    } catch (error) {
      this.failed(error);
      throw error;
    }
  }

  protected async look(): Promise<void> {
    const reply = await this.client.unary("Memory", {});
    this.looked(reply);
    const sharedAs = this.isShared ? this.described.epoch : undefined;
    this.#memory = memoryIn(reply, this.#memory, { wasLoaded: this.#wasLoaded, sharedAs });
  }

  #score(output: "logprobs" | "values", rows: TokenRows): Promise<Float32Array> {
    return this.exclusively(output, async () => {
      checkRows(rows, this.described.contextLength, this.described.vocabSize);
      const result = await this.whole(scored(this.client, output, rows));
      this.refuseReleased(output);
      return result;
    });
  }

  /** One after another, whatever else waits. */
  #controlled(method: "Pause" | "Resume" | "Release" | "Restore", request: Message = {}): Promise<void> {
    const turn = this.#control.then(async () => {
      await this.whole(this.client.unary(method, request));
    });
    this.#control = turn.catch(() => {});
    return turn;
  }
}
