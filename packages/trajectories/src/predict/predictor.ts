/**
 * Says before each turn of an episode how many tokens and seconds of tools are still to come, and learns from what came.
 * A pure state machine: others tell it what episodes do. What is asked and what becomes of it meet when a step is
 * learned; until then finished samples of a group tell of those which run.
 *
 * - PG1 a prediction is judged before its outcome is learned, so errors are those of data that came later
 * - PG2 where the learned model was not better than prompt history, the answer is that of prompt history
 * - PG3 an episode that is not finished counts as at least what it has
 * - PG4 no model foretells more than an episode's limits leave it, and what is judged and learned is what was foretold so
 */
import { readProblem, TreadleError } from "@treadle/contracts";
import { z } from "zod";
import { inverseNormal } from "../normal.ts";
import { Calibration, CalibrationState, emptyCalibration } from "./calibration.ts";
import { type Asking, emptyModels, type ModelName, Models, ModelsState, modelNames, type Sample } from "./models.ts";
import {
  type EpisodeLimits,
  type Progress,
  type Quantity,
  quantities,
  stageOf,
  ToolOutcome,
  Turn,
} from "./progress.ts";
import { emptyPromptModel, type LogNormal } from "./prompt-model.ts";

const Learned = z.strictObject({
  models: ModelsState,
  calibration: z.record(z.enum(modelNames), CalibrationState),
});

/** What it has learned, as JSON. Episodes under way are not part of it. */
export const PredictorState = z.strictObject({
  version: z.literal(1),
  tokens: Learned,
  toolSeconds: Learned,
});
export type PredictorState = z.infer<typeof PredictorState>;

/** What is still to come: log(1 + x) is normal with these, and cut at `mostLeft`; the median of x is `expm1(logMean)`. */
export type Estimate = LogNormal & {
  /** PG4; infinite where no limit is known */
  readonly mostLeft: number;
  readonly from: ModelName;
  /** what each model says, with its own log-sd */
  readonly models: Readonly<Record<ModelName, LogNormal>>;
};
export type EpisodePrediction = Readonly<Record<Quantity, Estimate>>;

export type EpisodeStart = {
  readonly prompt: string;
  /** samples of one prompt in one step */
  readonly group: string;
  readonly contextTokens: number;
  readonly limits?: EpisodeLimits | undefined;
  /** what it has already, of an earlier step */
  readonly begun?: BegunProgress | undefined;
};

export type BegunProgress = {
  /** that it has chosen, of a turn that has not ended, too */
  readonly tokens: number;
  /** of its tools' answers */
  readonly observedTokens: number;
  /** that have ended */
  readonly turns: number;
  /** that its tools took, together */
  readonly toolSeconds: number;
  /** turns whose tool failed */
  readonly numFailures: number;
  /** of the turns that have ended */
  readonly last: Turn | undefined;
};

/** What is left with a probability of `share` at most: never more than the limits leave (PG4). */
export function quantileOf({ logMean, logSd, mostLeft }: Omit<Estimate, "from" | "models">, share: number): number {
  return Math.min(mostLeft, Math.max(0, Math.expm1(logMean + logSd * inverseNormal(share))));
}

export const nothingBegun: BegunProgress = {
  tokens: 0,
  observedTokens: 0,
  turns: 0,
  toolSeconds: 0,
  numFailures: 0,
  last: undefined,
};

type Asked = Omit<Sample, "logRest"> & { readonly centers: Readonly<Record<ModelName, number>>; isBounded: boolean };

/** Samples of one prompt, in columns: each prediction reads those of all others. */
type Group = {
  /** log(1 + spent), of a turn under way, too (PG3) */
  readonly logSpent: Readonly<Record<Quantity, number[]>>;
  readonly hasFinished: boolean[];
};

type Episode = Omit<EpisodeStart, "group"> & {
  group: Group;
  readonly groupName: string;
  state: "running" | "finished" | "cut";
  turns: number;
  failures: number;
  observedTokens: number;
  last: Turn | undefined;
  readonly spent: Record<Quantity, number>;
  /** where it stands in its group's columns */
  slot: number;
  /** PG3: tokens of a turn that has not ended */
  generating: number;
  /** by quantity, one a turn that was asked about */
  readonly asked: Readonly<Record<Quantity, Asked[]>>;
};

