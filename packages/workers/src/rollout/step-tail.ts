import {
  type BegunEpisode,
  type Completion,
  type Episode,
  type EpisodeGroup,
  type Prompt,
  TreadleError,
} from "@treadle/contracts";
import type { GenerationEngine } from "@treadle/engines";
import type { Sink, StreamItem } from "@treadle/runtime";
import { type TailOrder, TailRace } from "@treadle/trajectories";
import type { EngineConfig } from "../engine.ts";
import { goingOn } from "./episode-state.ts";
import type { CutAtTool, Span } from "./episode-stream.ts";
import { GroupDelivery } from "./group-delivery.ts";
import { leavesPrompts, oversamplingOf, type RolloutOrderConfig, type TailMetrics } from "./order-config.ts";
import { isShared } from "./rank-sharing.ts";

/** Refuses a tail that the engine, or the way of the episodes, cannot end early. */
export function checkTail(config: EngineConfig & RolloutOrderConfig): void {
  const { tail = "wait", oversample, engine, emulated } = config;
  const refuse = (why: string): never => {
    throw new TreadleError("config.invalid", why);
  };
  if (tail === "wait" && oversample !== undefined)
    refuse(`'oversample' is set where 'tail' is 'wait', which ends nothing early; remove it, or set 'tail' to 'cut'`);
  if (tail === "wait") return;
  const kind = emulated ? "emulated" : (engine?.kind ?? "embedded");
  if (!["embedded", "emulated", "torch", "module"].includes(kind))
    refuse(
      `'tail' is '${tail}', but an engine of kind '${kind}' cannot end one completion and leave the others; set it to 'wait', or use the embedded engine, the emulated one, PyTorch, or one of a module`,
    );
  if (isShared(config))
    refuse(
      `'tail' is '${tail}' where ranks share episodes, which end where they run; set 'placement' to 'own' and 'migrate' to 'never', or 'tail' to 'wait'`,
    );
}

/** Refuses what the engine does not do with completions that have begun when weights come, and what would change nothing. */
export function checkOnNewWeights(config: EngineConfig & RolloutOrderConfig): void {
  const { onNewWeights, engine, emulated, tail = "wait" } = config;
  if (onNewWeights === undefined) return;
  const refuse = (why: string): never => {
    throw new TreadleError("config.invalid", `'onNewWeights' is '${onNewWeights}', but ${why}`);
  };
  const kind = emulated ? "emulated" : (engine?.kind ?? "embedded");
  if (kind === "sglang" || kind === "vllm")
    refuse(
      `an engine of kind '${kind}' begins completions again from their prompts, and carries no episode on; leave it out, or use the embedded engine or the emulated one`,
    );
  if (kind === "torch" && onNewWeights === "keep")
    refuse(
      `an engine of kind 'torch' keeps no keys and values over new weights; set it to 'recompute' or 'restart', or use the embedded engine or the emulated one`,
    );
  if (!emulated && engine?.kind === "torch" && engine.process === "shared" && onNewWeights !== "restart")
    refuse(
      `'engine.process' is 'shared', where a step of the trainer has completions begin again from their prompts; leave it out, or set 'engine.process' to 'own'`,
    );
  if (isShared(config))
    refuse(
      `ranks share episodes, which end in the step that they begin in; leave it out, or set 'placement' to 'own', 'migrate' to 'never', and 'tail' to 'carry'`,
    );
  // A rank pulls weights between its calls alone: what has begun by then is what a step has left.
  if (tail !== "carry")
    refuse(`'tail' is '${tail}', which leaves no begun episode to a later step; remove it, or set 'tail' to 'carry'`);
}

/** What a module or a subclass has made is known once it is there: one that does not heed it would ignore it in silence. */
export function checkHeedsNewWeights(config: EngineConfig & RolloutOrderConfig, generation: GenerationEngine): void {
  const { onNewWeights, engine } = config;
  if (onNewWeights === undefined || onNewWeights === "restart" || generation.heedsNewWeights) return;
  // It goes on behind tokens that it is given, which is all that its weights' coming between calls asks for.
  if (onNewWeights === "recompute" && engine?.kind === "torch") return;
  throw new TreadleError(
    "config.invalid",
    `'onNewWeights' is '${onNewWeights}', but the engine of kind '${generation.kind}' does not say 'heedsNewWeights'; leave it out or set it to 'restart', or let the engine do as 'onNewWeights' of GenerateOptions says, and set its 'heedsNewWeights' to 'true'`,
  );
}

/** Of one prompt that was taken: how each of its samples is cut. */
type Racing = {
  /** of the prompt that has its place now */
  delivery: GroupDelivery;
  readonly cuts: (() => void)[];
  /** what each sample has come to, where that may go on later */
  readonly ends: Map<number, EpisodeEnd>;
  isLost: boolean;
  /** how many prompts have had its place */
  numDraws: number;
};

/** How an episode has ended, or was cut. */
export type EpisodeEnd = {
  readonly completion: Completion;
  /** where a tool's tokens stand */
  readonly answers: readonly Span[];
  /** it was cut, and its tool still has something of it */
  readonly goesOn?: CutAtTool | undefined;
};

