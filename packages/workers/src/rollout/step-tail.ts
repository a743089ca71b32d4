import {
  type BegunEpisode,
  type Completion,
  type Episode,
  type EpisodeGroup,
  type Prompt,
  TreadleError,
} from "@treadle/contracts";
import type { Sink, StreamItem } from "@treadle/runtime";
import { type TailOrder, TailRace } from "@treadle/trajectories";
import type { EngineConfig } from "../engine.ts";
import type { Span } from "./episode-stream.ts";
import { GroupDelivery } from "./group-delivery.ts";
import { defersPrompts, oversamplingOf, type RolloutOrderConfig, type TailMetrics } from "./order-config.ts";
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
  if (!emulated && engine !== undefined && engine.kind !== "embedded")
    refuse(
      `'tail' is '${tail}', but an engine of kind '${engine.kind}' cannot end one completion and leave the others; set it to 'wait', or use the embedded or the emulated engine`,
    );
  if (isShared(config))
    refuse(
      `'tail' is '${tail}' where ranks share episodes, which end where they run; set 'placement' to 'own' and 'migrate' to 'never', or 'tail' to 'wait'`,
    );
}

/** Of one prompt that was taken: how each of its samples is cut. */
type Racing = {
  readonly delivery: GroupDelivery;
  readonly cuts: (() => void)[];
  /** what each sample has come to, where that may go on later */
  readonly ends: Map<number, EpisodeEnd>;
  isLost: boolean;
  numDraws: number;
};

/** How an episode has ended, or was cut. */
export type EpisodeEnd = {
  readonly completion: Completion;
  /** where a tool's tokens stand */
  readonly answers: readonly Span[];
  /** it was cut, and its tool still has this of it */
  readonly trajectory?: string | undefined;
};

/** What a tool has of episodes that were cut: it ends, or goes on in a later step. */
export type CutTrajectories = {
  readonly over: (trajectory: string) => void;
  readonly keep: (trajectory: string) => void;
};

/** Begins these samples of a prompt. */
type Begin = (number: number, prompt: Prompt, samples: readonly number[]) => void;

/** What a rank's groups of one step come to: each is delivered once, or given up, and what is too many ends early. */
export class StepTail {
  readonly #race: TailRace;
  readonly #tail: NonNullable<RolloutOrderConfig["tail"]>;
  readonly #late: Sink<Prompt> | undefined;
  readonly #prompts: Racing[] = [];
  readonly #lengths = { trained: { episodes: 0, tokens: 0 }, generated: { episodes: 0, tokens: 0 } };
  readonly #numCut = { withGroup: 0, withStep: 0, prompts: 0 };

  readonly #resample: number;
  readonly #begin: Begin;
  readonly #tool: CutTrajectories | undefined;
  #carriedTokens = 0;
  #numRedrawn = 0;
  #numAlike = 0;

  /** `late`: where prompts go that have lost, if they are played later. */
  constructor(
    config: RolloutOrderConfig & { readonly groupSize: number },
    late: Sink<Prompt> | undefined,
    begin: Begin,
    tool: CutTrajectories | undefined,
  ) {
    const { tail = "wait", groupSize, resample = 0 } = config;
    if (defersPrompts(config) !== (late !== undefined))
      throw new TreadleError(
        "workflow.invalid",
        late
          ? `'generate' was given '${late.name}' for prompts that lose, which 'tail' '${tail}' puts nowhere; leave it out, or set 'tail' to 'batch' or 'carry'`
          : `'tail' is '${tail}', but 'generate' was given no channel for the prompts that lose; give it the sink of one, as workflows/reasoning-grpo does, or set 'tail' to 'cut'`,
      );
    this.#tail = tail;
    this.#late = late;
    this.#resample = resample;
    this.#begin = begin;
    this.#tool = tool;
    this.#race = new TailRace(groupSize, oversamplingOf(config));
  }

  /** that begin of a prompt which races */
  get numSamples(): number {
    return this.#race.numSamples;
  }

  /** Returns its number here, and which samples of it are to begin. */
  take(item: StreamItem<Prompt>, groups: Sink<EpisodeGroup>) {
    const delivery = new GroupDelivery(item, groups);
    const { isLate, begun } = item.value;
    const { prompt: number, samples } = this.#race.take(isLate, begun?.length);
    this.#prompts.push({ delivery, cuts: [], ends: new Map(), isLost: false, numDraws: 1 });
    for (const { tokens } of begun ?? []) this.#carriedTokens += tokens.length;
    return { delivery, number, samples };
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
    if (end.trajectory !== undefined) this.#tool?.[isCarried ? "keep" : "over"](end.trajectory);
    if (isCarried) this.#defer(racing);
  }

  /** No prompt comes any more. */
  seal(): void {
    this.#obey(this.#race.seal());
  }

  made({ episodes }: EpisodeGroup): void {
    for (const { tokens, promptLength } of episodes) count(this.#lengths.trained, tokens.length - promptLength);
  }

  get metrics(): TailMetrics {
    const redrawn = this.#resample > 0 && { groupsRedrawn: this.#numRedrawn, groupsAlike: this.#numAlike };
    if (this.#tail === "wait") return { ...redrawn };
    const { trained, generated } = this.#lengths;
    const { withGroup, withStep, prompts } = this.#numCut;
    return {
      ...redrawn,
      cutWithGroup: withGroup,
      cutWithStep: withStep,
      ...(this.#tail === "cut" ? { promptsCut: prompts } : { promptsDeferred: prompts }),
      ...(this.#tail === "carry" && { carriedTokens: this.#carriedTokens }),
      cutTokens: generated.tokens - trained.tokens,
      trainedLength: trained.tokens / Math.max(1, trained.episodes),
      generatedLength: generated.tokens / Math.max(1, generated.episodes),
    };
  }

  /** Whether a prompt, where it loses, goes on with what it has. One that was drawn again begins again: its samples have other numbers. */
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
      const { completion, answers, trajectory } = ends.get(sample) as EpisodeEnd;
      const { tokens, logprobs, policyVersion, finishReason } = completion;
      count(this.#lengths.generated, -tokens.length, -1);
      const tool = { ...(trajectory !== undefined && { trajectory }), answers: [...answers] };
      return {
        ...{ tokens, logprobs, policyVersion },
        ...(finishReason !== "abort" && { finishReason }),
        ...(answers.length > 0 && { tool }),
      };
    });
    delivery.lose(this.#late, begun);
  }

  /** DAPO's dynamic sampling (arXiv:2503.14476), of the same prompt: rewards that are alike are no advantage of anything. */
  #isDrawnAgain(number: number, { episodes }: EpisodeGroup): boolean {
    const racing = this.#of(number);
    const isAlike = episodes.every(({ reward }) => reward === episodes[0]?.reward);
    if (!isAlike || this.#resample === 0 || episodes.some(({ finishReason }) => finishReason === "abort")) return false;
    if (racing.numDraws > this.#resample) {
      this.#numAlike++;
      return false;
    }
    racing.numDraws++;
    this.#numRedrawn++;
    const { samples, orders } = this.#race.again(number);
    this.#obey(orders);
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
      if (order.type === "keep") delivery.keep(order.samples, (group) => this.#isDrawnAgain(order.prompt, group));
      else if (order.type === "lose") {
        this.#numCut.prompts++;
        // What goes on is put with the end of its last sample: at least one was cut, or has just ended.
        if (!this.#goesOn(racing)) delivery.lose(this.#late);
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
