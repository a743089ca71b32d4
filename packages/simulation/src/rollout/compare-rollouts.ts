import {
  degreesThatFit,
  EpisodePredictor,
  evaluatePredictor,
  type Interference,
  learnSteps,
  migrationRules,
  type PredictorReport,
  type PredictorState,
  type RecordedEpisode,
} from "@treadle/trajectories";
import { type Forecasting, learnedForecasting, noisyForecasting } from "./forecasts.ts";
import type { Predictions, RolloutScenario } from "./scenario.ts";
import { tailBatching } from "./tail-batching.ts";
import {
  chooseWay,
  drawSteps,
  fastest,
  type PastStep,
  simplest,
  simulateWay,
  type Throughput,
  type Way,
  type Workload,
  waysOf,
} from "./ways.ts";

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
  /** what would have been fastest in the steps before, equal workers among the candidates */
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

/** steps whose episodes say which way is chosen */
const numPast = 2;

/** Every setting, as it is simulated. */
export function* compareRollouts(scenario: RolloutScenario): Generator<RolloutComparison> {
  for (const workload of scenario.workloads) {
    for (const episodes of scenario.episodes) {
      const steps = drawSteps(scenario, workload, episodes, scenario.learnSteps + 1);
      const step = steps.at(-1)!;
      const predictor = new EpisodePredictor();
      const past = steps.slice(0, -1).map((each) => {
        const { state } = predictor;
        if (scenario.predictions.includes("learned")) learnSteps(predictor, [each]);
        return { episodes: each, state };
      });
      for (const F of scenario.F) {
        const batched = fastest(
          degreesThatFit(scenario).map((degree) => tailBatching(scenario, workload, episodes, F, degree)),
        );
        for (const predictions of scenario.predictions) {
          const forecasting = forecastingOf(predictions, predictor.state, step, scenario.seed);
          const figures = compareSetting(
            scenario,
            F,
            step,
            forecasting,
            past.slice(-numPast).map(({ episodes, state }, at) => ({
              episodes,
              forecasting: forecastingOf(predictions, state, episodes, scenario.seed + 1 + at),
            })),
          );
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
  F: Interference,
  episodes: readonly RecordedEpisode[],
  forecasting: Forecasting,
  past: readonly PastStep[],
): Omit<RolloutComparison, "workload" | "episodes" | "F" | "predictions" | "logSd" | "tailBatching"> {
  const run = ({ name, ...way }: Way): Throughput => ({
    name,
    tokensPerSecond: simulateWay(scenario, F, episodes, forecasting, way).throughput!,
  });
  const ways = waysOf(scenario, F, forecasting);
  const { hybrid, leastLoad, divided, candidates, placed } = ways;
  const chosen = chooseWay(scenario, F, past, candidates);
  return {
    ...simplest(run, ways),
    hybrid: run(hybrid),
    leastLoad: run(leastLoad),
    priorityAlone: run({ ...ways.verl, name: "priority alone", scheduler: "pps" }),
    placementAlone: run({ ...placed("pays", ways.verl.degrees), name: "placement alone", scheduler: "rr" }),
    whole: [
      run({ ...placed(undefined), name: "stay" }),
      ...migrationRules.map((rule) => run({ ...placed(rule), name: rule })),
    ],
    chosen: { ...run(chosen), degrees: chosen.degrees },
    divided: fastest(divided.map(run)),
  };
}