/** What a tool has of episodes that were cut: it ends, or goes on in a later step. */
export type CutTrajectories = {
  readonly over: (trajectory: string) => void;
  readonly keep: (trajectory: string) => void;
};

/** What a step's prompts come from, and go to. */
export type TailPorts = {
  readonly groups: Sink<EpisodeGroup>;
  /** for prompts that the step leaves, where it may leave any */
  readonly late: Sink<Prompt> | undefined;
  /** Begins these samples of a prompt. */
  readonly begin: (number: number, prompt: Prompt, samples: readonly number[]) => void;
  /** a prompt has begun, and will be delivered or left */
  readonly opened: (delivery: GroupDelivery) => void;
  readonly tool: CutTrajectories | undefined;
};

/** What a rank's groups of one step come to: each is delivered once, or given up, and what is too many ends early. */
export class StepTail {
  readonly #race: TailRace;
  readonly #tail: NonNullable<RolloutOrderConfig["tail"]>;
  readonly #onNewWeights: RolloutOrderConfig["onNewWeights"];
  /** there where a step may leave prompts */
  readonly #late: Sink<Prompt>;
  readonly #prompts: Racing[] = [];
  readonly #lengths = { trained: { episodes: 0, tokens: 0 }, generated: { episodes: 0, tokens: 0 } };
  readonly #spares: StreamItem<Prompt>[] = [];
  readonly #groups: Sink<EpisodeGroup>;
  readonly #opened: TailPorts["opened"];
  readonly #numCut = { withGroup: 0, withStep: 0, prompts: 0 };

  readonly #resample: number;
  readonly #begin: TailPorts["begin"];
  readonly #tool: CutTrajectories | undefined;
  #carriedTokens = 0;
  #numReplaced = 0;
  #numAlike = 0;

  constructor(config: RolloutOrderConfig & { readonly groupSize: number }, ports: TailPorts) {
    const { tail = "wait", groupSize, resample = 0, onNewWeights } = config;
    const { late, groups, begin, opened, tool } = ports;
    if (leavesPrompts(config) !== (late !== undefined))
      throw new TreadleError(
        "workflow.invalid",
        late
          ? `'generate' was given '${late.name}' for prompts that its step leaves, but with 'tail' '${tail}' and 'resample' '${resample}' it leaves none; leave it out where 'leavesPrompts' is false`
          : `'generate' was given no channel for prompts that its step leaves, as 'tail' '${tail}' and 'resample' '${resample}' do; give it the sink of one, as workflows/reasoning-grpo does, or set them to 'wait' and '0'`,
      );
    this.#tail = tail;
    this.#onNewWeights = onNewWeights;
    this.#late = late as Sink<Prompt>;
    this.#groups = groups;
    this.#resample = resample;
    this.#begin = begin;
    this.#opened = opened;
    this.#tool = tool;
    this.#race = new TailRace(groupSize, oversamplingOf(config));
  }

  /** that begin of a prompt which races */
  get numSamples(): number {
    return this.#race.numSamples;
  }

