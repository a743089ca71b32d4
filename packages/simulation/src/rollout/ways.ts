import {
  drawEpisodes,
  type Interference,
  type MigrationRule,
  normalFrom,
  type RecordedEpisode,
  type RolloutAnswer,
  type RolloutProblem,
  seededRandom,
  simulateRollout,
  type workloadNames,
  workloadShapes,
} from "@treadle/trajectories";
import { type Forecasting, fixedForecasting, restsOf } from "./forecasts.ts";
import type { RolloutScenario } from "./scenario.ts";

export type Workload = (typeof workloadNames)[number];

/** One way to run a step: degrees of the workers, order of queues, placement. */
export type Way = {
  readonly name: string;
  readonly degrees: readonly number[];
  readonly scheduler: "rr" | "pps";
  readonly placement: RolloutProblem["placement"];
  readonly rule?: MigrationRule;
  /** keys and values are in a pool that all workers read, so whoever goes on with an episode computes none of them again */
  readonly isPooled?: boolean;
};

export function drawSteps(
  { samples, promptsPerStepPrompts, seed }: RolloutScenario,
  workload: Workload,
  episodes: number,
  steps: number,
) {
  const promptsPerStep = Math.ceil(episodes / samples);
  const prompts = Math.ceil(promptsPerStep * promptsPerStepPrompts);
  return drawEpisodes(workloadShapes[workload], { steps, promptsPerStep, samples, prompts, seed });
}

/**
 * The candidate that is fastest on lengths drawn from the predictions with their own log-sd. Nothing of the step's truth
 * is used but the prompts; turns and tools are typical ones of the workload, the same for all.
 */
export function chooseWay(
  scenario: RolloutScenario,
  workload: Workload,
  F: Interference,
  episodes: readonly RecordedEpisode[],
  { initial, logSd }: Forecasting,
  candidates: readonly Way[],
): Way {
  const { medianTurns, medianToolSeconds, toolLogSd, observedTokens } = workloadShapes[workload];
  const normal = normalFrom(seededRandom(scenario.seed + 2));
  const drawn = episodes.map(({ prompt, contextTokens }, i): RecordedEpisode => {
    const error = logSd * normal();
    const tokens = (initial[i]! * Math.exp(error)) / medianTurns;
    const turns = Array.from({ length: medianTurns }, (_, turn) => ({
      tokens: Math.max(1e-3, tokens),
      toolSeconds: turn === medianTurns - 1 ? 0 : medianToolSeconds * Math.exp(toolLogSd ** 2 / 2),
      observedTokens,
    }));
    return { prompt, contextTokens, turns };
  });
  const rests = drawn.map(({ turns }) => restsOf(turns.map(({ tokens }) => tokens)));
  const total = rests.map((each) => each[0]!);
  // As predictions are at the start, so they err on the drawn lengths; they are told no more.
  const rest = (trajectory: number, step: number) =>
    (initial[trajectory]! / total[trajectory]!) * rests[trajectory]![step]!;
  const forecasting = fixedForecasting(initial, rest, logSd);
  let [chosen, shortest] = [candidates[0]!, Number.POSITIVE_INFINITY];
  for (const candidate of candidates) {
    const { makespan } = simulateWay(scenario, F, drawn, forecasting, candidate);
    if (makespan < shortest) [chosen, shortest] = [candidate, makespan];
  }
  return chosen;
}

export function simulateWay(
  { tokenTime, maxBatch, prefillRatio, migration }: RolloutScenario,
  F: Interference,
  episodes: readonly RecordedEpisode[],
  { initial, forecast }: Forecasting,
  { degrees, scheduler, placement, rule, isPooled = false }: Omit<Way, "name">,
): RolloutAnswer {
  const problem: RolloutProblem = {
    trajectories: episodes.map(({ contextTokens, turns }, i) => ({
      context: contextTokens,
      steps: turns.map(({ tokens, toolSeconds = 0, observedTokens = 0 }) => ({
        tokens,
        tool: toolSeconds,
        observe: observedTokens,
        // Given, since a problem states them; a forecast answers instead.
        pred: initial[i]!,
        predTool: 0,
      })),
    })),
    workers: degrees.map((degree) => ({ degree, tokenTime: tokenTime[degree]! })),
    F,
    maxBatch,
    scheduler,
    priority: "remaining",
    placement,
    prefillRatio: isPooled ? 0 : prefillRatio,
    migration,
  };
  // Nothing is asked of predictions where neither queues nor placement heed them.
  const isBlind = scheduler === "rr" && placement.type !== "dp";
  return simulateRollout(problem, { forecast: isBlind ? undefined : forecast(), migrationRule: rule });
}
