import { randomBytes } from "node:crypto";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import {
  type Clock,
  type Completion,
  type HostFiles,
  type ReleasableTag,
  type Sampling,
  TreadleError,
  type Weights,
  type WeightTicket,
} from "@treadle/contracts";
import { systemClock } from "@treadle/transport";
import { z } from "zod";
import { checkPrompts } from "../embedded/batches.ts";
import { Gate } from "../embedded/gate.ts";
import { TransformerConfig } from "../embedded/transformer-config.ts";
import type { EngineMemory, GenerateOptions, GenerationEngine } from "../engine.ts";
import { checkBegun, resolveSampling } from "../model-engine.ts";
import { refuseOnNewWeights } from "../new-weights.ts";
import { OrderedEngine } from "../ordered-engine.ts";
import { initialWeightsId, weightsIdOf } from "../parameters.ts";
import { canOpen, type WeightFiles, weightFilesOf } from "../torch/weight-files.ts";
import { refusedTicket } from "../weight-ticket.ts";
import { ConnectionLost, type HttpClient } from "./http-client.ts";
import type { LaunchedServer } from "./launched-server.ts";
import type { MadeFolder, ModelFolder } from "./model-folder.ts";
import { type OpenServer, openServer } from "./open-server.ts";
import { probeLogprobs } from "./probe.ts";
import { Progress } from "./progress.ts";
import { type SequenceRequest, Sequences } from "./sequences.ts";
import { type ServerConfig, SglangConfig, VllmConfig } from "./server-config.ts";
import { ServerMemory } from "./server-memory.ts";
import { type ServerProtocol, serverTags, type TokenPart } from "./server-protocol.ts";
import { ServerWeights } from "./server-weights.ts";
import { diskError, makeWeightsFolder } from "./weights-folder.ts";

const mib = 2 ** 20;
/** how often a request is made once more after its connection was lost, and an abort while its request goes on */
const maxLosses = 2;
const abortEveryMs = 1_000;

export type ServerOptions = {
  /** of the ranks of a component; default 0 */
  readonly rank?: number | undefined;
  /** the accelerators of the rank, on which its own server computes; default: none */
  readonly devices?: readonly number[] | undefined;
  /** takes what its own server prints */
  readonly log?: ((line: string) => void) | undefined;
  /** takes what a person should know of the server */
  readonly warn?: ((message: string) => void) | undefined;
  /** of deadlines; default: this machine's */
  readonly clock?: Clock | undefined;
  /** where trainers of this run publish weights; default: where those do that nobody has told of a run */
  readonly hostFiles?: HostFiles | undefined;
};

/**
 * A model that SGLang or vLLM serves, attached by its address, or started here. It generates; what trains is elsewhere.
 *
 * Owns the server's requests, and its weights (`ServerWeights`): nobody else may use it meanwhile. Weights reach it as a
 * folder that the server reads, with the file that a trainer on PyTorch has published, where this process can open it, and else
 * with one that Node writes.
 * AS5 a call that generates or ends is made once more where its connection was lost; any other is not.
 * AS6 what runs on the server is ended there before weights change, memory is released, or a call is given up.
 */
export class ServerEngine extends OrderedEngine implements GenerationEngine {
  readonly kind: ServerConfig["kind"];
  readonly tellsProgress: boolean;
  readonly #config: ServerConfig;
  readonly #client: HttpClient;
  readonly #protocol: ServerProtocol;
  readonly #model: ModelFolder;
  readonly #launched: LaunchedServer | undefined;
  readonly #limits: { readonly vocabSize: number; readonly contextLength: number };
  readonly #weightsFolder: string;
  readonly #stores: WeightFiles["roots"];
  readonly #warn: (message: string) => void;
  readonly #clock: Clock;
  readonly #name = randomBytes(6).toString("hex");
  readonly #gate = new Gate();
  readonly #running = new Set<Running>();
  readonly #calls = new Set<Call>();
  readonly #places: { free: number };
  readonly #weights: ServerWeights;
  readonly #memory: ServerMemory;
  #isClosed = false;
  /** undefined until it has been asked, and where it cannot be told */
  #isProcessed: boolean | undefined;
  #hasAsked = false;
  #aborts = 0;
  #requests = 0;
  #unwatch: (() => void) | undefined;

