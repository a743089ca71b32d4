import {
  allocateRollout,
  EpisodePredictor,
  evaluatePredictor,
  type Interference,
  learnSteps,
  type MigrationRule,
  migrationRules,
  type PredictorReport,
  type PredictorState,
  type RecordedEpisode,
} from "@treadle/trajectories";
import { type Forecasting, learnedForecasting, noisyForecasting } from "./forecasts.ts";
import type { Predictions, RolloutScenario } from "./scenario.ts";
import { tailBatching } from "./tail-batching.ts";
import { chooseWay, drawSteps, simulateWay, type Way, type Workload } from "./ways.ts";

/** Tokens a second. */
export type Throughput = { readonly name: string; readonly tokensPerSecond: number };

export type RolloutComparison = {
  readonly workload: Workload;
  readonly episodes: number;
  readonly F: Interference;
  readonly predictions: Predictions;
  /** of what is predicted before the first turn */
  readonly logSd: number;
  /** one GPU a worker, round-robin: as Verl, its router, and Slime place */
  readonly verl: Throughput;
  readonly hybrid: Throughput;
  readonly leastLoad: Throughput;
  /** in hindsight: of equal workers of each degree with cache placement, `rr` or `pps` */
  readonly bestSimple: Throughput;
  /** one part at a time, beside what Verl does */
  readonly priorityAlone: Throughput;
  readonly placementAlone: Throughput;
  /** priority, placement and degrees: without moves, and by each rule of migration */
  readonly whole: readonly Throughput[];
  /** what simulating the candidates on drawn lengths chose before the step, equal workers among them */
  readonly chosen: Throughput & Pick<Way, "degrees">;
  /** in hindsight, the best degree of equal workers for what other systems do about long tails: each turn anywhere, the longest first, keys and values in a pool (divided rollouts of Seer) */
  readonly divided: Throughput;
  /** and races of prompts, whose losers have rounds of their own (RollPacker); over all rounds, tokens that are trained */
  readonly tailBatching: Throughput;
};

export type WorkloadPredictor = { readonly workload: Workload; readonly report: PredictorReport };

/** How well the shipped predictor foretells each workload, on steps that follow those it learned from. */
export function* reportPredictors(scenario: RolloutScenario): Generator<WorkloadPredictor> {
  for (const workload of scenario.workloads) {
    const steps = drawSteps(scenario, workload, Math.min(...scenario.episodes), scenario.learnSteps + 2);
    yield { workload, report: evaluatePredictor(steps, { learnSteps: scenario.learnSteps }) };
  }
}

/** Every setting, as it is simulated. */
export function* compareRollouts(scenario: RolloutScenario): Generator<RolloutComparison> {
  for (const workload of scenario.workloads) {
    for (const episodes of scenario.episodes) {
      const steps = drawSteps(scenario, workload, episodes, scenario.learnSteps + 1);
      const step = steps.at(-1)!;
      const predictor = new EpisodePredictor();
      if (scenario.predictions.includes("learned")) learnSteps(predictor, steps.slice(0, -1));
      for (const F of scenario.F) {
        const batched = best(
          equalDegrees(scenario).map((degree) => tailBatching(scenario, workload, episodes, F, degree)),
        );
        for (const predictions of scenario.predictions) {
          const forecasting = forecastingOf(predictions, predictor.state, step, scenario.seed);
          const figures = compareSetting(scenario, workload, F, step, forecasting);
          const setting = { workload, episodes: step.length, F, predictions, logSd: forecasting.logSd };
          yield { ...setting, ...figures, tailBatching: batched };
        }
      }
    }
  }
}

function forecastingOf(
  predictions: Predictions,
  state: PredictorState,
  episodes: readonly RecordedEpisode[],
  seed: number,
): Forecasting {
  if (predictions === "learned") return learnedForecasting(state, episodes);
  return noisyForecasting(episodes, predictions === "oracle" ? 0 : predictions.logSd, seed + 1);
}

function compareSetting(
  scenario: RolloutScenario,
  workload: Workload,
  F: Interference,
  episodes: readonly RecordedEpisode[],
  forecasting: Forecasting,
): Omit<RolloutComparison, "workload" | "episodes" | "F" | "predictions" | "logSd" | "tailBatching"> {
  const { gpus, tokenTime, maxBatch } = scenario;
  const run = ({ name, ...way }: Way): Throughput => ({
    name,
    tokensPerSecond: simulateWay(scenario, F, episodes, forecasting, way).throughput!,
  });
  const least = Math.min(...Object.keys(tokenTime).map(Number));
  const equal = (degree: number): number[] => new Array<number>(Math.floor(gpus / degree)).fill(degree);
  const degreesThatFit = equalDegrees(scenario);
  // Half the log-sd: what was best in simulations over workloads and loads.
  const robust = forecasting.logSd / 2;
  const dp = (migrate: boolean) => ({
    type: "dp" as const,
    robust,
    ...(migrate ? { migrate, rankBy: "total" as const } : {}),
  });
  const allocated =
    allocateRollout({ gpus, tokenTime, F, maxBatch, robust, predictions: forecasting.initial }) ?? equal(least);
  const cache = { type: "cache" as const };
  const simple = (degree: number, scheduler: Way["scheduler"]): Way => ({
    name: `${scheduler}, degree ${degree}`,
    degrees: equal(degree),
    scheduler,
    placement: cache,
  });
  const whole = (rule: MigrationRule | undefined, degrees: readonly number[], name: string): Way => ({
    name,
    degrees,
    scheduler: "pps",
    placement: dp(rule !== undefined),
    ...(rule === undefined ? {} : { rule }),
  });
  const verl = simple(least, "rr");
  const simples = degreesThatFit.flatMap((degree) => [simple(degree, "rr"), simple(degree, "pps")]);
  const candidates = [
    whole("pays", allocated, "degrees as allocated"),
    ...degreesThatFit.flatMap((degree) => [
      whole("pays", equal(degree), `degree ${degree}, placed`),
      simple(degree, "pps"),
      simple(degree, "rr"),
    ]),
  ];
  const chosen = chooseWay(scenario, workload, F, episodes, forecasting, candidates);
  const divided = degreesThatFit.map((degree): Way => {
    const turnsAnywhere = { placement: { type: "least-load" as const }, isPooled: true };
    return { ...simple(degree, "pps"), name: `divided, degree ${degree}`, ...turnsAnywhere };
  });
  return {
    verl: run(verl),
    hybrid: run({ ...verl, name: "hybrid", placement: { type: "hybrid", threshold: 32 } }),
    leastLoad: run({ ...verl, name: "least-load", placement: { type: "least-load" } }),
    bestSimple: best(simples.map(run)),
    priorityAlone: run({ ...verl, name: "priority alone", scheduler: "pps" }),
    placementAlone: run({ ...verl, name: "placement alone", placement: dp(true), rule: "pays" }),
    whole: [
      run(whole(undefined, allocated, "stay")),
      ...migrationRules.map((rule) => run(whole(rule, allocated, rule))),
    ],
    chosen: { ...run(chosen), degrees: chosen.degrees },
    divided: best(divided.map(run)),
  };
}

/** Of workers that are all alike. */
const equalDegrees = ({ gpus, tokenTime }: RolloutScenario): number[] =>
  Object.keys(tokenTime)
    .map(Number)
    .filter((degree) => degree <= gpus);

const best = (all: readonly Throughput[]): Throughput =>
  all.reduce((a, b) => (b.tokensPerSecond > a.tokensPerSecond ? b : a));
