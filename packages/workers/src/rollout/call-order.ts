import { createHash } from "node:crypto";
import type { Completion, Prompt } from "@treadle/contracts";
import type { GenerationOrder } from "@treadle/engines";
import type { BegunProgress, EpisodeLimits, EpisodeOrder } from "@treadle/trajectories";

/** So that a prediction which errs by its usual half displaces nothing, and nothing is displaced for a few tokens. */
const displace = { margin: 0.5, minTokens: 8 };

/** So that places stay taken while most of those that have begun wait for a tool; none beyond the number of episodes. */
const sparePerPlace = 3;

export type CallPace = {
  /** episodes that are computed at once */
  readonly places: number;
  /** what a token takes while every place is taken, where that is measured while episodes run */
  readonly tokenSeconds?: (() => number | undefined) | undefined;
  /** episodes that have begun go on where weights come; default: they begin again */
  readonly goesOn?: boolean | undefined;
};

export type CallOrderOptions = CallPace & {
  readonly step: number;
  /** that each of its episodes is ended by: none is predicted to go on beyond them */
  readonly limits?: EpisodeLimits | undefined;
};

/** What an episode has already, of an earlier step. */
export type BegunOfCall = {
  readonly numTokens: number;
  /** where in these tools' answers stand, from and to: each ends a turn */
  readonly answers: readonly (readonly [from: number, to: number])[];
  /** of the call behind each of these, as far as they were kept */
  readonly outcomes?: readonly ToolCallOutcome[] | undefined;
  /** of its tokens, where they are known */
  readonly logprobs?: Float32Array | undefined;
  /** of the weights under which it goes on */
  readonly policyVersion: number;
};

type ToolCallOutcome = { readonly toolSeconds: number; readonly hasToolFailed: boolean };

type Told = {
  readonly id: number;
  policyVersion: number | undefined;
  numTokens: number;
  /** it has begun with a part of a turn, or all of one whose end is not told yet */
  isInTurn: boolean;
};

/** The episodes of one call, as the order of their rank sees them. */
export class CallOrder {
  readonly #order: EpisodeOrder;
  readonly #prompts: Prompt[];
  readonly #step: number;
  readonly #told: Told[];
  readonly #tokenSeconds: () => number | undefined;
  readonly #limits: EpisodeLimits | undefined;
  readonly #goesOn: boolean;
  /** of the engine */
  readonly options: GenerationOrder;

  /** `prompts`: of the first episodes, one each. */
  constructor(order: EpisodeOrder, prompts: readonly Prompt[], options: CallOrderOptions) {
    const { places, step, tokenSeconds = () => undefined, limits, goesOn = false } = options;
    this.#order = order;
    this.#prompts = [...prompts];
    this.#step = step;
    this.#tokenSeconds = tokenSeconds;
    this.#limits = limits;
    this.#goesOn = goesOn;
    this.#told = prompts.map((_, index) => this.#begin(index));
    this.options = {
      priority: (index) => this.priority(index),
      spareCaches: sparePerPlace * places,
      displace: order.displaces ? displace : undefined,
    };
  }

  /** Another episode. Returns its index. */
  add(prompt: Prompt, begun?: BegunOfCall): number {
    const index = this.#prompts.push(prompt) - 1;
    this.#told.push(this.#begin(index, begun));
    return index;
  }

  /** That the longest may choose at most, by its limits and the shortest prompt; undefined where nothing limits it. */
  get mostTokens(): number | undefined {
    const { maxTokens = Number.POSITIVE_INFINITY, contextTokens = Number.POSITIVE_INFINITY } = this.#limits ?? {};
    const shortest = this.#prompts.reduce((least, { tokens }) => Math.min(least, tokens.length), contextTokens);
    const most = Math.min(maxTokens, contextTokens - (Number.isFinite(shortest) ? shortest : 0));
    return Number.isFinite(most) ? most : undefined;
  }

  /** Tokens that the episode has still to come, and by how much that errs in the logarithm. */
  predicted(index: number): { readonly tokens: number; readonly logSd: number } {
    return this.#order.predicted((this.#told[index] as Told).id);
  }

  priority(index: number): number {
    const tokenSeconds = this.#tokenSeconds();
    if (tokenSeconds !== undefined) this.#order.tokenSeconds = tokenSeconds;
    return this.#order.priority((this.#told[index] as Told).id);
  }

