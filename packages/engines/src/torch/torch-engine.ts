import { createHash } from "node:crypto";
import {
  type Completion,
  type HostFiles,
  type LossMetrics,
  type LossSpec,
  ReleasableTag,
  type Sampling,
  type SharedWeights,
  type TrainBatch,
  TreadleError,
  type WeightLink,
  type Weights,
  type WeightTicket,
} from "@treadle/contracts";
import { z } from "zod";
import { checkArrays, checkLoss, checkPrompts, checkRows, requireValueHead } from "../embedded/batches.ts";
import { TransformerConfig } from "../embedded/transformer-config.ts";
import type {
  EngineMemory,
  GenerateOptions,
  GenerationEngine,
  OptimStep,
  PiecesToLoad,
  Publication,
  SavedPieces,
  TokenRows,
  TrainingEngine,
} from "../engine.ts";
import { resolveSampling } from "../model-engine.ts";
import { checkStep, resolveStep } from "../optimiser.ts";
import { OrderedEngine } from "../ordered-engine.ts";
import {
  checkWeights,
  initialWeightsId,
  type ParameterShape,
  sealWeights,
  sizeOf,
  weightsIdOf,
} from "../parameters.ts";
import { piecesOf } from "../pieces.ts";
import { checkTicket } from "../weight-ticket.ts";
import { checkShared, offerModule, type Rank, requireHostFiles, settingsOf } from "./module-offer.ts";
import { type Message, TorchClient, type Turn } from "./torch-client.ts";
import { TorchConfig } from "./torch-config.ts";
import { TorchGenerations } from "./torch-generations.ts";
import { type EngineAddress, TorchLinks } from "./torch-links.ts";
import {
  batchMessage,
  bytesOf,
  type Described,
  describedBy,
  floatsIn,
  lossMessage,
  memoryIn,
  publicationOf,
  scored,
  tagsMessage,
  ticketMessage,
} from "./torch-messages.ts";
import { type EngineUse, TorchProcess } from "./torch-process.ts";
import { canOpen, isOnDevice, readPublished, weightFilesOf } from "./weight-files.ts";

/** as the process names them */
const states = { weights: "WEIGHTS", gradients: "GRADIENTS", checkpoint: "CHECKPOINT" } as const;

/**
 * A causal Hugging Face model on PyTorch, in a Python process of its own (`python/treadle_torch`).
 *
 * Owns the process; parameters, gradients and optimiser live there. A version is that of the last answer.
 * TO1 calls that change what is trained go one after another, each with the next turn, and once more with the same turn where
 *     the connection was lost: the process does nothing twice.
 * TO2 a call whose process ended, or which outlives its deadline, fails with `service.failed`.
 * TO3 a process that has lost a call, or answers no health check while a call waits (HW1), is ended, and `ended` has the first cause.
 */
export class TorchEngine extends OrderedEngine implements GenerationEngine, TrainingEngine {
  readonly kind = "torch";
  readonly tellsProgress = true;
  readonly config: TransformerConfig;
  readonly #process: TorchProcess;
  readonly #client: TorchClient;
  readonly #described: Described;
  readonly #isShared: boolean;
  #withdraw: () => Promise<void> = async () => {};
  readonly #generations: TorchGenerations;
  readonly #links: TorchLinks;
  readonly ended: Promise<TreadleError>;
  #isClosed = false;
  #control: Promise<unknown> = Promise.resolve();
  #sequence = 0;
  #policyVersion = 0;
  #weightsId: string | undefined = initialWeightsId;
  /** of the ticket that published what was loaded, and is not trained since */
  #ticketChecksum: string | undefined;
  #memory: EngineMemory = { residentBytes: 0, loadedBytes: 0, hostBytes: 0 };
  /** what it keeps between calls is known once it was */
  #wasLoaded: boolean;

