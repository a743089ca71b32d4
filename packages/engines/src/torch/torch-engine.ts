import { createHash } from "node:crypto";
import {
  type HostFiles,
  type LossMetrics,
  type LossSpec,
  type SharedWeights,
  type TrainBatch,
  TreadleError,
  type WeightLink,
  type Weights,
  type WeightTicket,
} from "@treadle/contracts";
import { z } from "zod";
import { checkArrays, checkLoss, checkRows } from "../embedded/batches.ts";
import { TransformerConfig } from "../embedded/transformer-config.ts";
import type {
  FileToLoad,
  FileToSave,
  GenerationEngine,
  OptimStep,
  PiecesToLoad,
  Publication,
  SavedPieces,
  TrainingEngine,
} from "../engine.ts";
import { checkStep, resolveStep } from "../optimiser.ts";
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
import { type InProcess, TorchClientEngine } from "./torch-client-engine.ts";
import { TorchConfig } from "./torch-config.ts";
import { type EngineAddress, TorchLinks } from "./torch-links.ts";
import {
  batchMessage,
  bytesOf,
  describedBy,
  floatsIn,
  lossMessage,
  publicationOf,
  ticketMessage,
} from "./torch-messages.ts";
import { type EngineUse, TorchProcess } from "./torch-process.ts";
import { savedFiles, savedPieces } from "./torch-states.ts";
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
export class TorchEngine extends TorchClientEngine implements GenerationEngine, TrainingEngine {
  readonly #process: TorchProcess;
  readonly #numProcesses: number;
  readonly #links: TorchLinks;
  #withdraw: () => Promise<void> = async () => {};
  #sequence = 0;
  #policyVersion = 0;
  #weightsId: string | undefined = initialWeightsId;
  /** of the ticket that published what was loaded, and is not trained since */
  #ticketChecksum: string | undefined;

  private constructor(
    process: TorchProcess,
    made: Pick<InProcess, "config" | "client" | "described" | "isLoaded" | "isShared">,
    { processes, collective, streamMs }: Pick<TorchConfig, "collective" | "streamMs"> & { readonly processes: number },
  ) {
    super({ ...made, streamMs, processEnded: process.ended });
    this.#process = process;
    this.#numProcesses = processes;
    this.#links = new TorchLinks(made.client, collective);
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
      const described = describedBy(await client.unary("Describe", {}));
      const engine = new TorchEngine(
        process,
        { config: parsed.data.model, client, described, isLoaded: loaded, isShared },
        { ...parsed.data.torch, processes },
      );
      if (!loaded) await engine.release();
      await engine.look();
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
    if (!this.isShared) return undefined;
    return { process: this.described.epoch, policyVersion: this.#policyVersion };
  }

  /** of the Python process */
  get pid(): number | undefined {
    return this.#process.pid;
  }

  get numParameters(): number {
    return numbersIn(this.described.layout);
  }

  /** fewer than parameters where adapters are trained */
  get numTrained(): number {
    return numbersIn(this.described.trained);
  }

  /** what is trained, and two moments of it, in float32 */
  get #numStateBytes(): number {
    return 12 * this.numTrained;
  }

  forwardBackward(batch: TrainBatch, loss: LossSpec): Promise<LossMetrics> {
    return this.exclusively("forwardBackward", async () => {
      checkRows(batch, this.described.contextLength, this.described.vocabSize);
      checkArrays(batch);
      checkLoss(batch, loss, this.config.valueHead);
      const { header, data } = batchMessage(batch);
      const reply = await this.#inNextTurn((turn) =>
        this.client.upload("ForwardBackward", { ...header, turn, loss: lossMessage(loss) }, [data]),
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
      const reply = await this.#inNextTurn((turn) => this.client.unary("OptimStep", { ...request, turn }));
      this.#policyVersion = reply["policy_version"] as number;
      this.#weightsId = undefined;
      this.#ticketChecksum = undefined;
      await this.look(); // the first step makes what is kept of gradients
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
      const parameters = this.described.layout.map(({ name, shape }) => {
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
      checkWeights(this.described.layout, weights);
      const tensors = weights.parameters.map(({ data }) => data);
      await this.#replacing(() => this.#write("weights", tensors, weights.policyVersion));
      this.#weightsId = weightsIdOf(weights);
      this.#ticketChecksum = weights.ticketChecksum;
    });
  }

  async opens(ticket: WeightTicket): Promise<boolean> {
    const { device } = ticket;
    if (device && device.uuid !== this.described.deviceUuid) return false;
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
      checkTicket(this.described.layout, ticket);
      const request = ticketMessage(ticket, link);
      const numBytes = link ? 4 * this.numParameters : 0;
      const reply = await this.#replacing(() =>
        this.#inNextTurn((turn) => this.client.unary("Load", { ...request, turn }, numBytes)),
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
      const publication = this.#announced(await this.whole(this.client.unary("Publish", {})));
      if (this.described.deviceUuid !== "") await this.look(); // weights on a device take room there
      return publication;
    });
  }

