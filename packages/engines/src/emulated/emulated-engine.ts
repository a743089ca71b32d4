import {
  type Clock,
  type Completion,
  type FinishReason,
  type LossMetrics,
  type LossSpec,
  type MemoryTag,
  PacedClock,
  ReleasableTag,
  type Sampling,
  type TagMemory,
  type TrainBatch,
  TreadleError,
  versionRunsOf,
  type Weights,
} from "@treadle/contracts";
import { systemClock } from "@treadle/transport";
import type { z } from "zod";
import type {
  EngineMemory,
  GenerateOptions,
  GenerationEngine,
  JoiningCompletion,
  OnNewWeights,
  OptimStep,
  TokenRows,
  TrainingEngine,
} from "../engine.ts";
import { checkBegun, checkKeys, checkOrder, invalidRequest, ModelEngine, resolveSampling } from "../model-engine.ts";
import { behindAnswers, joined, nothing } from "../new-weights.ts";
import { mix, normal, uniform } from "../random.ts";
import { WorkMeter, type WorkSums } from "../work-meter.ts";
import { Decoder, type DecoderSequence } from "./decoder.ts";
import type { EmulatedDevice } from "./emulated-device.ts";
import type { EmulatedGroup } from "./emulated-group.ts";
import { type Cost, costSeconds, decodeSeconds, type EmulatedProfile, parseProfile, tagsOf } from "./profile.ts";
import { Spending } from "./spending.ts";
import { type Call, drawTurn, type Running, sequenceOf, type TurnDraws } from "./turns.ts";

export type EmulatedEngineOptions = {
  readonly clock?: Clock | undefined;
  readonly seed?: number | undefined;
  readonly rank?: number | undefined;
  /** those whose memory it takes, as much on each; none where memory does not matter */
  readonly devices?: readonly EmulatedDevice[] | undefined;
  /** as which it takes memory, such as `rollout/0` */
  readonly component?: string | undefined;
  /** false: it takes no memory before its first `restore`; default true */
  readonly loaded?: boolean | undefined;
  /** tokens of the turn that begins so many behind the prompt, in what has that key; undefined: as the profile draws them */
  readonly turnTokens?: ((key: number, from: number) => number | undefined) | undefined;
  /** the ranks that train one model with it, each on data of its own: they take a step, and take weights, in a collective */
  readonly group?: EmulatedGroup | undefined;
  /** the ranks that hold one model's tensors in parts with it: they compute each call in a collective */
  readonly tensorGroup?: EmulatedGroup | undefined;
};

/**
 * An engine that takes the time and memory of its profile and computes nothing: for plans, schedules and tests at a
 * scale no machine here has. Its policy is uniform over the vocabulary; its completions, weights, metrics and
 * checkpoints are well-formed and deterministic by seed. Time comes from the clock alone, which tests drive by hand.
 *
 * Generations share one decoder (DE1 to DE4), so concurrent calls slow each other. ME1 and ME3 hold as for embedded engines.
 * Every turn has a length of its own, drawn by where it begins; whether it calls a tool is for `extend` to say.
 *
 * On devices it is given, it is refused what a GPU's engine is refused: more memory than there is, at its start and at each
 * restore, and a release while it computes. What ranks do in a collective waits for all of them (`group`, `tensorGroup`).
 */
export class EmulatedEngine extends ModelEngine implements GenerationEngine, TrainingEngine {
  override readonly kind = "emulated";
  readonly heedsNewWeights = true;
  readonly profile: EmulatedProfile;
  /** of what it computes, which others slow down */
  readonly #clock: PacedClock;
  readonly #meter = new WorkMeter();
  /** what passes beside decoding are under way */
  readonly #spending = new Set<Spending>();
  readonly #draws: TurnDraws;
  /** of how long things take, which differs by rank where responses do not */
  readonly #durationSeed: number;
  readonly #decoder: Decoder;
  readonly #running = new Map<number, Running>();
  /** of what was cut with `onNewWeights: keep`, by key: tokens whose keys and values it has; the first kept goes first */
  readonly #kept = new Map<number, number>();
  #nextId = 0;
  #durations = 0;
  readonly #tags: readonly TagMemory[];
  readonly #loaded = new Set<ReleasableTag>();
  /** whether it was ever loaded: what no release gives back is taken then */
  #wasLoaded = false;
  #cancelTimer: () => void = () => {};
  readonly #options: EmulatedEngineOptions;