  private constructor(
    config: TransformerConfig,
    process: TorchProcess,
    client: TorchClient,
    described: Described,
    {
      isShared,
      isLoaded,
      settings: { collective, streamMs },
    }: { readonly isShared: boolean; readonly isLoaded: boolean; readonly settings: TorchConfig },
  ) {
    super();
    this.#isShared = isShared;
    this.#wasLoaded = isLoaded;
    this.config = config;
    this.#process = process;
    this.#client = client;
    this.#described = described;
    this.#links = new TorchLinks(client, collective);
    this.#generations = new TorchGenerations(client, described, streamMs, {
      policyVersion: () => this.#policyVersion,
      ended: () => this.#look(),
      failed: (error) => this.#failed(error),
    });
    this.ended = new Promise((resolve) => {
      void process.ended.then((error) => {
        if (!this.#isClosed) resolve(error);
      });
    });
  }

  /** Throws `config.invalid` for what is wrong with the configuration, the interpreter, the device or the model's folder. */
  static async create(
    model: z.input<typeof TransformerConfig>,
    torch: z.input<typeof TorchConfig>,
    /** false: released, without memory on its device until it is restored */
    {
      loaded = true,
      hostFiles,
      processes = 1,
      adapts = true,
      offer,
      address,
      use,
    }: {
      readonly loaded?: boolean;
      /** as which others find it that are to share its module, where `process` is `shared` */
      readonly offer?: Rank | undefined;
      /** false: without the adapters that the configuration asks for, as one that gets whole weights needs to be */
      readonly adapts?: boolean;
      /** what there must be room for: a device that is too small is refused with the arithmetic when the engine is first loaded */
      readonly use?: EngineUse;
      /** over which the model is sharded (`fully_shard`), with a device each; such an engine trains and scores, and does not generate */
      readonly processes?: number;
      /** names for the files of published weights; default: outside of any run */
      readonly hostFiles?: HostFiles | undefined;
      /** where its process meets those of other engines; default: the loopback interface */
      readonly address?: EngineAddress | undefined;
    } = {},
  ): Promise<TorchEngine> {
    const parsed = z.strictObject({ model: TransformerConfig, torch: TorchConfig }).safeParse({ model, torch });
    if (!parsed.success) {
      throw new TreadleError(
        "config.invalid",
        `torch engine's configuration refused: ${z.prettifyError(parsed.error)}`,
      );
    }
    const isShared = parsed.data.torch.process === "shared";
    if (isShared) checkShared(parsed.data.torch, processes, false);
    const files = weightFilesOf(parsed.data.torch, hostFiles);
    const process = await TorchProcess.start(parsed.data.model, parsed.data.torch, {
      loaded,
      weightFiles: files,
      processes,
      adapts,
      address,
      ...(use && { use }),
    });
    const client = await TorchClient.create(process, parsed.data.torch);
    try {
      const engine = new TorchEngine(
        parsed.data.model,
        process,
        client,
        describedBy(await client.unary("Describe", {})),
        { isShared, isLoaded: loaded, settings: parsed.data.torch },
      );
      if (!loaded) await engine.release();
      await engine.#look();
      if (isShared && offer) await engine.#offerModule(parsed.data, offer, hostFiles);
      return engine;
    } catch (error) {
      client.close();
      await process.end();
      throw error;
    }
  }

  get policyVersion(): number {
    return this.#policyVersion;
  }

  get weightsId(): string | undefined {
    return this.#weightsId;
  }

  /** What others have that share its module; absent where its process is its own. */
  get shared(): SharedWeights | undefined {
    if (!this.#isShared) return undefined;
    return { process: this.#described.epoch, policyVersion: this.#policyVersion };
  }

  /** of the Python process */
  get pid(): number | undefined {
    return this.#process.pid;
  }

  get numParameters(): number {
    return numbersIn(this.#described.layout);
  }

  /** fewer than parameters where adapters are trained */
  get numTrained(): number {
    return numbersIn(this.#described.trained);
  }

  /** what is trained, and two moments of it, in float32 */
  get #numStateBytes(): number {
    return 12 * this.numTrained;
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
    checkPrompts(prompts, options, this.#described.contextLength, this.#described.vocabSize);
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

  forwardBackward(batch: TrainBatch, loss: LossSpec): Promise<LossMetrics> {
    return this.exclusively("forwardBackward", async () => {
      checkRows(batch, this.#described.contextLength, this.#described.vocabSize);
      checkArrays(batch);
      checkLoss(batch, loss, this.config.valueHead);
      const { header, data } = batchMessage(batch);
      const reply = await this.#inNextTurn((turn) =>
        this.#client.upload("ForwardBackward", { ...header, turn, loss: lossMessage(loss) }, [data]),
      );
      this.refuseReleased("forwardBackward");
      const number = (name: string) => reply[name] as number;
      return {
        loss: number("loss"),
        weight: number("weight"),
        kl: number("kl"),
        entropy: number("entropy"),
        clipFraction: number("clip_fraction"),
        valueLoss: number("value_loss"),
      };
    });
  }

  logprobs(rows: TokenRows): Promise<Float32Array> {
    return this.#score("logprobs", rows);
  }

  async values(rows: TokenRows): Promise<Float32Array> {
    requireValueHead(this.config.valueHead);
    return this.#score("values", rows);
  }

  optimStep(step: OptimStep): Promise<{ readonly gradNorm: number }> {
    return this.exclusively("optimStep", async () => {
      const resolved = resolveStep(step);
      checkStep(resolved);
      const { learningRate, scale, maxGradNorm, beta1, beta2, epsilon, weightDecay } = resolved;
      const bound = Number.isFinite(maxGradNorm) ? { max_grad_norm: maxGradNorm } : {};
      const request = {
        learning_rate: learningRate,
        scale,
        ...bound,
        beta1,
        beta2,
        epsilon,
        weight_decay: weightDecay,
      };
      const reply = await this.#inNextTurn((turn) => this.#client.unary("OptimStep", { ...request, turn }));
      this.#policyVersion = reply["policy_version"] as number;
      this.#weightsId = undefined;
      this.#ticketChecksum = undefined;
      await this.#look(); // the first step makes what is kept of gradients
      return { gradNorm: reply["grad_norm"] as number };
    });
  }

  gradients(): Promise<Float32Array> {
    return this.inTurn(() => this.#read("gradients"));
  }

  setGradients(gradients: Float32Array): Promise<void> {
    if (gradients.length !== this.numTrained) {
      throw new TreadleError(
        "engine.invalid-request",
        `gradients have '${gradients.length}' entries where '${this.numTrained}' parameters are trained; sum those of the same model`,
      );
    }
    return this.inTurn(() => this.#write("gradients", [gradients]));
  }

  exportWeights(): Promise<Weights> {
    return this.inTurn(async () => {
      const flat = await this.#read("weights");
      let offset = 0;
      const parameters = this.#described.layout.map(({ name, shape }) => {
        const size = sizeOf({ shape });
        const data = flat.slice(offset, offset + size);
        offset += size;
        return { name, shape, data };
      });
      const weights = sealWeights({ policyVersion: this.#policyVersion, parameters });
      const ticketChecksum = this.#ticketChecksum;
      return ticketChecksum === undefined ? weights : { ...weights, ticketChecksum };
    });
  }

  loadWeights(weights: Weights): Promise<void> {
    return this.exclusively("loadWeights", async () => {
      checkWeights(this.#described.layout, weights);
      const tensors = weights.parameters.map(({ data }) => data);
      await this.#replacing(() => this.#write("weights", tensors, weights.policyVersion));
      this.#weightsId = weightsIdOf(weights);
      this.#ticketChecksum = weights.ticketChecksum;
    });
  }

  async opens(ticket: WeightTicket): Promise<boolean> {
    const { device } = ticket;
    if (device && device.uuid !== this.#described.deviceUuid) return false;
    const isOfRun = await canOpen(ticket, this.#process.weightFiles?.roots ?? []);
    return isOfRun && (device === undefined || isOnDevice(ticket));
  }

  linkTo(ticket: WeightTicket): string | undefined {
    return this.#links.to(ticket);
  }

  join(ticket: WeightTicket, link: WeightLink): Promise<void> {
    return this.#links.join(ticket, link);
  }

  offer(known: string): Promise<WeightLink> {
    return this.#links.offer(known);
  }

  /** The process checks what it reads, maps or is sent, tensor by tensor, and replaces all parameters at once. */
  loadTicket(ticket: WeightTicket, link?: WeightLink): Promise<void> {
    return this.exclusively("loadTicket", async () => {
      checkTicket(this.#described.layout, ticket);
      const request = ticketMessage(ticket, link);
      const numBytes = link ? 4 * this.numParameters : 0;
      const reply = await this.#replacing(() =>
        this.#inNextTurn((turn) => this.#client.unary("Load", { ...request, turn }, numBytes)),
      ).catch((error: unknown) => {
        if (link) this.#links.failed(ticket, error);
        throw error;
      });
      this.#policyVersion = reply["policy_version"] as number;
      this.#weightsId = weightsIdOf(ticket);
      this.#ticketChecksum = ticket.checksum;
    });
  }

  /**
   * In the numbers that passes compute with: where they are bfloat16, the rounded weights and not the float32 ones behind them.
   * They take half the bytes, and are what the trainer's log-probabilities are of.
   */
  async publish(): Promise<Publication | undefined> {
    if (!this.#process.weightFiles) return undefined;
    return this.inTurn(async () => {
      const publication = this.#announced(await this.#whole(this.#client.unary("Publish", {})));
      await this.#look(); // weights on a device take room there
      return publication;
    });
  }

  writeFile({ folder }: WeightTicket): Promise<Publication> {
    return this.inTurn(async () =>
      this.#announced(await this.#client.unary("WriteFile", { folder }, 4 * this.numParameters)),
    );
  }

  readTicket(ticket: WeightTicket): Promise<Weights> {
    return readPublished(ticket);
  }

  /** The process makes a copy in its turn, and then writes or sends it. */
  save(): Required<SavedPieces> {
    const copied = this.inTurn(async () => {
      const { copy } = await this.#whole(this.#client.unary("Save", {}));
      return { copy };
    });
    copied.catch(() => {}); // whoever reads or writes is told
    const client = this.#client;
    const numBytes = this.#numStateBytes;
    return {
      async *[Symbol.asyncIterator]() {
        yield* client.download("ReadSaved", await copied);
      },
      async writeTo(path) {
        const reply = await client.unary("WriteSaved", { ...(await copied), path }, numBytes);
        return { sizeBytes: reply["num_bytes"] as number, sha256: reply["sha256"] as string };
      },
    };
  }

  /** The process checks the checkpoint by the checksum that it ends with. */
  load(checkpoint: PiecesToLoad): Promise<void> {
    return this.exclusively("load", async () => {
      const path = await checkpoint.checkedPath?.();
      const reply = await (path === undefined
        ? this.#inOneTurn((turn) => this.#client.upload("Write", { state: states.checkpoint, turn }, checkpoint))
        : this.#inNextTurn((turn) => this.#client.unary("LoadFile", { path, turn }, this.#numStateBytes)));
      this.#policyVersion = reply["policy_version"] as number;
      this.#weightsId = undefined;
      this.#ticketChecksum = undefined;
    });
  }

  override async release(tags: readonly ReleasableTag[] = ReleasableTag.options): Promise<void> {
    if (tags.length === 0) return; // a message without any is of all
    const released = super.release(tags);
    await this.#controlled("Release", tagsMessage(tags));
    await released;
    await this.#look();
  }

  override async restore(tags: readonly ReleasableTag[] = ReleasableTag.options): Promise<void> {
    if (tags.length === 0) return;
    await this.#controlled("Restore", tagsMessage(tags));
    await super.restore(tags);
    this.#wasLoaded = true;
    await this.#look();
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    // A process that is gone has nothing left to release.
    if (!this.#process.failure) await this.release().catch(() => {});
    this.#client.close();
    await this.#withdraw();
    await this.#process.end();
  }

  async #offerModule(
    { model, torch }: { readonly model: TransformerConfig; readonly torch: TorchConfig },
    rank: Rank,
    hostFiles: HostFiles | undefined,
  ): Promise<void> {
    const { device: computesOn } = await this.#client.unary("Health", {});
    const { address, token } = this.#process;
    const settings = settingsOf(model, torch);
    const { component, rank: number, worldSize, devices } = rank;
    const offer = { component, rank: number, worldSize, devices: [...devices], address, token, settings };
    this.#client.watch();
    this.#withdraw = await offerModule({ ...offer, computesOn: computesOn as string }, requireHostFiles(hostFiles));
    void this.#process.ended.then(this.#withdraw);
  }

  #announced(reply: Message): Publication {
    const publication = publicationOf(reply);
    return "ticket" in publication ? { ticket: { ...publication.ticket, ...this.#links.announced } } : publication;
  }

  #score(output: "logprobs" | "values", rows: TokenRows): Promise<Float32Array> {
    return this.exclusively(output, async () => {
      checkRows(rows, this.#described.contextLength, this.#described.vocabSize);
      const result = await this.#whole(scored(this.#client, output, rows));
      this.refuseReleased(output);
      return result;
    });
  }

  #read(state: "weights" | "gradients"): Promise<Float32Array> {
    const length = state === "weights" ? this.numParameters : this.numTrained;
    return this.#whole(floatsIn(this.#client.download("Read", { state: states[state] }), length));
  }

  async #whole<T>(call: Promise<T>): Promise<T> {
    try {
      return await call;
    } catch (error) {
      this.#failed(error);
      throw error;
    }
  }

  /** TO3: what it holds, and whether it ever answers again, nobody knows. */
  #failed(error: unknown): void {
    if (this.#isLost(error)) void this.#process.end((error as TreadleError).message);
  }

  async #write(state: "weights" | "gradients", arrays: readonly Float32Array[], policyVersion = 0): Promise<void> {
    const hash = createHash("sha256");
    let numBytes = 0;
    for (const piece of arrays.flatMap((array) => [...piecesOf(array)])) {
      hash.update(piece);
      numBytes += piece.byteLength;
    }
    const header = {
      state: states[state],
      num_bytes: numBytes,
      sha256: hash.digest(),
      policy_version: policyVersion,
    };
    const pieces = arrays.map(bytesOf);
    const reply = await this.#inNextTurn((turn) => this.#client.upload("Write", { ...header, turn }, pieces));
    this.#policyVersion = reply["policy_version"] as number;
  }

  /** Meanwhile nobody can say which weights a token is of; those before stay where others are refused. */
  async #replacing<T>(load: () => Promise<T>): Promise<T> {
    const before = this.#weightsId;
    this.#weightsId = undefined;
    try {
      return await load();
    } catch (error) {
      this.#weightsId = before;
      throw error;
    }
  }

  /** TO1. */
  #inNextTurn(act: (turn: Turn) => Promise<Message>): Promise<Message> {
    return this.#inOneTurn((turn) =>
      act(turn).catch((error: unknown) => {
        if (!this.#isLost(error)) throw error;
        return act(turn);
      }),
    );
  }

  /** TO1, for what cannot be said again. */
  async #inOneTurn(act: (turn: Turn) => Promise<Message>): Promise<Message> {
    try {
      return await act({ epoch: this.#described.epoch, sequence: ++this.#sequence });
    } catch (error) {
      this.#failed(error);
      throw error;
    }
  }

  #isLost(error: unknown): boolean {
    return error instanceof TreadleError && error.code === "service.failed" && !this.#process.failure;
  }

  /** One after another, whatever else waits. */
  #controlled(method: "Pause" | "Resume" | "Release" | "Restore", request: Message = {}): Promise<void> {
    const turn = this.#control.then(async () => {
      await this.#whole(this.#client.unary(method, request));
    });
    this.#control = turn.catch(() => {});
    return turn;
  }

  async #look(): Promise<void> {
    const reply = await this.#client.unary("Memory", {});
    const sharedAs = this.#isShared ? this.#described.epoch : undefined;
    this.#memory = memoryIn(reply, this.#memory, { wasLoaded: this.#wasLoaded, sharedAs });
  }
}

const numbersIn = (layout: readonly ParameterShape[]): number =>
  layout.reduce((sum, parameter) => sum + sizeOf(parameter), 0);
