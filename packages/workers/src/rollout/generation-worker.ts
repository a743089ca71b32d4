import { randomUUID } from "node:crypto";
import {
  type BegunEpisode,
  type Completion,
  completionFolder,
  type EngineFacts,
  type Episode,
  type EpisodeGroup,
  type Prompt,
  type Sampling,
  Temperature,
  TreadleError,
} from "@treadle/contracts";
import type { GenerationEngine } from "@treadle/engines";
import { builtInRewards, hashString, type Reward, type RewardRegistry, type Tokenizer } from "@treadle/learning";
import type { RankSizer, Sink, Source, WorkerContext, WorkerGroup } from "@treadle/runtime";
import { EpisodeOrder, MeasuredInterference, PredictorState, type Scheduler } from "@treadle/trajectories";
import { z } from "zod";
import type { ActorWorker } from "../actor/actor-worker.ts";
import { createGenerationEngine, EngineConfig, generatorFacts } from "../engine.ts";
import { EngineWorker } from "../engine-worker.ts";
import { pythonReward } from "../reward/python-reward.ts";
import { createTokenizer, openTokenizer, TokenizerChoice } from "../tokenizer/tokenizer-choice.ts";
import { pullWeights } from "../weights.ts";
import { CallOrder, type CallPace } from "./call-order.ts";
import { CompletionJournal, type ResumedMetrics } from "./completion-journal.ts";
import { completionRecord, sampleOf } from "./completion-record.ts";
import { checkDegrees, degreesSizer, tokenTimesOf } from "./degrees.ts";
import { nameOf } from "./episode-name.ts";
import { EpisodeStream, type EpisodeStreamOptions, type Span } from "./episode-stream.ts";
import type { GroupDelivery } from "./group-delivery.ts";
import {
  limitsOf,
  oversamplingOf,
  type PredictionMetrics,
  placesOf,
  predictionMetrics,
  RolloutOrderConfig,
  type SharingMetrics,
  schedulerOf,
  type TailMetrics,
} from "./order-config.ts";
import { checkSharing, isShared, sharingOf } from "./rank-sharing.ts";
import { SharedRollout, type SharedRolloutOptions } from "./shared-rollout.ts";
import { checkHeedsNewWeights, checkOnNewWeights, checkTail, type EpisodeEnd, StepTail } from "./step-tail.ts";

export const RolloutConfig = EngineConfig.extend(RolloutOrderConfig.shape)
  .extend(TokenizerChoice.shape)
  .extend({
    /** completions of one prompt: what group-relative algorithms compare */
    groupSize: z.int().positive(),
    maxTokens: z.int().positive(),
    temperature: Temperature.default(1),
    /** `{ name, … }` of a reward plugin */
    reward: z.looseObject({ name: z.string() }),
    /** episodes that each rank leaves for people to read: so many of the first step and of every `everySteps`th; 0 is none; default: 8 of every 10th */
    completions: z.strictObject({ everySteps: z.int().positive(), episodes: z.int().nonnegative() }).optional(),
  });
export type RolloutConfig = z.infer<typeof RolloutConfig>;

const shippedRewards: RewardRegistry = builtInRewards.with(pythonReward);

const usualCompletions = { everySteps: 10, episodes: 8 };

/** An engine worker that generates text of a policy it pulls from the actor, and judges it by a reward. */
export abstract class GenerationWorker<C extends RolloutConfig> extends EngineWorker<C, GenerationEngine> {
  static override readonly replays = ["pullWeights"];
  static override readonly modelWork = "generation";
  static override readonly resizes = true;

  /** from the beginning, unless a module of the project has it: then from `setup` on */
  protected tokenizer!: Tokenizer;
  protected readonly reward: Reward;
  #order: EpisodeOrder | undefined;
  #measured: MeasuredInterference | undefined;
  /** of each rank, as far as it is known, where they differ */
  #tokenTimes: (number | undefined)[] | undefined;
  #timesOf: readonly number[] | undefined;

  /** A vocabulary that is too small, a reward that nobody has registered, or an order that the engine does not heed. */
  static override checkConfig(config: RolloutConfig): void {
    const { model, reward, scheduler, engine } = config;
    if (placesOf(config) === undefined && schedulerOf(config) !== "fcfs")
      throw new TreadleError(
        "config.invalid",
        `'scheduler' is '${scheduler}', but an engine of kind '${engine?.kind}' makes its own batches; remove it, or set it to 'fcfs'`,
      );
    checkSharing(config);
    checkDegrees(config);
    checkTail(config);
    checkOnNewWeights(config);
    // A folder or a module is below the project's root, which only the worker's process is in.
    if (config.tokenizer === undefined) openTokenizer(config, model);
    // biome-ignore lint/complexity/noThisInStatic: the rewards of the class that is launched
    this.prototype.rewards().create(reward);
  }