  private constructor(profile: EmulatedProfile, options: EmulatedEngineOptions) {
    const { clock = systemClock, seed = 0, rank = 0 } = options;
    super([{ name: "emulated", shape: [2, 2] }], () => Float32Array.from({ length: 4 }, (_, i) => uniform(seed, i)));
    this.profile = profile;
    this.#clock = new PacedClock(clock);
    this.#draws = { profile, seed, turnTokens: options.turnTokens };
    this.#durationSeed = mix(seed, rank);
    const stepMs = (running: number) => 1000 * decodeSeconds(running, profile);
    this.#decoder = new Decoder(stepMs, profile.slots, this.#clock.now());
    this.#options = options;
    this.#tags = tagsOf(profile);
    if (options.loaded ?? true) this.#load(this.#tags);
    else void super.release();
  }

  /** Loaded, unless the options say otherwise. Throws `config.invalid` with every problem of the profile, and `device.out-of-memory` where it does not fit. */
  static create(profile: z.input<typeof EmulatedProfile>, options: EmulatedEngineOptions = {}): EmulatedEngine {
    return new EmulatedEngine(parseProfile(profile), options);
  }

  override memory(): EngineMemory {
    const { residualBytes, hostBytes } = this.profile;
    const loadedBytes = residualBytes + bytesOf(this.#tags);
    const leftBytes = this.#wasLoaded ? residualBytes : 0;
    const residentBytes = leftBytes + bytesOf(this.#tags.filter(({ tag }) => this.#loaded.has(tag)));
    const isOnePiece = this.#tags.filter(({ bytes }) => bytes > 0).length < 2;
    return { residentBytes, loadedBytes, hostBytes, ...(isOnePiece ? {} : { tags: this.#tags }) };
  }

  takeWork(): WorkSums {
    this.#count();
    return { ...this.#meter.take(), isEmulated: true };
  }

  computesBeside(components: readonly string[]): void {
    const { beside } = this.profile;
    this.#count();
    this.#clock.pace = Math.max(1, ...components.map((component) => beside[component] ?? 1));
  }

  /** At the pace up to now. */
  #count(): void {
    this.#advance();
    for (const spending of this.#spending) this.#countSpending(spending);
  }

  generate(prompts: readonly Int32Array[], sampling: Sampling, options: GenerateOptions = {}): Promise<Completion[]> {
    return this.computing(this.#generate(prompts, sampling, options));
  }

  async #generate(prompts: readonly Int32Array[], given: Sampling, options: GenerateOptions): Promise<Completion[]> {
    this.refuseReleased("generate");
    const sampling = resolveSampling(given);
    for (const prompt of prompts) {
      if (prompt.length > 0 && prompt.length < this.profile.contextLength) continue;
      throw invalidRequest(
        `a prompt has '${prompt.length}' tokens where 1 to ${this.profile.contextLength - 1} were expected; cut it or raise contextLength`,
      );
    }
    checkKeys(prompts, options);
    checkOrder(options);
    if (this.#options.tensorGroup) {
      await this.#meet("generate", ["tensorGroup"]);
      this.refuseReleased("generate");
    }
    const call: Call = { sampling, options, ids: [] };
    const ended: Promise<Completion>[] = [];
    const begin = (joining: JoiningCompletion): DecoderSequence => {
      const index = ended.length;
      const id = this.#nextId++;
      let running!: Running;
      const one = new Promise<Completion>((resolve, reject) => {
        const end = (completion: Completion) => {
          options.onCompletion?.(index, completion);
          resolve(completion);
        };
        running = this.#begin(call, index, joining, { end, fail: reject });
      });
      one.catch(() => {}); // whoever awaits all of them hears of it
      const sequence = sequenceOf(id, running);
      this.#running.set(id, running);
      call.ids.push(id);
      ended.push(one);
      return sequence;
    };
    const started = prompts.map((prompt, index) => begin({ prompt, key: options.keys?.[index] ?? index }));
    this.#advance();
    this.#decoder.add(started);
    let isOver = false;
    const add = (joining: JoiningCompletion) => {
      if (isOver) return undefined;
      this.refuseReleased("generate");
      checkBegun(joining, sampling, this.profile.contextLength);
      // Others may end now, and who is told of it may have another join: this one has its index before.
      const index = ended.length;
      const sequence = begin(joining);
      this.#advance();
      this.#decoder.add([sequence]);
      this.#schedule();
      return index;
    };
    options.join?.(add, (index) => {
      const id = call.ids[index];
      let isCut = false;
      if (id === undefined) return isCut;
      this.#stop([id], (running) => {
        this.#cut(running, id);
        isCut = true;
      });
      return isCut;
    });
    const cancel = () => {
      const cause = options.signal?.reason;
      this.#fail(call, new TreadleError("call.cancelled", "generate was cancelled by its caller", { cause }));
    };
    options.signal?.addEventListener("abort", cancel);
    if (options.signal?.aborted) cancel();
    this.#schedule();
    try {
      for (;;) {
        const completions = await Promise.all(ended);
        if (completions.length === ended.length) return completions;
      }
    } finally {
      isOver = true;
      options.signal?.removeEventListener("abort", cancel);
    }
  }

  abort(): void {
    this.#stop([...this.#running.keys()], (running, id) => this.#cut(running, id));
  }

  async pause(): Promise<void> {
    this.#advance();
    this.#decoder.pause();
    this.#schedule();
  }

  resume(): void {
    this.#advance();
    this.#decoder.resume();
    this.#schedule();
  }

  forwardBackward(batch: TrainBatch, _loss: LossSpec): Promise<LossMetrics> {
    return this.exclusively("forwardBackward", async () => {
      await this.#meet("forwardBackward", ["tensorGroup"]);
      await this.#spend(this.profile.training, batch.rows * batch.columns);
      this.refuseReleased("forwardBackward");
      const weight = batch.weights.reduce((a, b) => a + b, 0);
      this.optimiser.accumulate([weight, -weight, weight, -weight], 0);
      const nats = weight * Math.log(this.profile.vocabSize);
      return { loss: nats, weight, kl: 0, entropy: nats, clipFraction: 0, valueLoss: 0 };
    });
  }

  override optimStep(step: OptimStep): Promise<{ readonly gradNorm: number }> {
    return this.exclusively("optimStep", async () => {
      await this.#meet("optimStep", ["tensorGroup", "group"]);
      await this.#spendSeconds(this.profile.optimStepSeconds);
      this.refuseReleased("optimStep");
      return this.#renewing(() => this.applyStep(step));
    });
  }

  override loadWeights(weights: Weights): Promise<void> {
    return this.exclusively("loadWeights", async () => {
      await this.#meet("loadWeights", ["tensorGroup", "group"]);
      await this.#spendSeconds(this.profile.loadWeightsSeconds);
      this.refuseReleased("loadWeights");
      this.#renewing(() => this.applyWeights(weights));
    });
  }

  logprobs(rows: TokenRows): Promise<Float32Array> {
    return this.#forward("logprobs", rows, -Math.log(this.profile.vocabSize));
  }

  values(rows: TokenRows): Promise<Float32Array> {
    return this.#forward("values", rows, 0);
  }

  override async release(tags: readonly ReleasableTag[] = ReleasableTag.options): Promise<void> {
    const leaving = this.#tags.filter(({ tag }) => tags.includes(tag) && this.#loaded.has(tag));
    if (leaving.length === 0) return;
    if (this.idle() !== undefined) {
      throw new TreadleError(
        "engine.busy",
        `an emulated engine was released while '${this.#running.size}' sequences were decoded or another call ran; abort or await them, then release`,
      );
    }
    await super.release(tags);
    await this.#spendSeconds(leaving.reduce((sum, { releaseSeconds }) => sum + releaseSeconds, 0));
    if (tags.includes("cache")) this.#kept.clear();
    for (const { tag } of leaving) this.#vacate(tag);
  }

  override async restore(tags: readonly ReleasableTag[] = ReleasableTag.options): Promise<void> {
    const coming = this.#tags.filter(({ tag }) => tags.includes(tag) && !this.#loaded.has(tag));
    if (coming.length === 0) return;
    this.#load(coming);
    await this.#spendSeconds(coming.reduce((sum, { restoreSeconds }) => sum + restoreSeconds, 0));
    await super.restore(tags);
  }

  /** Takes no time: nothing waits for the memory of an engine that is gone. */
  override async close(): Promise<void> {
    void super.release();
    this.#endRunning();
    for (const tag of [...ReleasableTag.options, "residual"] as const) this.#vacate(tag);
  }

  /** All of it on every device, or nothing. */
  #load(wanted: readonly TagMemory[]): void {
    const { devices = [], component = "engine" } = this.#options;
    const all: { readonly tag: MemoryTag; readonly bytes: number }[] = [...wanted];
    if (!this.#wasLoaded) all.unshift({ tag: "residual", bytes: this.profile.residualBytes });
    const taken: (() => void)[] = [];
    try {
      for (const device of devices) {
        for (const { tag, bytes } of all) {
          if (bytes === 0) continue;
          device.set(component, tag, bytes);
          taken.push(() => device.set(component, tag, 0));
        }
      }
    } catch (error) {
      for (const giveBack of taken) giveBack();
      throw error;
    }
    this.#wasLoaded = true;
    for (const { tag } of wanted) this.#loaded.add(tag);
  }

  #vacate(tag: MemoryTag): void {
    const { devices = [], component = "engine" } = this.#options;
    for (const device of devices) device.set(component, tag, 0);
    if (tag !== "residual") this.#loaded.delete(tag);
  }

  async #meet(what: string, groups: readonly ("group" | "tensorGroup")[]): Promise<void> {
    for (const group of groups) await this.#options[group]?.meet(this.#options.rank ?? 0, what);
  }

  #forward(method: string, { rows, columns }: TokenRows, entry: number): Promise<Float32Array> {
    return this.exclusively(method, async () => {
      await this.#meet(method, ["tensorGroup"]);
      await this.#spend(this.profile.logprobs, rows * columns);
      this.refuseReleased(method);
      return Float32Array.from({ length: rows * columns }, (_, i) => (i % columns === 0 ? 0 : entry));
    });
  }

  #endRunning(): void {
    const error = new TreadleError(
      "engine.released",
      "'generate' ran on an engine that was released; call restore first",
    );
    this.#stop([...this.#running.keys()], (running) => running.fail(error));
  }

