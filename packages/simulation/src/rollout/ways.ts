import {
  allocatedDegrees,
  allocateRollout,
  degreesThatFit,
  drawEpisodes,
  equalDegrees,
  type Interference,
  type MigrationRule,
  type RecordedEpisode,
  type RolloutAnswer,
  type RolloutProblem,
  simulateRollout,
  type workloadNames,
  workloadShapes,
} from "@treadle/trajectories";
import type { Forecasting } from "./forecasts.ts";
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
  /** where steps begin under `dp`; default: in its groups */
  readonly start?: "groups" | "even";
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

/** The ways that a step is run in, by what is predicted of it. */
export function waysOf(scenario: RolloutScenario, F: Interference, { initial, logSd }: Forecasting) {
  const { gpus, tokenTime, maxBatch } = scenario;
  const degrees = degreesThatFit(scenario);
  const equal = (degree: number): number[] => equalDegrees(gpus, degree);
  const least = Math.min(...degrees);
  // Half the log-sd: what was best in simulations over workloads and loads.
  const robust = logSd / 2;
  const allocating = { gpus, tokenTime, F, maxBatch, robust, predictions: initial };
  const allocated = allocateRollout({ ...allocating, company: 1 }) ?? equal(least);
  const simple = (degree: number, scheduler: Way["scheduler"]): Way => ({
    name: `${scheduler}, degree ${degree}`,
    degrees: equal(degree),
    scheduler,
    placement: { type: "cache" },
  });
  /** The longest first, in groups by predicted length. */
  const placed = (rule: MigrationRule | undefined, degrees: readonly number[] = allocated): Way => ({
    name: "degrees as allocated",
    degrees,
    scheduler: "pps",
    placement: { type: "dp", robust, ...(rule ? { migrate: true, rankBy: "total" } : {}) },
    ...(rule ? { rule } : {}),
  });
  const verl = simple(least, "rr");
  return {
    /** one GPU a worker, round-robin, as Verl has it */
    verl,
    hybrid: { ...verl, name: "hybrid", placement: { type: "hybrid" as const, threshold: 32 } },
    leastLoad: { ...verl, name: "least-load", placement: { type: "least-load" as const } },
    simples: degrees.flatMap((degree) => [simple(degree, "rr"), simple(degree, "pps")]),
    divided: degrees.map((degree): Way => {
      const turnsAnywhere = { placement: { type: "least-load" as const }, isPooled: true };
      return { ...simple(degree, "pps"), name: `divided, degree ${degree}`, ...turnsAnywhere };
    }),
    placed,
    /** of which `chooseWay` takes one */
    candidates: [
      ...allocatedDegrees(allocating).map((list) => placed("pays", list)),
      ...degrees.flatMap((degree) => [
        { ...placed("pays", equal(degree)), name: `degree ${degree}, placed` },
        simple(degree, "pps"),
        simple(degree, "rr"),
      ]),
    ] satisfies readonly Way[],
  };
}

/** Tokens a second. */
export type Throughput = { readonly name: string; readonly tokensPerSecond: number };

/** Of equals the first. */
export const fastest = (all: readonly Throughput[]): Throughput =>
  all.reduce((a, b) => (b.tokensPerSecond > a.tokensPerSecond ? b : a));

/** What every figure is compared with: Verl's way, and the best simple way in hindsight, of equal workers of any degree that stay where they are. */
export function simplest(
  run: (way: Way) => Throughput,
  { simples, verl }: Pick<ReturnType<typeof waysOf>, "simples" | "verl">,
): { readonly verl: Throughput; readonly bestSimple: Throughput } {
  const all = simples.map(run);
  return { verl: all.find(({ name }) => name === verl.name)!, bestSimple: fastest(all) };
}

/** A step that is over, and what had been predicted of it before it was learned from. */
export type PastStep = { readonly episodes: readonly RecordedEpisode[]; readonly forecasting: Forecasting };

/** Seconds of each way in the steps before, multiplied, by predictions as they were then: under the predictor's own noise. */
export function secondsBefore(
  scenario: RolloutScenario,
  F: Interference,
  past: readonly PastStep[],
  candidates: readonly Way[],
): readonly number[] {
  return candidates.map((way) =>
    past.reduce(
      (product, { episodes, forecasting }) => product * simulateWay(scenario, F, episodes, forecasting, way).makespan,
      1,
    ),
  );
}

/**
 * The candidate that would have been fastest in the steps before. Equal workers that heed no prediction are left only for what
 * was faster by more than one step differs from the next.
 */
export function fastestBefore(candidates: readonly Way[], seconds: readonly number[]): Way {
  let [chosen, least] = [candidates[0]!, Number.POSITIVE_INFINITY];
  for (const [at, candidate] of candidates.entries()) {
    const counted = seconds[at]! * (candidate.placement.type === "dp" ? 1 + leastGain : 1);
    if (counted < least) [chosen, least] = [candidate, counted];
  }
  return chosen;
}

export const chooseWay = (
  scenario: RolloutScenario,
  F: Interference,
  past: readonly PastStep[],
  candidates: readonly Way[],
): Way => fastestBefore(candidates, secondsBefore(scenario, F, past, candidates));

/** of all past steps together */
const leastGain = 0.1;

export function simulateWay(
  { tokenTime, maxBatch, prefillRatio, migration }: RolloutScenario,
  F: Interference,
  episodes: readonly RecordedEpisode[],
  { initial, forecast }: Forecasting,
  { degrees, scheduler, placement, rule, start, isPooled = false }: Omit<Way, "name">,
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
  return simulateRollout(problem, {
    forecast: isBlind ? undefined : forecast(),
    migrationRule: rule,
    start,
    estimate: "scheduled",
  });
}