  writeFile({ folder }: WeightTicket): Promise<Publication> {
    return this.inTurn(async () =>
      this.#announced(await this.client.unary("WriteFile", { folder }, 4 * this.numParameters)),
    );
  }

  readTicket(ticket: WeightTicket): Promise<Weights> {
    return readPublished(ticket);
  }

  /** The process makes a copy in its turn, and then writes or sends it. */
  save(): Required<SavedPieces> {
    return savedPieces(this.client, this.#copied("Save"), this.#numStateBytes);
  }

  /** Each process makes a copy of what it has in its turn, and then writes it. */
  saveFiles(): FileToSave[] | undefined {
    const processes = this.#numProcesses;
    if (processes === 1) return undefined;
    return savedFiles(this.client, this.#copied("SaveShards"), { processes, numBytes: this.#numStateBytes });
  }

  /** The process checks the checkpoint by the checksum that it ends with. */
  load(checkpoint: PiecesToLoad): Promise<void> {
    return this.exclusively("load", async () => {
      const path = await checkpoint.checkedPath?.();
      this.#resumed(
        await (path === undefined
          ? this.#inOneTurn((turn) => this.client.upload("Write", { state: states.checkpoint, turn }, checkpoint))
          : this.#inNextTurn((turn) => this.client.unary("LoadFile", { path, turn }, this.#numStateBytes))),
      );
    });
  }

  /** Each process reads the rows that it has, of whichever files have them, and checks them. */
  loadFiles(files: readonly FileToLoad[]): Promise<void> {
    return this.exclusively("load", async () => {
      const paths = await Promise.all(files.map((file) => file.checkedPath()));
      const load = (turn: Turn) => this.client.unary("LoadShards", { paths, turn }, this.#numStateBytes);
      this.#resumed(await this.#inNextTurn(load));
    });
  }

  #resumed(reply: Message): void {
    this.#policyVersion = reply["policy_version"] as number;
    this.#weightsId = undefined;
    this.#ticketChecksum = undefined;
  }

  #copied(method: "Save" | "SaveShards"): Promise<{ readonly copy: unknown }> {
    const copied = this.inTurn(async () => ({ copy: (await this.whole(this.client.unary(method, {})))["copy"] }));
    copied.catch(() => {}); // whoever reads or writes is told
    return copied;
  }

  async close(): Promise<void> {
    this.isClosed = true;
    // A process that is gone has nothing left to release.
    if (!this.#process.failure) await this.release().catch(() => {});
    this.client.close();
    await this.#withdraw();
    await this.#process.end();
  }

  async #offerModule(
    { model, torch }: { readonly model: TransformerConfig; readonly torch: TorchConfig },
    rank: Rank,
    hostFiles: HostFiles | undefined,
  ): Promise<void> {
    const { device: computesOn } = await this.client.unary("Health", {});
    const { address, token } = this.#process;
    const settings = settingsOf(model, torch);
    const { component, rank: number, worldSize, devices } = rank;
    const offer = { component, rank: number, worldSize, devices: [...devices], address, token, settings };
    this.client.watch();
    this.#withdraw = await offerModule({ ...offer, computesOn: computesOn as string }, requireHostFiles(hostFiles));
    void this.#process.ended.then(this.#withdraw);
  }

  #announced(reply: Message): Publication {
    const publication = publicationOf(reply);
    return "ticket" in publication ? { ticket: { ...publication.ticket, ...this.#links.announced } } : publication;
  }

  #read(state: "weights" | "gradients"): Promise<Float32Array> {
    const length = state === "weights" ? this.numParameters : this.numTrained;
    return this.whole(floatsIn(this.client.download("Read", { state: states[state] }), length));
  }

  /** TO3: what it holds, and whether it ever answers again, nobody knows. */
  protected override failed(error: unknown): void {
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
    const reply = await this.#inNextTurn((turn) => this.client.upload("Write", { ...header, turn }, pieces));
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
      return await act({ epoch: this.described.epoch, sequence: ++this.#sequence });
    } catch (error) {
      this.failed(error);
      throw error;
    }
  }

  #isLost(error: unknown): boolean {
    return error instanceof TreadleError && error.code === "service.failed" && !this.#process.failure;
  }
}

const numbersIn = (layout: readonly ParameterShape[]): number =>
  layout.reduce((sum, parameter) => sum + sizeOf(parameter), 0);