  #begin(
    call: Call,
    index: number,
    { prompt, key, begun = nothing }: JoiningCompletion,
    settle: Pick<Running, "end" | "fail">,
  ): Running {
    const said = behindAnswers(begun);
    const { versions = [] } = begun;
    const one = { call, index, prompt, key, said, versions, numLost: 0, isHeld: false, attempt: 0, ...settle };
    const length = prompt.length + begun.tokens.length;
    const turn = drawTurn(this.#draws, one, {
      numAhead: begun.tokens.length - said.tokens.length,
      numRead: length - (call.options.onNewWeights === "keep" ? this.#takeKept(key, length) : 0),
    });
    return { ...one, turn };
  }

  #fail({ ids }: Call, error: unknown): void {
    this.#stop(ids, (running) => running.fail(error));
  }

  #stop(ids: readonly number[], how: (running: Running, id: number) => void): void {
    this.#advance();
    const stopped = ids.flatMap((id) => {
      const running = this.#running.get(id);
      return running ? [[running, id] as const] : [];
    });
    for (const [, id] of stopped) this.#running.delete(id);
    for (const [running, id] of stopped) how(running, id);
    for (const [, id] of stopped) this.#decoder.remove(id);
    this.#schedule();
  }

  /** Ends it with what it has chosen by now. */
  #cut(running: Running, id: number): void {
    const completion = this.#completion(running, "abort", running.turn.tokens.slice(0, this.#numChosen(id, running)));
    const { call, key, prompt } = running;
    const hasRead = running.isHeld || this.#decoder.stepsDone(id) >= Math.ceil(running.turn.prefillSteps);
    if (call.options.onNewWeights === "keep" && hasRead) this.#keep(key, prompt.length + completion.tokens.length);
    running.end(completion);
  }

  /** Of the turn under way. */
  #numChosen(id: number, { turn: { tokens, numAhead, prefillSteps }, isHeld }: Running): number {
    if (isHeld) return tokens.length;
    return numAhead + Math.max(0, this.#decoder.stepsDone(id) - Math.ceil(prefillSteps));
  }

  #keep(key: number, numTokens: number): void {
    this.#kept.delete(key);
    this.#kept.set(key, numTokens);
    const [first] = this.#kept.keys();
    if (this.#kept.size > this.profile.slots && first !== undefined) this.#kept.delete(first);
  }

  #takeKept(key: number, most: number): number {
    const numTokens = this.#kept.get(key) ?? 0;
    this.#kept.delete(key);
    return Math.min(numTokens, most);
  }

  #advance(): void {
    const before = this.#decoder.made;
    const finishedIds = this.#decoder.advance(this.#clock.now());
    const { passes, tokens, ms } = this.#decoder.made;
    this.#meter.add({
      ...{ passes: passes - before.passes, tokens: tokens - before.tokens },
      ms: (ms - before.ms) * this.#clock.pace, // not how late a timer came
    });
    const finished = finishedIds.flatMap((id) => {
      const running = this.#running.get(id);
      return running ? [[id, running] as const] : [];
    });
    // Whoever is told of one may cut another that has finished too.
    for (const [id, running] of finished) {
      if (running.turn.mayGoOn) running.isHeld = true;
      else this.#running.delete(id);
    }
    for (const [id, running] of finished) {
      const completion = this.#completion(running, running.turn.finishReason);
      if (!running.turn.mayGoOn) running.end(completion);
      else if (this.#running.get(id) === running) this.#ask(id, running, completion);
    }
  }

  /** Others go on meanwhile. */
  #ask(id: number, running: Running, completion: Completion): void {
    const { attempt, call, index } = running;
    const answered = async () => call.options.extend?.(index, completion);
    answered()
      .then((answer) => {
        if (this.#running.get(id) === running && running.attempt === attempt)
          this.#extend(id, running, completion, answer);
      })
      .catch((error: unknown) => this.#fail(call, error));
  }

  #extend(id: number, running: Running, completion: Completion, answer: Int32Array | undefined): void {
    this.#advance();
    const { prompt, said } = running;
    const length = prompt.length + completion.tokens.length + (answer?.length ?? 0);
    if (answer === undefined || length >= this.profile.contextLength) {
      this.#running.delete(id);
      this.#decoder.remove(id);
      running.end(answer ? { ...completion, finishReason: "length" } : completion);
    } else {
      running.isHeld = false;
      const tokens = joined(completion.tokens, answer);
      const logprobs = new Float32Array(tokens.length);
      logprobs.set(completion.logprobs);
      running.said = { tokens, logprobs, numAppended: said.numAppended + answer.length, turnFrom: tokens.length };
      running.turn = drawTurn(this.#draws, running, { numRead: running.numLost + answer.length });
      running.numLost = 0;
      this.#decoder.add([sequenceOf(id, running)]);
    }
    this.#schedule();
  }

  #schedule(): void {
    this.#cancelTimer();
    const delayMs = this.#decoder.untilFinishMs;
    if (delayMs === undefined) return;
    this.#cancelTimer = this.#clock.after(delayMs, () => {
      this.#advance();
      this.#schedule();
    });
  }

  /** TE2: what was chosen before is of the version before, and what runs begins again under the new one, or goes on as its call says. */
  #renewing<T>(change: () => T): T {
    this.#advance();
    const before = this.policyVersion;
    const result = change();
    for (const [id, running] of this.#running) {
      const { onNewWeights } = running.call.options;
      if (onNewWeights !== undefined) this.#renew(id, running, onNewWeights, before);
      else this.#restart(id, running);
    }
    this.#schedule();
    return result;
  }

  #renew(id: number, running: Running, onNewWeights: OnNewWeights, before: number): void {
    const { said, turn, prompt, isHeld, versions } = running;
    const numChosen = onNewWeights === "restart" && !isHeld ? 0 : this.#numChosen(id, running);
    running.versions = versionRunsOf(versions, said.tokens.length + numChosen, before);
    if (onNewWeights === "keep") return;
    const numRead = prompt.length + said.tokens.length + numChosen;
    if (isHeld) running.numLost = numRead;
    if (isHeld) return;
    running.turn = { ...turn, numAhead: numChosen, prefillSteps: this.profile.prefillSteps * numRead };
    this.#decoder.renew(id, sequenceOf(id, running).steps);
  }

  #restart(id: number, running: Running): void {
    const { said, turn, prompt, isHeld } = running;
    if (said === nothing && turn.numAhead === 0 && !isHeld) this.#decoder.renew(id, sequenceOf(id, running).steps);
    else {
      running.said = nothing;
      running.versions = [];
      running.isHeld = false;
      running.numLost = 0;
      running.attempt++;
      running.turn = drawTurn(this.#draws, running, { numRead: prompt.length });
      this.#decoder.remove(id);
      this.#decoder.add([sequenceOf(id, running)]);
    }
  }

  #completion({ call, said, turn, versions }: Running, finishReason: FinishReason, chosen = turn.tokens): Completion {
    const tokens = joined(said.tokens, chosen);
    const logprobs = new Float32Array(tokens.length).fill(-Math.log(this.profile.vocabSize));
    logprobs.set(said.logprobs);
    const { policyVersion } = this;
    const completion = { tokens, logprobs, temperature: call.sampling.temperature, finishReason, policyVersion };
    if (call.options.onNewWeights === undefined) return completion;
    return { ...completion, versions: versionRunsOf(versions, tokens.length, policyVersion) };
  }

  /** Swaps are no passes. */
  #spendSeconds(baseSeconds: number): Promise<void> {
    return new Promise((resolve) => {
      this.#clock.after(this.#drawnMs({ baseSeconds, unitSeconds: 0 }, 0), resolve);
    });
  }

  /** One pass, over so many tokens. */
  #spend(cost: Cost, units: number): Promise<void> {
    const totalMs = this.#drawnMs(cost, units);
    const spending = new Spending(units, totalMs, this.#clock.now());
    this.#spending.add(spending);
    return new Promise((resolve) => {
      this.#clock.after(totalMs, () => {
        this.#countSpending(spending);
        this.#spending.delete(spending);
        resolve();
      });
    });
  }

  #countSpending(spending: Spending): void {
    this.#meter.add(spending.count(this.#clock.now(), this.#clock.pace));
  }

  #drawnMs(cost: Cost, units: number): number {
    const spread = this.profile.durationSpread;
    const factor = Math.exp(spread * normal(this.#durationSeed, this.#durations++) - spread ** 2 / 2);
    return 1000 * factor * costSeconds(cost, units, this.profile);
  }
}

const bytesOf = (tags: readonly TagMemory[]): number => tags.reduce((sum, { bytes }) => sum + bytes, 0);