/** Errors larger than this many log-sds teach no more than one of that size. */
const believedSds = 3;

export class EpisodePredictor {
  readonly #learned: Readonly<Record<Quantity, QuantityPredictor>>;
  readonly #episodes = new Map<string, Episode>();
  readonly #groups = new Map<string, Group>();
  readonly #learns: boolean;

  /**
   * `state` is checked. Throws `problem.invalid` when it is of another version or shape. One that never learns keeps
   * nothing of what it was asked.
   */
  constructor(state?: unknown, { learns = true }: { readonly learns?: boolean } = {}) {
    this.#learns = learns;
    const read = state === undefined ? undefined : readProblem(PredictorState, state);
    this.#learned = {
      tokens: new QuantityPredictor(read?.tokens),
      toolSeconds: new QuantityPredictor(read?.toolSeconds),
    };
  }

  get state(): PredictorState {
    return { version: 1, tokens: this.#learned.tokens.state, toolSeconds: this.#learned.toolSeconds.state };
  }

  begin(id: string, start: EpisodeStart): void {
    const { tokens, observedTokens, turns, toolSeconds, numFailures, last } = start.begun ?? nothingBegun;
    if (this.#episodes.has(id)) throw new TreadleError("problem.invalid", `episode '${id}' has begun already`);
    const group = this.#groups.get(start.group) ?? emptyGroup();
    this.#groups.set(start.group, group);
    const { prompt, contextTokens, limits } = start;
    const episode: Episode = {
      ...{ prompt, contextTokens, limits, group, groupName: start.group },
      state: "running",
      turns,
      failures: numFailures,
      observedTokens,
      last,
      spent: { tokens, toolSeconds },
      slot: group.hasFinished.length,
      generating: 0,
      asked: { tokens: [], toolSeconds: [] },
    };
    this.#episodes.set(id, episode);
    hasSpent(episode);
  }

  /** Of the turn under way it has chosen so many tokens by now: its siblings hear of them before it ends (PG3). */
  generating(id: string, tokens: number): void {
    if (!(tokens >= 0 && tokens < Number.POSITIVE_INFINITY)) {
      throw new TreadleError(
        "problem.invalid",
        `episode '${id}' is said to have chosen '${tokens}' tokens of its turn, where a number of at least 0 was expected`,
      );
    }
    const episode = this.#running(id);
    episode.generating = tokens;
    hasSpent(episode);
  }

  /** A turn is over; its tool is, too, or `toolEnded` follows. */
  turnEnded(id: string, stated: z.input<typeof Turn>): void {
    const turn = readProblem(Turn, stated);
    const episode = this.#running(id);
    episode.turns++;
    episode.failures += turn.hasToolFailed ? 1 : 0;
    episode.observedTokens += turn.observedTokens;
    episode.last = turn;
    episode.generating = 0;
    for (const quantity of quantities) episode.spent[quantity] += turn[quantity];
    hasSpent(episode);
  }

  /** The tool that the last turn called is over, of which that turn said nothing yet. */
  toolEnded(id: string, stated: z.input<typeof ToolOutcome>): void {
    const outcome = readProblem(ToolOutcome, stated);
    const episode = this.#running(id);
    if (episode.last === undefined) {
      throw new TreadleError("problem.invalid", `episode '${id}' has called no tool: it has had no turn`);
    }
    episode.last = { ...episode.last, ...outcome };
    episode.failures += outcome.hasToolFailed ? 1 : 0;
    episode.observedTokens += outcome.observedTokens;
    episode.spent.toolSeconds += outcome.toolSeconds;
    hasSpent(episode);
  }

  ended(id: string): void {
    const episode = this.#running(id);
    episode.state = "finished";
    hasSpent(episode);
  }

  /** The episode goes on no more, though it was not finished: PG3. */
  cut(id: string): void {
    const episode = this.#running(id);
    episode.spent.tokens += episode.generating;
    episode.generating = 0;
    episode.state = "cut";
  }

  /** What the episode has still to come, as of now. */
  predict(id: string): EpisodePrediction {
    const episode = this.#running(id);
    return { tokens: this.#ask(episode, "tokens"), toolSeconds: this.#ask(episode, "toolSeconds") };
  }

  /** The same of one quantity alone, in half the time. */
  predictOnly(id: string, quantity: Quantity): Estimate {
    return this.#ask(this.#running(id), quantity);
  }

  /** Learns what became of the episodes since the last time; those which are over are forgotten. Once a step. */
  learn(): void {
    const episodes = [...this.#episodes.values()];
    for (const quantity of quantities) this.#learned[quantity].learn(quantity, episodes);
    for (const [id, episode] of this.#episodes) {
      if (episode.state === "running") continue;
      this.#episodes.delete(id);
      this.#groups.delete(episode.groupName);
    }
    // Those that go on keep their order, without the others.
    for (const episode of this.#episodes.values()) {
      const group = this.#groups.get(episode.groupName) ?? emptyGroup();
      this.#groups.set(episode.groupName, group);
      if (group === episode.group) continue;
      episode.group = group;
      episode.slot = group.hasFinished.length;
      hasSpent(episode);
    }
  }

  #running(id: string): Episode {
    const episode = this.#episodes.get(id);
    if (episode?.state === "running") return episode;
    const why = episode === undefined ? "has not begun" : "is over";
    throw new TreadleError("problem.invalid", `episode '${id}' ${why}; call begin with an id of its own first`);
  }

  #ask(episode: Episode, quantity: Quantity): Estimate {
    const [finished, running]: [number[], number[]] = [[], []];
    const { logSpent, hasFinished } = episode.group;
    const logs = logSpent[quantity];
    for (let slot = 0; slot < logs.length; slot++) {
      if (slot !== episode.slot) (hasFinished[slot] ? finished : running).push(logs[slot]!);
    }
    const { prompt, contextTokens, turns, spent, failures, last } = episode;
    return this.#learned[quantity].ask(this.#learns ? episode.asked[quantity] : undefined, {
      prompt,
      contextTokens,
      turns,
      spent: spent[quantity],
      generatedTokens: spent.tokens,
      toolSeconds: spent.toolSeconds,
      numFailures: failures,
      last,
      mostLeft: mostLeftOf(episode, quantity),
      siblings: { finished, running },
    });
  }
}