  private constructor(
    config: ServerConfig,
    { client, protocol, model, weightsBytes, streams, launched }: OpenServer,
    contextLength: number,
    weightsFolder: string,
    { warn, clock, hostFiles }: ServerOptions & { readonly warn: (message: string) => void; readonly clock: Clock },
  ) {
    super();
    this.kind = config.kind;
    this.tellsProgress = streams && config.streamMs !== "never";
    this.#config = config;
    this.#client = client;
    this.#protocol = protocol;
    this.#model = model;
    this.#limits = { vocabSize: model.vocabSize, contextLength };
    this.#launched = launched;
    this.#memory = new ServerMemory({ sharedBytes: (config.sharedMemoryMiB ?? 0) * mib, weightsBytes, clock });
    this.#weightsFolder = weightsFolder;
    this.#stores = weightFilesOf(config.trainer, hostFiles)?.roots ?? [];
    this.#warn = warn;
    this.#clock = clock;
    this.#places = { free: config.maxRunning };
    const { updateTimeoutMs } = config;
    const server = `${protocol.name} at ${client.url}`;
    this.#weights = new ServerWeights(
      protocol,
      { server, name: this.#name, ownFolder: model.path, verifyOwn: () => model.verify(), updateTimeoutMs },
      { drain: () => this.#drain(), wake: () => this.#wake(), inTurn: (run) => this.inTurn(run), warn },
    );
  }

  /**
   * Loads `engine.model` into the server, as version 0, unless its devices are shared: then the first `restore` does. Throws
   * `config.invalid` with everything that the server lacks, `service.failed` where none answers.
   */
  static async create(
    model: z.input<typeof TransformerConfig>,
    server: z.input<typeof SglangConfig> | z.input<typeof VllmConfig>,
    { rank = 0, devices = [], warn = () => {}, log = () => {}, clock = systemClock, hostFiles }: ServerOptions = {},
  ): Promise<ServerEngine> {
    const choice = z.discriminatedUnion("kind", [SglangConfig, VllmConfig]);
    const parsed = z.strictObject({ model: TransformerConfig, engine: choice }).safeParse({ model, engine: server });
    if (!parsed.success)
      throw new TreadleError(
        "config.invalid",
        `server engine's configuration refused: ${z.prettifyError(parsed.error)}`,
      );
    const { engine: config, model: limits } = parsed.data;
    const open = await openServer(config, limits, { rank, devices, warn, log, clock });
    const close = async () => {
      open.client.close();
      await open.launched?.close();
    };
    const weightsFolder = await makeWeightsFolder(config.weightsFolder, open.client.url).catch(async (error) => {
      await close();
      throw error;
    });
    const engine = new ServerEngine(config, open, limits.contextLength, weightsFolder, { warn, clock, hostFiles });
    try {
      await engine.#attach();
      return engine;
    } catch (error) {
      await engine.close();
      throw error;
    }
  }

  /** of a server that was started for this engine */
  get ended(): Promise<TreadleError> | undefined {
    return this.#launched?.ended;
  }

  get policyVersion(): number {
    return this.#weights.loaded?.policyVersion ?? 0;
  }

  get weightsId(): string | undefined {
    if (this.#weights.poison) return undefined;
    return this.#weights.loaded?.weightsId ?? initialWeightsId;
  }

  memory(): EngineMemory {
    return this.#memory.now;
  }

  async generate(
    prompts: readonly Int32Array[],
    sampling: Sampling,
    options: GenerateOptions = {},
  ): Promise<Completion[]> {
    this.refuseReleased("generate");
    const resolved = resolveSampling(sampling);
    refuseOnNewWeights(this.kind, options);
    const { contextLength, vocabSize } = this.#limits;
    checkPrompts(prompts, options, contextLength, vocabSize);
    if (this.#isProcessed === false && resolved.temperature !== 0 && resolved.temperature !== 1) {
      throw new TreadleError(
        "engine.invalid-request",
        `${this.#protocol.name} gives log-probabilities of temperature 1, and '${resolved.temperature}' was asked for; ${this.#protocol.logprobRemedy}, or sample at 1`,
      );
    }
    return this.computing(this.#generate(prompts, resolved, options));
  }

  abort(): void {
    this.#aborts++;
    this.#wake();
  }

  /** What runs is ended on the server, and begins again at its prompt: no server keeps it through a change of weights. */
  async pause(): Promise<void> {
    this.#gate.close();
    await this.#drain();
  }

  resume(): void {
    this.#gate.open();
    this.#wake();
  }

  loadWeights(weights: Weights): Promise<void> {
    return this.exclusively("loadWeights", async () => {
      this.#model.check(weights);
      await this.#load(weights, (folder) => this.#model.write(weights, folder));
    });
  }

  async opens(ticket: WeightTicket): Promise<boolean> {
    if (ticket.device) return false;
    const isOfModel = this.#loadsAdapters ? ticket.adapter !== undefined : this.#model.hasAll(ticket.tensors);
    return isOfModel && canOpen(ticket, this.#stores);
  }

  loadTicket(ticket: WeightTicket): Promise<void> {
    return this.exclusively("loadTicket", async () => {
      this.#model.checkTicket(ticket);
      if (!(await this.opens(ticket)))
        throw refusedTicket(ticket, `'${ticket.store}' is no folder of this run's weights`);
      if (!this.#loadsAdapters) return this.#load(ticket, (folder) => this.#model.link(ticket, folder));
      await this.#load(ticket, (folder) => this.#model.linkAdapter(ticket, folder));
    });
  }

  get #loadsAdapters(): boolean {
    return this.#config.loads === "adapter";
  }

  /** Of devices that are shared, the server gives its memory back; of others nothing is freed, and `memory` says so. */
  override async release(tags?: readonly ReleasableTag[]): Promise<void> {
    const asked = this.#memory.movedWith(tags);
    const released = super.release(asked);
    this.#wake();
    await released;
    const leaving = this.#memory.among(asked, true);
    if (leaving.length > 0) await this.#memory.move("release", leaving, (named) => this.#protocol.release(named));
  }

  override restore(tags?: readonly ReleasableTag[]): Promise<void> {
    return this.inTurn(async () => {
      const asked = this.#memory.movedWith(tags);
      const coming = this.#memory.among(asked, false);
      const loads = coming.includes("weights") || (this.#weights.poison !== undefined && this.#memory.has("weights"));
      const load = async () => {
        if (loads) await this.#loadAgain();
      };
      const isShared = this.#config.sharedMemoryMiB !== undefined;
      if (isShared && coming.length > 0)
        await this.#memory.move("restore", coming, (named) => this.#protocol.restore(named), load);
      else if (isShared) await load();
      if (this.#memory.isWhole) await this.#learnLogprobs();
      await super.restore(asked);
    });
  }

  /** A server that gave its memory back need not have kept its weights. */
  async #loadAgain(): Promise<void> {
    this.#weights.lostMemory();
    if (this.#weights.loaded) await this.#weights.load(this.#weights.loaded);
    else await this.#loadOwn();
  }

  async close(): Promise<void> {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#unwatch?.();
    if (!this.#launched) await this.release().catch(() => {}); // what a server that is gone holds is gone, too
    this.#client.close();
    await this.#launched?.close();
    await rm(this.#weightsFolder, { recursive: true, force: true });
  }

  async #attach(): Promise<void> {
    if (this.#config.sharedMemoryMiB === undefined) {
      await this.#loadOwn();
      return this.#learnLogprobs();
    }
    // Others may have the devices now; the first `restore` takes them.
    await this.#memory.move("release", serverTags, () => this.#protocol.release(undefined));
    await super.release();
  }

  async #load(weights: Weights | WeightTicket, makeFolder: (folder: string) => Promise<MadeFolder>): Promise<void> {
    const { policyVersion } = weights;
    const folder = join(this.#weightsFolder, `version-${policyVersion}-${this.#weights.numLoads + 1}`);
    let made: MadeFolder;
    try {
      made = await makeFolder(folder);
    } catch (error) {
      await rm(`${folder}.partial`, { recursive: true, force: true });
      throw diskError(error, this.#weightsFolder);
    }
    await this.#weights.load({ folder, policyVersion, weightsId: weightsIdOf(weights), ...made });
  }

  /** The first load. What the server says against it, a person must change. */
  async #loadOwn(): Promise<void> {
    try {
      await this.#weights.load({
        folder: this.#model.path,
        policyVersion: 0,
        weightsId: initialWeightsId,
        digest: undefined,
        verify: () => this.#model.verify(),
      });
    } catch (error) {
      const { cause } = error as TreadleError;
      const isRefused = cause instanceof TreadleError && (cause.details["status"] || cause.disposition !== "retryable");
      if (!isRefused) throw error;
      throw new TreadleError(
        "config.invalid",
        `${this.#protocol.name} at ${this.#client.url} does not load engine.model '${this.#model.path}': ${cause.message}; start it with that folder, which its user must be able to read`,
        { cause },
      );
    }
  }

  /** Once, as soon as it can generate. */
  async #learnLogprobs(): Promise<void> {
    const { loaded, poison } = this.#weights;
    if (this.#hasAsked || !loaded || poison) return;
    const { completionTimeoutMs } = this.#config;
    this.#isProcessed = await probeLogprobs(this.#protocol, this.#limits.vocabSize, loaded.label, completionTimeoutMs);
    this.#hasAsked = true;
    if (this.#isProcessed === true) return;
    const what =
      this.#isProcessed === false
        ? "gives log-probabilities of temperature 1, whatever it samples at: only temperatures 1 and 0 are allowed"
        : "cannot be seen to give log-probabilities of the distribution that it samples from";
    this.#warn(`${this.#protocol.name} at ${this.#client.url} ${what}; ${this.#protocol.logprobRemedy}`);
  }

  async #generate(prompts: readonly Int32Array[], sampling: Sampling, options: GenerateOptions): Promise<Completion[]> {
    const { signal, extend, onCompletion, onProgress } = options;
    const completions: Completion[] = Array(prompts.length);
    const { drawsByPosition } = this.#protocol;
    const limits = { ...this.#limits, drawsByPosition, policyVersion: () => this.policyVersion };
    const sequences = new Sequences(prompts, sampling, limits, extend !== undefined, options);
    const deliver = (index: number, completion: Completion | undefined) => {
      if (!completion) return;
      completions[index] = completion;
      try {
        onCompletion?.(index, completion);
      } catch (error) {
        this.#fail(call, error);
      }
    };
    const { streamMs } = this.#config;
    const progress =
      this.tellsProgress && streamMs !== "never" && onProgress
        ? new Progress(sequences, {
            ...{ clock: this.#clock, everyMs: streamMs, tell: onProgress },
            confirm: () => this.#weights.confirm(),
            fail: (error) => this.#fail(call, error),
          })
        : undefined;
    const call: Call = { sequences, deliver, extend, progress, losses: new Map(), failure: undefined, wake: () => {} };
    const aborts = this.#aborts;
    let isAborted = false;
    let isOver = false;
    this.#calls.add(call);
    const wake = () => call.wake();
    signal?.addEventListener("abort", wake);
    options.join?.((joining) => {
      if (isOver || sequences.isAborted) return undefined;
      checkPrompts([joining.prompt], {}, this.#limits.contextLength, this.#limits.vocabSize);
      checkBegun(joining, sampling, this.#limits.contextLength);
      const index = sequences.join(joining);
      wake();
      return index;
    });
    try {
      if (!this.#weights.isLoading && !this.#gate.pass()) await this.#weights.ensure();
      while (!sequences.done) {
        // Before anything is looked at: what happens from here on is seen in the next round.
        const woken = new Promise<void>((go) => {
          call.wake = go;
        });
        if (call.failure) throw call.failure.error;
        this.refuseReleased("generate");
        if (signal?.aborted)
          throw new TreadleError("call.cancelled", "generate was cancelled by its caller", { cause: signal.reason });
        if (aborts !== this.#aborts && !isAborted) {
          isAborted = true;
          for (const [index, completion] of sequences.abort()) deliver(index, completion);
          this.#end(call).catch((error: unknown) => this.#fail(call, error));
          continue;
        }
        if (!this.#weights.isLoading && !this.#gate.pass() && !isAborted) {
          if (this.#weights.poison) throw this.#weights.poison;
          this.#start(call);
        }
        if (!sequences.done) await woken;
      }
      if (call.failure) throw call.failure.error;
      return completions;
    } catch (error) {
      this.#calls.delete(call);
      await this.#end(call).catch(() => {}); // the first failure is the one to tell
      throw error;
    } finally {
      isOver = true;
      progress?.stop();
      signal?.removeEventListener("abort", wake);
      this.#calls.delete(call);
    }
  }

  #start(call: Call): void {
    while (this.#places.free > 0) {
      const request = call.sequences.take();
      if (!request) return;
      this.#places.free--;
      const running: Running = {
        // Closed by a dash: SGLang ends every request whose id begins with the one that it is given.
        id: `${this.#name}-${++this.#requests}-`,
        call,
        controller: new AbortController(),
        settled: Promise.resolve(),
      };
      this.#running.add(running);
      running.settled = this.#request(running, request).finally(() => {
        this.#running.delete(running);
        this.#places.free++;
        // Any call may take the place.
        this.#wake();
      });
    }
  }

  /** Never rejects: what went wrong is the call's. */
  async #request({ id, call, controller }: Running, request: SequenceRequest): Promise<void> {
    const loaded = this.#weights.loaded!;
    this.#watchOver();
    const { index } = request;
    const { progress } = call;
    const onPart = progress && ((part: TokenPart) => progress.arrive(request, part));
    try {
      const answer = await this.#protocol.generate(
        { id, ...request, salt: loaded.label, adapter: loaded.isAdapter ? loaded.label : undefined },
        { signal: controller.signal, timeoutMs: this.#config.completionTimeoutMs, onPart },
      );
      if (answer.labels.length === 0) await this.#weights.confirm();
      else this.#weights.check(answer.labels, loaded);
      const { ended, held } = call.sequences.answer(request, answer);
      call.deliver(index, ended);
      if (held) this.#hold(call, request, held);
    } catch (error) {
      if (controller.signal.aborted || !call.sequences.isRunning(request)) return;
      if (call.sequences.isAborted) return call.deliver(index, call.sequences.lose(request));
      const losses = (call.losses.get(index) ?? 0) + 1;
      call.losses.set(index, losses);
      if (!(error instanceof ConnectionLost) || losses > maxLosses) return this.#fail(call, error);
      try {
        // AS5: the same request has the same tokens, as long as the weights are the same.
        await this.#weights.verify();
        call.deliver(index, call.sequences.lose(request));
        progress?.tell(); // before other tokens come in place of those that were told
      } catch (again) {
        this.#fail(call, again instanceof ConnectionLost ? error : again);
      }
    }
  }

  #hold(call: Call, request: SequenceRequest, held: Completion): void {
    const ask = async () => call.extend?.(request.index, held);
    ask()
      .then((tokens) => call.deliver(request.index, call.sequences.extend(request, tokens)))
      .catch((error: unknown) => this.#fail(call, error))
      .finally(() => call.wake());
  }

  #fail(call: Call, error: unknown): void {
    call.failure ??= { error };
    call.wake();
  }

  /** AS6: nothing of what runs counts, and nothing runs when it returns; completions begin again at their prompts. */
  async #drain(): Promise<void> {
    for (const call of this.#calls) {
      try {
        call.sequences.restart();
      } catch (error) {
        this.#fail(call, error); // of the call's own order
      }
    }
    await this.#endAll([...this.#running]);
  }

  async #end(call: Call): Promise<void> {
    await this.#endAll([...this.#running].filter((running) => running.call === call));
  }

  /**
   * An abort may reach the server before its request does, so it is repeated. Connections that are left at the deadline are
   * closed, which servers take for an abort, too.
   */
  async #endAll(running: readonly Running[]): Promise<void> {
    if (running.length === 0) return;
    let isSettled = false;
    const settled = Promise.all(running.map((one) => one.settled)).then(() => {
      isSettled = true;
    });
    const deadline = this.#clock.now() + this.#config.callTimeoutMs;
    try {
      while (!isSettled) {
        const left = running.filter((one) => this.#running.has(one));
        await this.#protocol.abort(left.map(({ id }) => id));
        await this.#settledWithin(settled, abortEveryMs);
        if (isSettled || this.#clock.now() < deadline) continue;
        throw new TreadleError(
          "service.failed",
          `${this.#protocol.name} at ${this.#client.url} did not end '${left.length}' requests within ${this.#config.callTimeoutMs} ms; see what it computes`,
        );
      }
    } finally {
      for (const { controller } of running) controller.abort();
      await settled;
    }
  }

  /** A server that is gone or stopped is noticed while completions wait for it, however long they may take. */
  #watchOver(): void {
    this.#unwatch ??= this.#clock.after(this.#config.callTimeoutMs, () => {
      this.#unwatch = undefined;
      if (this.#running.size === 0) return;
      const look = () => this.#protocol.alive();
      look()
        .catch(look)
        .then(
          () => this.#running.size > 0 && this.#watchOver(),
          (error: Error) => {
            for (const { call } of this.#running) this.#fail(call, error);
            this.#launched?.giveUp(`does not say that it is well (${error.message})`);
          },
        );
    });
  }

  async #settledWithin(settled: Promise<void>, timeoutMs: number): Promise<void> {
    let cancel = () => {};
    const late = new Promise<void>((go) => {
      cancel = this.#clock.after(timeoutMs, go, true);
    });
    await Promise.race([settled, late]);
    cancel();
  }

  #wake(): void {
    for (const call of this.#calls) call.wake();
  }
}

type Call = {
  readonly sequences: Sequences;
  /** Never throws: what whoever takes completions throws fails the call. */
  readonly deliver: (index: number, completion: Completion | undefined) => void;
  readonly extend: GenerateOptions["extend"];
  readonly progress: Progress | undefined;
  /** how often a completion's connection was lost */
  readonly losses: Map<number, number>;
  failure: { readonly error: unknown } | undefined;
  wake: () => void;
};

/** A request on the server. */
type Running = {
  readonly id: string;
  readonly call: Call;
  readonly controller: AbortController;
  /** never rejects */
  settled: Promise<void>;
};