  /** Tokens of the episode that the order knows of. */
  numTokens(index: number): number {
    return (this.#told[index] as Told).numTokens;
  }

  /** The episode has so many tokens by now, in a turn that goes on; of one that began again, fewer than before. */
  generating(index: number, numTokens: number): void {
    const told = this.#told[index] as Told;
    this.#order.generating(told.id, Math.max(0, numTokens - told.numTokens));
  }

  /** The episode has ended a turn: all that it has chosen since it was told of last. */
  turnEnded(index: number, { tokens, logprobs, policyVersion }: Completion): void {
    let told = this.#told[index] as Told;
    if (!this.#goesOn && told.policyVersion !== undefined && told.policyVersion !== policyVersion) {
      // It has begun again with other weights: what it did before was another episode.
      this.#order.cut(told.id);
      told = this.#begin(index);
      this.#told[index] = told;
    }
    told.policyVersion = policyVersion;
    const numTokens = Math.max(0, tokens.length - told.numTokens);
    if (numTokens <= 0 && !told.isInTurn) return;
    told.isInTurn = false;
    const meanLogProbability = meanOf(logprobs, told.numTokens, tokens.length);
    told.numTokens = tokens.length;
    this.#order.turnEnded(told.id, { tokens: numTokens, meanLogProbability });
  }

  /** The tool that the last turn called has answered. */
  toolEnded(index: number, outcome: { toolSeconds: number; hasToolFailed: boolean; observedTokens: number }): void {
    const told = this.#told[index] as Told;
    told.numTokens += outcome.observedTokens;
    this.#order.toolEnded(told.id, outcome);
  }

  ended(index: number, completion: Completion): void {
    if (completion.finishReason === "abort") {
      this.generating(index, completion.tokens.length); // EO4
      this.cut(index);
      return;
    }
    this.turnEnded(index, completion);
    this.#order.ended((this.#told[index] as Told).id);
  }

  /** The episode goes on here no more, though it had not ended. */
  cut(index: number): void {
    this.#order.cut((this.#told[index] as Told).id);
  }

  #begin(index: number, begun?: BegunOfCall): Told {
    const { id: occurrence, tokens } = this.#prompts[index] as Prompt;
    const { numTokens, answers, policyVersion } = begun ?? { numTokens: 0, answers: [], policyVersion: undefined };
    const id = this.#order.begin({
      prompt: historyKey(tokens),
      group: `${this.#step}/${occurrence}`,
      contextTokens: tokens.length,
      limits: this.#limits,
      // PG4
      begun: begun && progressOf(begun),
    });
    return { id, policyVersion, numTokens, isInTurn: numTokens > (answers.at(-1)?.[1] ?? 0) };
  }
}

/** As the predictor of the step before knew it, as far as that was kept. */
function progressOf({ numTokens, answers, outcomes = [], logprobs }: BegunOfCall): BegunProgress {
  const observedTokens = answers.reduce((sum, [from, to]) => sum + to - from, 0);
  const [end, answeredTo] = answers.at(-1) ?? [0, 0];
  const start = answers.at(-2)?.[1] ?? 0;
  const { toolSeconds = 0, hasToolFailed = false } = outcomes[answers.length - 1] ?? {};
  const meanLogProbability = logprobs && meanOf(logprobs, start, end);
  return {
    tokens: numTokens - observedTokens,
    observedTokens,
    turns: answers.length,
    toolSeconds: outcomes.reduce((sum, outcome) => sum + outcome.toolSeconds, 0),
    numFailures: outcomes.filter((outcome) => outcome.hasToolFailed).length,
    last:
      answers.length === 0
        ? undefined
        : { tokens: end - start, toolSeconds, hasToolFailed, observedTokens: answeredTo - end, meanLogProbability },
  };
}

/** Rounding may lift what is certain above 0, and what is next to impossible has no finite logarithm. */
function meanOf(logprobs: Float32Array, from: number, to: number): number | undefined {
  let sum = 0;
  for (let at = from; at < to; at++) sum += logprobs[at] as number;
  return to > from ? Math.min(0, Math.max(-100, sum / (to - from))) : undefined;
}

/** What a prompt's history is kept by: its tokens, as its id also says in which step it occurs. */
export const historyKey = (tokens: Int32Array): string =>
  createHash("sha1")
    .update(new Uint8Array(tokens.buffer, tokens.byteOffset, tokens.byteLength))
    .digest("base64url");