const emptyGroup = (): Group => ({ logSpent: { tokens: [], toolSeconds: [] }, hasFinished: [] });

function hasSpent({ group: { logSpent, hasFinished }, slot, spent, generating, state }: Episode): void {
  logSpent.tokens[slot] = Math.log1p(spent.tokens + generating);
  logSpent.toolSeconds[slot] = Math.log1p(spent.toolSeconds);
  hasFinished[slot] = state === "finished";
}

/** PG4 */
function mostLeftOf({ limits = {}, contextTokens, turns, spent, observedTokens }: Episode, quantity: Quantity): number {
  const {
    maxTokens = Number.POSITIVE_INFINITY,
    contextTokens: context = Number.POSITIVE_INFINITY,
    maxTurns = Number.POSITIVE_INFINITY,
  } = limits;
  // The last turn calls no tool.
  if (quantity === "toolSeconds") return turns < maxTurns - 1 ? Number.POSITIVE_INFINITY : 0;
  if (turns >= maxTurns) return 0;
  return Math.max(0, Math.min(maxTokens - spent.tokens, context - contextTokens - observedTokens - spent.tokens));
}

class QuantityPredictor {
  readonly #models: Models;
  readonly #calibration: Readonly<Record<ModelName, Calibration>>;

  constructor(state?: z.infer<typeof Learned>) {
    this.#models = new Models(state?.models ?? emptyModels(emptyPromptModel));
    this.#calibration = byModel((name) => new Calibration(state?.calibration[name] ?? emptyCalibration));
  }