  static override keepsDevices(config: RolloutConfig, numRanks: number): boolean {
    return numRanks > 1 && isShared(config);
  }

  static override engineFacts(config: RolloutConfig): EngineFacts {
    return generatorFacts(config);
  }

  static override degrees(config: RolloutConfig): readonly number[] | RankSizer | undefined {
    return config.degrees === "auto" ? degreesSizer(config, schedulerOf(config)) : config.degrees;
  }

  constructor(context: WorkerContext<C>) {
    super(context);
    if (this.config.tokenizer?.kind !== "module") this.tokenizer = openTokenizer(this.config, this.config.model);
    this.reward = this.rewards().create(this.config.reward);
  }

  /** The rewards that `reward.name` may name; a subclass adds its own. Reads nothing of the rank: it is also asked without one. */
  protected rewards(): RewardRegistry {
    return shippedRewards;
  }

  /** What generates; a subclass may bring an engine of its own. */
  protected createEngine(): Promise<GenerationEngine> {
    return createGenerationEngine(this, this.seed);
  }

  /** That of a module, unless a subclass has brought its own. */
  protected async openTokenizer(): Promise<void> {
    const loadModule = (path: string) => this.loadModule(path);
    this.tokenizer ??= await createTokenizer(this.config, this.config.model, { loadModule });
  }

