/**
 * Which episodes of a rank go first while they run: the predictor's word, by the order that a simulated rollout has. A pure
 * state machine: others tell it what episodes do, and ask for a priority whenever one begins to wait.
 *
 * - EO1 a priority is the negated `queueKey` of the same step in a simulated rollout: of both there is one definition
 * - EO2 a prediction is judged by how its episode ended, before anything is learned from it (PG1)
 * - EO3 a prediction that is not finite orders nothing: it is refused, with the episode's name
 * - EO4 an episode that was cut, or is told of no more, teaches what it had and is forgotten with its step
 */
import { TreadleError } from "@treadle/contracts";
import type { z } from "zod";
import type { PlayedEpisode, PlayedStep } from "../degrees/played-step.ts";
import type { ModelName } from "../predict/models.ts";
import {
  type EpisodePrediction,
  EpisodePredictor,
  type EpisodeStart,
  nothingBegun,
  type PredictorState,
} from "../predict/predictor.ts";
import { type Quantity, quantities, type ToolOutcome, type Turn } from "../predict/progress.ts";
import { PredictionScores } from "../predict/scores.ts";
import type { Scheduler } from "../rollout/problem.ts";
import { predicts, preempts, queueKey } from "../rollout/queue-order.ts";

export type EpisodeOrderOptions = {
  readonly scheduler: Scheduler;
  /** whose word counts; with `learned` that of prompt history, where learning was no better (PG2) */
  readonly predictor: ModelName;
  /** what was kept of an earlier run; throws `problem.invalid` for what is none */
  readonly state?: unknown;
  /** keeps what became of each episode, for `takePlayed` */
  readonly records?: boolean | undefined;
};

type Said = {
  readonly turns: number;
  readonly prediction: EpisodePrediction;
  readonly spent: Record<Quantity, number>;
};

type Episode = {
  readonly name: string;
  turns: number;
  readonly spent: Record<Quantity, number>;
  /** one a turn that was asked about */
  readonly said: Said[];
  readonly played: PlayedEpisode;
  /** of the turn that comes */
  predicted: Predicted;
};

type Predicted = Record<Quantity, number> & { readonly tokensLogSd: number };

export class EpisodeOrder {
  readonly #scheduler: Scheduler;
  readonly #keyOf: ReturnType<typeof queueKey>;
  readonly #from: ModelName;
  readonly #predictor: EpisodePredictor;
  readonly #episodes = new Map<number, Episode>();
  readonly #records: boolean;
  #played: PlayedEpisode[] = [];
  #logSd = 0;
  #scores = new PredictionScores();
  #numBegun = 0;
  #numAsked = 0;
  #tokenSeconds: number | undefined;

  constructor({ scheduler, predictor, state, records = false }: EpisodeOrderOptions) {
    this.#scheduler = scheduler;
    this.#keyOf = queueKey(scheduler, "remaining");
    this.#from = predictor;
    this.#predictor = new EpisodePredictor(state);
    this.#records = records;
  }

  get state(): PredictorState {
    return this.#predictor.state;
  }