  get state(): z.infer<typeof Learned> {
    return { models: this.#models.state, calibration: byModel((name) => this.#calibration[name].state) };
  }

  /** `asked`: where it is kept that this was asked. Where it is not, what no one reads is not computed. */
  ask(asked: Asked[] | undefined, progress: Progress): Estimate {
    const answers = this.#models.ask(progress);
    const { mostLeft, turns, spent } = progress;
    const most = Math.log1p(mostLeft);
    const stage = stageOf(turns);
    const from = this.#better(stage);
    if (asked === undefined) return new Answered(answers, this.#calibration, { stage, mostLeft, from });
    const centers = byModel((name) => boundedBy(most, answers.center(name)));
    // The last answer before a turn is the one that is judged.
    if (asked.at(-1)?.progress.turns === turns) asked.pop();
    const { base, features } = answers;
    asked.push({ progress: { turns, spent }, centers, base, features, isBounded: false });
    const models = byModel((name) => ({ logMean: centers[name], logSd: this.#calibration[name].logSd(stage) }));
    return { ...models[from], mostLeft, from, models };
  }

  learn(quantity: Quantity, episodes: readonly Episode[]): void {
    const totals = new Map<string, number[]>();
    const outcomes: (Sample & { readonly centers: Asked["centers"] })[] = [];
    const bounds: Sample[] = [];
    for (const { state, prompt, spent, asked } of episodes) {
      if (state === "finished") {
        const others = totals.get(prompt);
        if (others) others.push(spent[quantity]);
        else totals.set(prompt, [spent[quantity]]);
      }
      for (const each of asked[quantity]) {
        const sample = { ...each, logRest: Math.log1p(Math.max(0, spent[quantity] - each.progress.spent)) };
        if (state === "finished") outcomes.push(sample);
        else if (!each.isBounded) {
          each.isBounded = true;
          bounds.push(sample);
        }
      }
    }
    // PG1 all errors are of what was said before
    for (const { progress, centers, logRest } of this.#models.isEmpty ? [] : outcomes) {
      for (const name of modelNames) {
        this.#calibration[name].learn(stageOf(progress.turns), logRest - centers[name]);
      }
    }
    const clipOf = ({ progress }: Sample) => believedSds * this.#calibration.learned.logSd(stageOf(progress.turns));
    for (const sample of outcomes) this.#models.learn(sample, clipOf(sample));
    for (const sample of bounds) this.#models.learnAtLeast(sample, clipOf(sample));
    this.#models.learnTotals(totals);
  }

  /** PG2 */
  #better(stage: number): ModelName {
    const [learned, history] = [this.#calibration.learned, this.#calibration["prompt-history"]].map((each) =>
      each.rootMeanSquare(stage),
    );
    return learned !== undefined && history !== undefined && learned < history ? "learned" : "prompt-history";
  }
}

/** PG4 */
const boundedBy = (most: number, center: number): number => Math.max(0, Math.min(most, center));

type Calibrations = Readonly<Record<ModelName, Calibration>>;

/** What is said where nobody keeps it: of models that are not read nothing is computed. */
class Answered implements Estimate {
  readonly logMean: number;
  readonly logSd: number;
  readonly mostLeft: number;
  readonly from: ModelName;
  readonly #answers: Asking;
  readonly #calibration: Calibrations;
  readonly #stage: number;

  constructor(
    answers: Asking,
    calibration: Calibrations,
    { stage, mostLeft, from }: Pick<Estimate, "mostLeft" | "from"> & { readonly stage: number },
  ) {
    this.#answers = answers;
    this.#calibration = calibration;
    this.#stage = stage;
    this.mostLeft = mostLeft;
    this.from = from;
    this.logMean = this.#of(from);
    this.logSd = calibration[from].logSd(stage);
  }

  get models(): Estimate["models"] {
    return byModel((name) => ({ logMean: this.#of(name), logSd: this.#calibration[name].logSd(this.#stage) }));
  }

  #of(name: ModelName): number {
    return boundedBy(Math.log1p(this.mostLeft), this.#answers.center(name));
  }
}

function byModel<T>(of: (name: ModelName) => T): Record<ModelName, T> {
  return {
    learned: of("learned"),
    "prompt-history": of("prompt-history"),
    "tokens-so-far": of("tokens-so-far"),
    constant: of("constant"),
  };
}