  /** Returns its number here, which samples of it are to begin, and what each goes on with; undefined for a spare one, which may take another's place. */
  take(item: StreamItem<Prompt>) {
    const { isLate, begun, spare } = item.value;
    if (spare) {
      this.#spares.push(item);
      return undefined;
    }
    const { prompt: number, samples } = this.#race.take(isLate, begun?.length);
    this.#prompts.push({ delivery: this.#deliver(item), cuts: [], ends: new Map(), isLost: false, numDraws: 1 });
    const going = (begun ?? []).map((each) => goingOn(each, this.#onNewWeights));
    for (const [sample, { tokens }] of (begun ?? []).entries()) {
      const numKept = going[sample]?.tokens.length ?? 0;
      this.#carriedTokens += numKept;
      count(this.#lengths.generated, tokens.length - numKept, 0);
    }
    return { number, samples, begun: going };
  }

  #deliver(item: StreamItem<Prompt>): GroupDelivery {
    const delivery = new GroupDelivery(item, this.#groups);
    this.#opened(delivery);
    return delivery;
  }

  /** From now on a sample is cut by this. */
  began(number: number, sample: number, cut: () => void): void {
    this.#of(number).cuts[sample] = cut;
  }

  /** An episode has ended, or was cut; where it counts, it is judged. */
  ended(number: number, sample: number, end: EpisodeEnd, judge: () => Promise<Episode>): void {
    const racing = this.#of(number);
    const goesOn = this.#goesOn(racing);
    if (goesOn) racing.ends.set(sample, end);
    count(this.#lengths.generated, end.completion.tokens.length);
    if (this.#race.isRunning(number, sample)) {
      racing.delivery.add(sample, judge());
      this.#obey(this.#race.ended(number, sample));
      return;
    }
    const isCarried = goesOn && racing.isLost;
    if (end.goesOn) this.#tool?.[isCarried ? "keep" : "over"](end.goesOn.trajectory);
    if (isCarried) this.#defer(racing);
  }

  /** No prompt comes any more. */
  seal(): void {
    this.#obey(this.#race.seal());
  }

  /** All groups are put: spare prompts that took no place wait for a later step. */
  async leaveSpares(): Promise<void> {
    await Promise.all(this.#spares.splice(0).map((item) => item.commit(this.#late, item.value)));
  }

  made({ episodes }: EpisodeGroup): void {
    for (const { tokens, promptLength } of episodes) count(this.#lengths.trained, tokens.length - promptLength);
  }

  get metrics(): TailMetrics {
    const alike = this.#resample > 0 && { groupsReplaced: this.#numReplaced, groupsAlike: this.#numAlike };
    if (this.#tail === "wait") return { ...alike };
    const { trained, generated } = this.#lengths;
    const { withGroup, withStep, prompts } = this.#numCut;
    return {
      ...alike,
      cutWithGroup: withGroup,
      cutWithStep: withStep,
      ...(this.#tail === "cut" ? { promptsCut: prompts } : { promptsDeferred: prompts }),
      ...(this.#tail === "carry" && { carriedTokens: this.#carriedTokens }),
      cutTokens: generated.tokens - trained.tokens,
      trainedLength: trained.tokens / Math.max(1, trained.episodes),
      generatedLength: generated.tokens / Math.max(1, generated.episodes),
    };
  }

  /** Whether a prompt, where it loses, goes on with what it has. One that took another's place begins again: its samples have other numbers. */
  #goesOn({ numDraws }: Racing): boolean {
    return this.#tail === "carry" && numDraws === 1;
  }

  /**
   * A prompt goes on later with what its samples have, once that is known of each: one that ended with the last token of the race is
   * told of after it, and one whose tool works when that has answered. They count as generated when they end.
   */
  #defer({ delivery, ends }: Racing): void {
    if (ends.size < this.#race.numSamples) return;
    const begun = Array.from({ length: ends.size }, (_, sample): BegunEpisode => {
      const { completion, answers, goesOn } = ends.get(sample) as EpisodeEnd;
      const { tokens, logprobs, policyVersion, versions, finishReason } = completion;
      count(this.#lengths.generated, -tokens.length, -1);
      const tool = { ...goesOn, answers: [...answers] };
      return {
        ...{ tokens, logprobs, policyVersion },
        ...(versions && { versions }),
        ...(finishReason !== "abort" && { finishReason }),
        ...(answers.length > 0 && { tool }),
      };
    });
    delivery.defer(this.#late, begun);
  }

  /** DAPO's dynamic sampling (arXiv:2503.14476): rewards that are alike are no advantage of anything, so another prompt has its place. */
  #isReplaced(number: number, { episodes }: EpisodeGroup): boolean {
    const racing = this.#of(number);
    const { delivery } = racing;
    const isAlike = episodes.every(({ reward }) => reward === episodes[0]?.reward);
    if (!isAlike || this.#resample === 0 || episodes.some(({ finishReason }) => finishReason === "abort")) return false;
    if (racing.numDraws > this.#resample || this.#spares.length === 0) {
      this.#numAlike++;
      return false;
    }
    this.#numReplaced++;
    racing.numDraws++;
    const { samples, orders } = this.#race.again(number);
    const cut = (): void => delivery.cut(this.#late, "alike");
    if (samples.length === 0) cut();
    else {
      racing.delivery = this.#deliver(this.#spares.shift() as StreamItem<Prompt>);
      // Not before: where this rank dies, whoever is given it again makes the same of it, and so the step has its group.
      racing.delivery.done.then(cut, () => {});
    }
    // Where others are enough by now, there is nothing more to lose here.
    this.#obey(orders.filter(({ type, prompt }) => type !== "lose" || prompt !== number));
    if (samples.length > 0) this.#begin(number, racing.delivery.prompt, samples);
    return true;
  }

  #of(number: number): Racing {
    return this.#prompts[number] as Racing;
  }

  #obey(orders: readonly TailOrder[]): void {
    for (const { type, prompt } of orders) if (type === "lose") this.#of(prompt).isLost = true;
    for (const order of orders) {
      const racing = this.#of(order.prompt);
      const { delivery, cuts, isLost } = racing;
      if (order.type === "keep") delivery.keep(order.samples, (group) => this.#isReplaced(order.prompt, group));
      else if (order.type === "lose") {
        this.#numCut.prompts++;
        // What goes on is put with the end of its last sample: at least one was cut, or has just ended.
        if (this.#tail === "cut") delivery.cut(this.#late, "late");
        else if (!this.#goesOn(racing)) delivery.defer(this.#late);
      } else {
        this.#numCut[isLost ? "withStep" : "withGroup"]++;
        cuts[order.sample]?.();
      }
    }
  }
}

function count(sum: { episodes: number; tokens: number }, numTokens: number, numEpisodes = 1): void {
  sum.episodes += numEpisodes;
  sum.tokens += numTokens;
}