  /** Whether an episode that waits may take the place of one that runs. */
  get displaces(): boolean {
    return preempts(this.#scheduler);
  }

  /** What a token takes while every place is taken, as was measured; until then `time` counts tokens alone. */
  set tokenSeconds(seconds: number) {
    if (Number.isFinite(seconds) && seconds > 0) this.#tokenSeconds = seconds;
  }

  /** Returns what the episode is called from here on: ascending, so that `fcfs` is the order of beginning. */
  begin(start: EpisodeStart): number {
    const id = this.#numBegun++;
    const name = `${id} of ${start.group}`;
    const { tokens, observedTokens, turns, toolSeconds } = start.begun ?? nothingBegun;
    const played = { contextTokens: start.contextTokens + tokens + observedTokens, turns: [] };
    const spent = { tokens, toolSeconds };
    const episode = { name, turns, spent, said: [], played, predicted: nothing };
    this.#episodes.set(id, episode);
    this.#predictor.begin(`${id}`, start);
    if (this.#records) this.#logSd = this.#predict(id, episode).tokensLogSd;
    return id;
  }

  /** EO1: the highest goes first. To be asked whenever the episode begins to wait. */
  priority(id: number): number {
    const episode = this.#running(id);
    const predicted = predicts(this.#scheduler) ? this.#predict(id, episode) : { tokens: 0, toolSeconds: 0 };
    const key = this.#keyOf({
      trajectory: id,
      submittedAt: this.#numAsked++,
      predictedTokens: predicted.tokens,
      predictedSeconds:
        this.#tokenSeconds === undefined
          ? predicted.tokens
          : predicted.tokens * this.#tokenSeconds + predicted.toolSeconds,
      generatedTokens: episode.spent.tokens,
    });
    return -key;
  }

  /**
   * Tokens that the episode has still to come, by the predictor whose word counts, and by how much that errs in the logarithm.
   * At least one: an episode that goes on chooses one, and episodes of no length would all be placed at one rank.
   */
  predicted(id: number): { readonly tokens: number; readonly logSd: number } {
    const episode = this.#running(id);
    const { tokens, tokensLogSd } = this.#predict(id, episode);
    return { tokens: Math.max(1, tokens), logSd: tokensLogSd };
  }

  /** Of the turn under way it has chosen so many tokens by now: its siblings are predicted by them (PG3). */
  generating(id: number, tokens: number): void {
    this.#running(id);
    this.#predictor.generating(`${id}`, tokens);
  }

  turnEnded(id: number, turn: z.input<typeof Turn>): void {
    const episode = this.#running(id);
    const { tokens, toolSeconds = 0, observedTokens = 0 } = turn;
    this.#predictor.turnEnded(`${id}`, turn);
    episode.turns++;
    episode.spent.tokens += tokens;
    episode.spent.toolSeconds += toolSeconds;
    if (!this.#records || tokens === 0) return;
    const { predicted } = episode;
    const [predictedTokens, predictedToolSeconds] = [Math.max(1, predicted.tokens), Math.max(0, predicted.toolSeconds)];
    episode.played.turns.push({ tokens, toolSeconds, observedTokens, predictedTokens, predictedToolSeconds });
  }

  /** The tool that the last turn called is over. */
  toolEnded(id: number, outcome: z.input<typeof ToolOutcome>): void {
    const episode = this.#running(id);
    this.#predictor.toolEnded(`${id}`, outcome);
    episode.spent.toolSeconds += outcome.toolSeconds ?? 0;
    const turn = episode.played.turns.at(-1);
    if (turn === undefined) return;
    turn.toolSeconds += outcome.toolSeconds ?? 0;
    turn.observedTokens += outcome.observedTokens ?? 0;
    this.#predict(id, episode);
  }

  /** EO2 */
  ended(id: number): void {
    const { said, spent, played } = this.#running(id);
    if (played.turns.length > 0) this.#played.push(played);
    for (const { turns, prediction, spent: before } of said) {
      const rest = {
        tokens: spent.tokens - before.tokens,
        toolSeconds: Math.max(0, spent.toolSeconds - before.toolSeconds),
      };
      this.#scores.add(turns, prediction, before, rest);
    }
    this.#predictor.ended(`${id}`);
    this.#episodes.delete(id);
  }

  /** The episode goes on no more, though it had not ended. */
  cut(id: number): void {
    this.#running(id);
    this.#predictor.cut(`${id}`);
    this.#episodes.delete(id);
  }

  /** EO4. Once a step, when its episodes have ended; what became of its predictions. */
  learn(): PredictionScores {
    for (const id of [...this.#episodes.keys()]) this.cut(id);
    const scores = this.#scores;
    this.#scores = new PredictionScores();
    this.#predictor.learn();
    return scores;
  }

  /** The episodes that have ended since it was taken last, each with what was predicted before its turns. */
  takePlayed(): Pick<PlayedStep, "logSd" | "episodes"> {
    const episodes = this.#played;
    this.#played = [];
    return { logSd: this.#logSd, episodes };
  }

  #predict(id: number, episode: Episode): Predicted {
    const prediction = this.#predictor.predict(`${id}`);
    const { turns, spent, said } = episode;
    // The last answer before a turn is the one that is judged.
    if (said.at(-1)?.turns === turns) said.pop();
    said.push({ turns, prediction, spent: { ...spent } });
    const predicted = { tokens: 0, toolSeconds: 0, tokensLogSd: 0 };
    for (const quantity of quantities) {
      const { models, ...served } = prediction[quantity];
      const { logMean, logSd } = this.#from === "learned" ? served : models[this.#from];
      predicted[quantity] = Math.expm1(logMean);
      if (quantity === "tokens") predicted.tokensLogSd = logSd;
      if (Number.isFinite(predicted[quantity]) && Number.isFinite(logSd)) continue;
      throw new TreadleError(
        "problem.invalid",
        `'${this.#from}' predicts '${predicted[quantity]}' ${quantity} with log-sd '${logSd}' for episode '${episode.name}', where finite numbers were expected; remove the predictor's kept state, or choose another predictor`,
      );
    }
    episode.predicted = predicted;
    return predicted;
  }

  #running(id: number): Episode {
    const episode = this.#episodes.get(id);
    if (episode) return episode;
    throw new TreadleError("problem.invalid", `episode '${id}' is not under way; it has not begun, or is over`);
  }
}

const nothing: Predicted = { tokens: 0, toolSeconds: 0, tokensLogSd: 0 };
