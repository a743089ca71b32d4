import type { z } from "zod";
import { EpisodePredictor } from "./predictor.ts";
import type { EpisodeLimits, Quantity, Turn } from "./progress.ts";
import { PredictionScores, type PredictorReport } from "./scores.ts";

/** An episode as it went. */
export type RecordedEpisode = {
  readonly prompt: string;
  readonly contextTokens: number;
  /** that it was under */
  readonly limits?: EpisodeLimits | undefined;
  readonly turns: readonly z.input<typeof Turn>[];
};

/** How steps are played. */
type Played = {
  /** of every episode; default: 0.01 */
  readonly tokenSeconds?: number | undefined;
  /** the predictor hears of turns under way, as of engines that tell of them; default: of turns that have ended alone */
  readonly tellsProgress?: boolean | undefined;
};

/**
 * Plays steps of episodes against a predictor, and reports how well it foretold those after the first `learnSteps`: each step is
 * learned after it was judged.
 */
export function evaluatePredictor(
  steps: readonly (readonly RecordedEpisode[])[],
  { learnSteps, ...played }: Played & { readonly learnSteps: number },
): PredictorReport {
  const predictor = new EpisodePredictor();
  const scores = new PredictionScores();
  for (const [step, episodes] of steps.entries()) {
    const judge: Say = step < learnSteps ? () => {} : (...said) => scores.add(...said);
    playStep(predictor, step, episodes, played, judge);
    predictor.learn();
  }
  return scores.report();
}

/** Teaches a predictor steps of episodes, in their order. */
export function learnSteps(
  predictor: EpisodePredictor,
  steps: readonly (readonly RecordedEpisode[])[],
  played: Played = {},
): void {
  for (const [step, episodes] of steps.entries()) {
    playStep(predictor, step, episodes, played, () => {});
    predictor.learn();
  }
}

type Say = (...said: Parameters<PredictionScores["add"]>) => void;

/** All episodes begin together; what they do comes in the order of its time. */
function playStep(
  predictor: EpisodePredictor,
  step: number,
  episodes: readonly RecordedEpisode[],
  { tokenSeconds = 0.01, tellsProgress = false }: Played,
  say: Say,
): void {
  const idOf = (index: number): string => `${step}/${index}`;
  const groups = new Map<string, number[]>();
  /** of each: when the turn under way began */
  const began: { at: number; readonly turn: number }[] = [];
  const moments: { readonly at: number; readonly index: number; readonly turn: number }[] = [];
  for (const [index, { prompt, contextTokens, limits, turns }] of episodes.entries()) {
    predictor.begin(idOf(index), { prompt, contextTokens, limits, group: `${step}/${prompt}` });
    groups.set(prompt, [...(groups.get(prompt) ?? []), index]);
    let at = 0;
    for (const [turn, { tokens, toolSeconds = 0 }] of turns.entries()) {
      moments.push({ at, index, turn });
      at += tokens * tokenSeconds + toolSeconds;
    }
    moments.push({ at, index, turn: turns.length });
  }
  moments.sort((a, b) => a.at - b.at || a.index - b.index || a.turn - b.turn);
  /** Of the others of its prompt, all that they have chosen by now. */
  const tell = (now: number, asked: number): void => {
    for (const index of groups.get(episodes[asked]!.prompt)!) {
      const { turns } = episodes[index]!;
      const { at, turn } = began[index] ?? { at: now, turn: 0 };
      if (index === asked || turn === turns.length) continue;
      predictor.generating(idOf(index), Math.min(turns[turn]!.tokens, Math.floor((now - at) / tokenSeconds)));
    }
  };
  for (const { at: now, index, turn } of moments) {
    const { turns } = episodes[index]!;
    if (turn > 0) predictor.turnEnded(idOf(index), turns[turn - 1]!);
    began[index] = { at: now, turn };
    if (turn === turns.length) {
      predictor.ended(idOf(index));
      continue;
    }
    if (tellsProgress) tell(now, index);
    const prediction = predictor.predict(idOf(index));
    const sum = (part: typeof turns, quantity: Quantity) =>
      part.reduce((total, each) => total + (each[quantity] ?? 0), 0);
    const sums = (part: typeof turns) => ({ tokens: sum(part, "tokens"), toolSeconds: sum(part, "toolSeconds") });
    say(turn, prediction, sums(turns.slice(0, turn)), sums(turns.slice(turn)));
  }
}