  override async setup(): Promise<void> {
    await this.openTokenizer();
    await this.reward.open?.(this.log);
    this.engine = await this.createEngine();
    checkHeedsNewWeights(this.config, this.engine);
    const scheduler = schedulerOf(this.config);
    const { predictor = "learned", degrees } = this.config;
    if (scheduler !== "fcfs" || isShared(this.config))
      this.#order = new EpisodeOrder({
        ...{ scheduler, predictor, state: await this.#keptState() },
        records: degrees === "auto",
      });
  }

  override async teardown(): Promise<void> {
    await this.#keepState();
    await this.reward.close?.();
  }

  #callOrder(order: EpisodeOrder, prompts: readonly Prompt[], options: CallPace): CallOrder {
    const facts = { limits: limitsOf(this.config), step: this.step ?? 0, goesOn: this.#onNewWeights !== undefined };
    return new CallOrder(order, prompts, { ...options, ...facts });
  }

  /** Where the engine heeds it. On others it is `restart`, or weights come while nothing runs. */
  get #onNewWeights(): RolloutConfig["onNewWeights"] {
    return this.engine.heedsNewWeights ? this.config.onNewWeights : undefined;
  }

  /**
   * This rank's devices, for a call in which ranks may share. One that shares keeps them until all are done: what others run here
   * begins whenever they say, and has to be computed before anybody else has the memory.
   */
  protected lock(): Promise<AsyncDisposable> {
    return this.devices.lock({ lend: this.isSharing ? "never" : "idle" });
  }

  /** Whether episodes may run at other ranks than those which took their prompts. */
  protected get isSharing(): boolean {
    return this.worldSize > 1 && isShared(this.config);
  }

  /**
   * Plays the episodes of each prompt and puts each group as soon as it is complete. As many episodes are under way as
   * the plan's granularity has prompts for: where fewer are, the next prompt begins, whether or not groups are complete. Where
   * `tail` says so, what is too long ends early.
   */
  protected async play(prompts: Source<Prompt>, groups: Sink<EpisodeGroup>, playing: Playing): Promise<RolloutMetrics> {
    const kept: GroupDelivery[] = [];
    const open = new Set<Promise<void>>();
    const tail = new StepTail(this.config, {
      groups,
      late: playing.late,
      tool: playing.tool,
      begin: (number, prompt, samples) => begin(samples.map((sample) => ({ prompt, number, sample }))),
      opened: (delivery) => {
        if (kept.length < this.#numKept) kept.push(delivery);
        const over = delivery.done.then(made).catch(players.fail);
        open.add(over);
        void over.then(() => open.delete(over));
      },
    });
    await using players = this.#share(playing.tool) ?? this.#alone(playing.tool);
    const { numSamples } = tail;
    const { granularity } = prompts;
    const made = (group: EpisodeGroup | undefined): void => {
      if (!group) return;
      tail.made(group);
      for (const { tokens, promptLength } of group.episodes) this.sampled(promptLength, tokens.length - promptLength);
      playing.made(group);
    };
    const ended = ({ prompt, number, sample }: Row, end: EpisodeEnd): void =>
      tail.ended(number, sample, end, () => playing.judge(prompt, end.completion, end.answers));
    const begin = (rows: readonly Row[]): void => {
      const running = rows.filter(({ begun }) => begun?.finishReason === undefined);
      const cut = players.run(running, (index, end) => ended(running[index] as Row, end));
      for (const [index, { number, sample }] of running.entries()) tail.began(number, sample, () => cut(index));
      const { temperature } = this.config;
      for (const row of rows) {
        const { finishReason, tool, ...written } = row.begun ?? {};
        if (!finishReason) continue;
        const completion = { temperature, ...(written as BegunEpisode), finishReason };
        ended(row, { completion, answers: tool?.answers ?? [] });
      }
    };
    const isWhole = granularity === "all";
    const most = isWhole ? Number.POSITIVE_INFINITY : granularity * numSamples;
    const room = () => Math.max(1, Math.floor((most - players.numUnfinished) / numSamples));
    const batches = prompts.itemBatches({ inFlight: isWhole ? "all" : room })[Symbol.asyncIterator]();
    // What comes together is placed together.
    const enough = isWhole
      ? most
      : most - (Math.max(1, Math.ceil(granularity * players.shareTogether)) - 1) * numSamples;
    for (let next = batches.next(); ; ) {
      const { value: batch, done } = await Promise.race([next, players.failed]);
      if (done) break;
      if (players.asksAhead) await players.below(enough);
      this.#warnOfCut(batch.map(({ value }) => value));
      const rows = batch.flatMap((item) => {
        const { value: prompt } = item;
        const taken = tail.take(item);
        if (!taken) return [];
        const { number, samples, begun } = taken;
        return samples.map((sample) => ({ prompt, number, sample, begun: begun[sample] }));
      });
      if (rows.length > 0) begin(rows);
      if (!players.asksAhead) await players.below(enough);
      next = batches.next();
      next.catch(() => {}); // awaited in the next round, unless something else has failed
    }
    tail.seal();
    // What has failed meanwhile goes first; what has ended may have given its place to another.
    while (open.size > 0) await Promise.race([players.failed, Promise.all(open)]);
    await tail.leaveSpares();
    await players.ended();
    await players.finish();
    await this.#keepCompletions(kept);
    return { ...players.metrics, ...tail.metrics, ...(await this.#learnLengths()) };
  }

  /** Episodes that stay at this rank. */
  #alone(tool: EpisodeTool | undefined): Players {
    const journal = this.#journal();
    const stream = this.streamOf(this.config.temperature, tool, this.#streamOrder(), journal);
    const nonce = randomUUID();
    let numEpisodes = 0;
    return {
      shareTogether: 0,
      asksAhead: oversamplingOf(this.config).prompts === 1,
      get metrics() {
        return journal?.metrics ?? {};
      },
      get numUnfinished() {
        return stream.numUnfinished;
      },
      get failed() {
        return stream.failed;
      },
      fail: stream.fail,
      below: (most) => stream.below(most),
      run: (samples, ended) => {
        const cuts = samples.map(({ prompt, sample, begun }, index) =>
          stream.run({
            prompt,
            begun,
            key: sampleKey(prompt, sample),
            name: begun?.tool?.trajectory ?? nameOf(this.#stemOf(prompt, sample), `${nonce}.${numEpisodes++}`, 0),
            ended: (completion, answers, goesOn) => ended(index, { completion, answers, goesOn }),
          }),
        );
        return (index) => cuts[index]?.();
      },
      ended: () => stream.finish(),
      finish: async () => journal?.done(),
      [Symbol.asyncDispose]: () => {
        journal?.close();
        return stream[Symbol.asyncDispose]();
      },
    };
  }

  /** Episodes of this rank alone, at so much randomness. */
  protected streamOf(
    temperature: number,
    tool: EpisodeTool | undefined,
    order?: CallOrder,
    journal?: CompletionJournal,
  ): EpisodeStream {
    return new EpisodeStream({
      journal,
      engine: this.engine,
      sampling: this.sampling(temperature),
      order,
      tool: tool?.call,
      over: tool?.over,
      cuts: (this.config.tail ?? "wait") !== "wait",
      carries: this.config.tail === "carry" ? this.config.model : undefined,
      onNewWeights: this.#onNewWeights,
      timer: () => this.timer("decode"),
      took: order && ((seconds, completions) => this.#took(seconds, completions)),
    });
  }

  /**
   * Of a process of its own, which may die while its weights are elsewhere, too; undefined where nothing that is kept could go on: the
   * engine tells nothing, its weights die with it, or nobody can tell them from others.
   */
  #journal(): CompletionJournal | undefined {
    const { engine, hostFiles, component, rank, log } = this;
    const { weightsId } = engine;
    if (!engine.tellsProgress || weightsId === undefined || !hostFiles) return undefined;
    const { model, engine: choice } = this.config;
    return new CompletionJournal({
      ...{ hostFiles, component, rank },
      sampledBy: { weightsId, model, choice, ...this.sampling(this.config.temperature) },
      isCurrent: () => engine.weightsId === weightsId,
      log,
    });
  }

  #streamOrder(): CallOrder | undefined {
    const places = placesOf(this.config);
    const isTold = schedulerOf(this.config) !== "fcfs" || this.config.degrees === "auto";
    if (!this.#order || places === undefined || !isTold) return undefined;
    return this.#callOrder(this.#order, [], { places });
  }

  /** This rank's part in the call under way, where ranks share what each of them takes; undefined where each keeps its own. */
  #share(given: EpisodeTool | undefined): Players | undefined {
    const order = this.#order;
    const places = placesOf(this.config);
    if (!order || places === undefined || !this.isSharing) return undefined;
    const { displace, spareCaches } = this.#callOrder(order, [], { places }).options;
    this.#measured ??= new MeasuredInterference(places);
    const measured = this.#measured;
    if (this.#timesOf !== this.rankDevices) this.#tokenTimes = tokenTimesOf(this.config, this.rankDevices);
    this.#timesOf = this.rankDevices;
    if (measured.tokenSeconds !== undefined) this.#tokenTimes?.splice(this.rank, 1, measured.tokenSeconds);
    const tokenSeconds = () => measured.fullTokenSeconds;
    const rollout = new SharedRollout({
      ...sharingOf(this.config),
      measured,
      tokenTimes: this.#tokenTimes,
      tracer: this.tracer,
      places,
      engine: this.engine,
      sampling: this.sampling(this.config.temperature),
      order: { displace, spareCaches },
      arrivals: arrivalsOf(schedulerOf(this.config)),
      tool: given && ((hosted, completion, answers) => given.call(hosted.name, completion, answers)),
      over: (hosted, answers, hasLeft) => {
        if (answers.length > 0 && !hasLeft) given?.over(hosted.name);
      },
      isToolStateful: given?.isStateful ?? false,
      contextLength: this.config.model.contextLength,
      prefillRatio,
      messages: this.messages,
      component: this.component,
      rank: this.rank,
      worldSize: this.worldSize,
    });
    let decoding: Disposable | undefined;
    const playing = new Set<Promise<void>>();
    return {
      shareTogether: placedTogether,
      asksAhead: false,
      get metrics() {
        return { episodesMoved: rollout.numMoves, rolloutBusy: rollout.busyShare };
      },
      get numUnfinished() {
        return rollout.numUnfinished;
      },
      get failed() {
        return rollout.failed;
      },
      fail: rollout.fail,
      below: (most) => rollout.below(most),
      run: (samples, ended) => {
        const prompts = samples.map(({ prompt }) => prompt);
        const rows = samples.map(({ prompt, sample }) => {
          return { prompt, key: sampleKey(prompt, sample), name: this.#stemOf(prompt, sample) };
        });
        decoding ??= this.timer("decode");
        const batch = rollout
          .play(rows, this.#callOrder(order, prompts, { places, tokenSeconds }), (index, completion, answers) =>
            ended(index, { completion, answers }),
          )
          .catch(rollout.fail)
          .then(() => {
            playing.delete(batch);
            if (playing.size > 0) return;
            decoding?.[Symbol.dispose]();
            decoding = undefined;
          });
        playing.add(batch);
        return () => {}; // `checkTail` lets nothing be cut here
      },
      ended: async () => {
        await Promise.race([rollout.failed, Promise.all(playing)]);
      },
      finish: () => rollout.finish(),
      [Symbol.asyncDispose]: () => rollout.close(),
    };
  }

  /** As tools know it, whoever owns it. */
  #stemOf(prompt: Prompt, sample: number): string {
    return `${this.component}:${prompt.id}/${sample}`;
  }

  protected abstract sampling(temperature: number): Sampling;

  /** What a call of the engine took, from which the order learns what a token takes. */
  #took(seconds: number, completions: readonly Completion[]): void {
    const tokens = completions.reduce((sum, completion) => sum + completion.tokens.length, 0);
    const places = Math.min(placesOf(this.config) ?? 0, completions.length);
    if (this.#order) this.#order.tokenSeconds = (seconds * places) / tokens;
  }

  /** The step's episodes have ended: judges what was predicted of them, and learns from them. */
  async #learnLengths(): Promise<PredictionMetrics> {
    if (!this.#order) return {};
    const scores = this.#order.learn();
    if (this.config.degrees === "auto" && this.step !== undefined)
      await this.sizing.report(this.step, { ...this.#order.takePlayed(), F: this.#measured?.factor });
    if (this.#isDue && !scores.isEmpty) {
      const { step } = this;
      const report = scores.report();
      for (const line of report.notBetter) this.log.info(`step ${step}: predicted ${line}`);
      const name = `predictions/step-${String(step).padStart(6, "0")}-${this.component}-${this.rank}.json`;
      await this.#leave(name, `${JSON.stringify(report, undefined, 2)}\n`, "predictions");
      await this.#keepState();
    }
    return predictionMetrics(scores);
  }

  /** What people read, and what later runs begin with, is kept at the first step and every so many. */
  get #isDue(): boolean {
    const { everySteps } = this.config.completions ?? usualCompletions;
    return this.step !== undefined && (this.step === 1 || this.step % everySteps === 0);
  }

  /** A file that cannot be read costs what it held, and no run. */
  async #keptState(): Promise<PredictorState | undefined> {
    const kept = await this.predictors.read();
    if (!kept) return undefined;
    try {
      return PredictorState.parse(JSON.parse(kept.text));
    } catch (error) {
      const why = error instanceof z.ZodError ? z.prettifyError(error) : (error as Error).message;
      this.log.warn(`'${kept.path}' is no predictor: ${why}; this run begins without one, and replaces it`);
      return undefined;
    }
  }

  async #keepState(): Promise<void> {
    if (!this.#order) return;
    await this.predictors.write(JSON.stringify(this.#order.state)).catch((error: Error) => {
      this.log.warn(`what was learned of lengths is not kept: ${error.message}`);
    });
  }

  /** Episodes that people read of this step. */
  get #numKept(): number {
    const { episodes } = this.config.completions ?? usualCompletions;
    return this.#isDue && this.#keptStep !== this.step ? episodes : 0;
  }

  /** Leaves some of a step's episodes as text, of the first that the rank has made; what people read never stops a run. */
  async #keepCompletions(deliveries: readonly GroupDelivery[]): Promise<void> {
    const { step, rank } = this;
    const numKept = this.#numKept;
    if (step === undefined || numKept === 0 || deliveries.length === 0) return;
    this.#keptStep = step;
    const worker = `${this.component}/${rank}`;
    const made = await Promise.all(deliveries.map(async ({ prompt, done }) => ({ prompt, group: await done })));
    const whole = made.flatMap(({ prompt, group }) => (group ? [{ prompt, group }] : []));
    const groups = whole.map(({ group }) => group);
    const records = sampleOf(groups, numKept).map(({ group, episode }) => {
      const { prompt } = whole[group] as (typeof whole)[number];
      return completionRecord(episode, prompt, { step, worker, tokenizer: this.tokenizer });
    });
    const name = `step-${String(step).padStart(6, "0")}-${this.component}-${rank}.jsonl`;
    const text = `${records.map((record) => JSON.stringify(record)).join("\n")}\n`;
    await this.#leave(`${completionFolder}/${name}`, text, "episodes");
  }

  /** Says once that answers end where the model's context does, before `maxTokens`. */
  #warnOfCut(prompts: readonly Prompt[]): void {
    const { maxTokens, model, emulated } = this.config;
    if (this.#hasWarnedOfCut || emulated) return;
    const cut = prompts.find(({ tokens }) => tokens.length + maxTokens > model.contextLength);
    if (cut === undefined) return;
    this.#hasWarnedOfCut = true;
    const room = Math.max(0, model.contextLength - cut.tokens.length);
    this.log.warn(
      `prompt '${cut.id}' has '${cut.tokens.length}' tokens, which leaves its answers '${room}' of the 'maxTokens' ('${maxTokens}'); ` +
        `raise 'model.contextLength' ('${model.contextLength}') to '${cut.tokens.length + maxTokens}', or lower 'maxTokens'`,
    );
  }

  async #leave(name: string, text: string, what: string): Promise<void> {
    await this.artifacts.write(name, text).catch((error: Error) => {
      if (!this.#hasWarned) this.log.warn(`${what} of step ${this.step} are not kept: ${error.message}`);
      this.#hasWarned = true;
    });
  }

  #keptStep: number | undefined;
  #hasWarned = false;
  #hasWarnedOfCut = false;

  async pullWeights(actor: WorkerGroup<ActorWorker>): Promise<void> {
    await pullWeights(this.engine, actor, this);
  }
}

/** Of orders by when episodes came, or began to wait: of owners' clocks each tells nothing of another's. */
const arrivalsOf = (scheduler: Scheduler): SharedRolloutOptions["arrivals"] =>
  scheduler === "fcfs" ? "first" : scheduler === "rr" ? "latest" : undefined;

/** Of a token that is read again after a move, in tokens of decoding. */
const prefillRatio = 0.1;

/** What a turn may call, by the name that the tool knows the episode by. */
export type EpisodeTool = {
  readonly call: NonNullable<EpisodeStreamOptions["tool"]>;
  /** an episode that has called it has ended */
  readonly over: (name: string) => void;
  /** it goes on in a later step */
  readonly keep: (name: string) => void;
  /** what it keeps of an episode is lost with the rank that called it */
  readonly isStateful: boolean;
};

/** What a worker makes of completions. */
export type Playing = {
  /** `answers`: where a tool's tokens stand in the completion */
  readonly judge: (prompt: Prompt, completion: Completion, answers: readonly Span[]) => Promise<Episode>;
  /** a group has been put */
  readonly made: (group: EpisodeGroup) => void;
  readonly tool?: EpisodeTool | undefined;
  /** where prompts go that lost the race of the step */
  readonly late?: Sink<Prompt> | undefined;
};

/** What a rank says of a step. */
export type RolloutMetrics = SharingMetrics & PredictionMetrics & TailMetrics & ResumedMetrics;

/** An episode of a call: of which prompt, by its number there, in which sample of it. */
type Row = {
  readonly prompt: Prompt;
  readonly number: number;
  readonly sample: number;
  readonly begun?: BegunEpisode | undefined;
};

/** The episodes of one call: at this rank alone, or wherever ranks that share have room. */
type Players = AsyncDisposable & {
  /** of the prompts that may be under way, this part is begun together; less than one prompt: each by itself */
  readonly shareTogether: number;
  /**
   * One prompt is asked for while there is no room for it: no place is to wait for the way to the runner. Not where others may
   * have room for it, nor where prompts race: one that has not begun would hold up the end of the race.
   */
  readonly asksAhead: boolean;
  readonly metrics: SharingMetrics & ResumedMetrics;
  /** this rank's own */
  readonly numUnfinished: number;
  /** rejects with what failed first, and never resolves */
  readonly failed: Promise<never>;
  readonly fail: (error: unknown) => void;
  /** Resolves when fewer than that are unfinished. */
  readonly below: (most: number) => Promise<void>;
  /** Begins an episode for each, in this sample of its prompt. Returns what ends one early. */
  readonly run: (
    samples: readonly { readonly prompt: Prompt; readonly sample: number; readonly begun?: BegunEpisode | undefined }[],
    ended: (index: number, end: EpisodeEnd) => void,
  ) => (index: number) => void;
  /** Resolves when all have ended. */
  readonly ended: () => Promise<void>;
  /** What came of them is delivered. Without it the call has failed: others that share go on without this rank. */
  readonly finish: () => Promise<void>;
};

/** With fewer, where each goes is decided knowing little of the others; with more, places wait for them. */
const placedTogether = 1 / 4;

/** What the draws of one sample of a prompt depend on: neither the batch it is in nor the rank that makes it. */
export const sampleKey = (prompt: Prompt, sample: number): number => hashString(`${prompt.id}/${sample}`);
