/** What each part of a rollout is worth: all parts on, and each left out, with the shipped predictor in the loop. */
import {
  EpisodePredictor,
  type Interference,
  learnSteps,
  type ModelName,
  type PredictorState,
  type RecordedEpisode,
} from "@treadle/trajectories";
import { boundsOf, type RolloutBounds } from "./bounds.ts";
import { type Forecasting, learnedForecasting, noisyForecasting } from "./forecasts.ts";
import type { RolloutScenario } from "./scenario.ts";
import {
  drawSteps,
  fastest,
  fastestBefore,
  secondsBefore,
  simplest,
  simulateWay,
  type Throughput,
  type Way,
  type Workload,
  waysOf,
} from "./ways.ts";

/** By what a table calls them, in its order. */
export const leftOut = ["order", "placement", "moves", "degrees", "learning", "predictions"] as const;
type Part = (typeof leftOut)[number];

/** Tokens a second of one step. */
export type PartsComparison = {
  readonly seed: number;
  readonly workload: Workload;
  readonly F: Interference;
  /** one GPU a worker, round-robin, as Verl has it */
  readonly verl: number;
  readonly hybrid: number;
  readonly leastLoad: number;
  /** in hindsight: of equal workers of each degree with cache placement, `rr` or `pps` */
  readonly bestSimple: number;
  readonly bestSimpleName: string;
  /** the longest first, placed in groups, moved where it pays, on the degrees that were fastest in the steps before */
  readonly all: number;
  readonly degrees: readonly number[];
  /** the same without a part */
  readonly without: Readonly<Record<Part, number>>;
  /** what was fastest in the steps before, simple ways among the candidates */
  readonly chosen: number;
  readonly chosenName: string;
  /** with every length known, in hindsight the fastest of all ways that are chosen among: what better predictions may gain at most */
  readonly oracle: number;
  readonly oracleName: string;
  /** and what no way exceeds */
  readonly bounds: RolloutBounds;
};

/** steps whose episodes say which way is chosen */
const numPast = 2;

/** Every setting of one seed, as it is simulated. */
export function* compareParts(scenario: RolloutScenario): Generator<PartsComparison> {
  for (const workload of scenario.workloads)
    for (const numEpisodes of scenario.episodes) {
      const steps = drawSteps(scenario, workload, numEpisodes, scenario.learnSteps + 1);
      const predictor = new EpisodePredictor();
      const states = steps.map((episodes) => {
        const { state } = predictor;
        learnSteps(predictor, [episodes]);
        return { episodes, state };
      });
      for (const F of scenario.F) yield compareSetting(scenario, workload, F, states);
    }
}

/** A step, and what had been learned before it. */
type Drawn = { readonly episodes: readonly RecordedEpisode[]; readonly state: PredictorState };

function compareSetting(
  scenario: RolloutScenario,
  workload: Workload,
  F: Interference,
  steps: readonly Drawn[],
): PartsComparison {
  const { episodes, state } = steps.at(-1)!;
  const past = steps.slice(-1 - numPast, -1).map((step) => ({
    episodes: step.episodes,
    forecasting: learnedForecasting(step.state, step.episodes),
  }));
  const forecastings = new Map<ModelName, Forecasting>();
  const foretold = (model: ModelName): Forecasting => {
    const known = forecastings.get(model) ?? learnedForecasting(state, episodes, model);
    forecastings.set(model, known);
    return known;
  };
  const run = (way: Way, model: ModelName = "learned"): number =>
    simulateWay(scenario, F, episodes, foretold(model), way).throughput!;
  const ways = waysOf(scenario, F, foretold("learned"));
  const { hybrid, leastLoad, candidates } = ways;
  const { verl, bestSimple } = simplest((way) => ({ name: way.name, tokensPerSecond: run(way) }), ways);
  const truth = noisyForecasting(episodes, 0, scenario.seed);
  const known = waysOf(scenario, F, truth).candidates.map(
    (way): Throughput => ({
      name: way.name,
      tokensPerSecond: simulateWay(scenario, F, episodes, truth, way).throughput!,
    }),
  );
  const oracle = fastest(known);
  const seconds = secondsBefore(scenario, F, past, candidates);
  const among = (isMeant: (way: Way) => boolean): Way => {
    const meant = [...candidates.keys()].filter((at) => isMeant(candidates[at]!));
    return fastestBefore(
      meant.map((at) => candidates[at]!),
      meant.map((at) => seconds[at]!),
    );
  };
  const isPlaced = ({ placement }: Way): boolean => placement.type === "dp";
  const all = among(isPlaced);
  const equal = among((way) => isPlaced(way) && new Set(way.degrees).size === 1);
  const chosen = among(() => true);
  const { rule: _, ...still } = all;
  const { type, robust } = all.placement;
  const allSpeed = run(all);
  return {
    ...{ seed: scenario.seed, workload, F },
    verl: verl.tokensPerSecond,
    hybrid: run(hybrid),
    leastLoad: run(leastLoad),
    bestSimple: bestSimple.tokensPerSecond,
    bestSimpleName: bestSimple.name,
    all: allSpeed,
    degrees: all.degrees,
    without: {
      order: run({ ...all, scheduler: "rr" }),
      placement: run({ ...all, start: "even" }),
      moves: run({ ...still, placement: { type, ...(robust === undefined ? {} : { robust }) } }),
      degrees: equal === all ? allSpeed : run(equal),
      learning: run(all, "prompt-history"),
      predictions: run(all, "constant"),
    },
    chosen: chosen === all ? allSpeed : run(chosen),
    chosenName: chosen.name,
    oracle: oracle.tokensPerSecond,
    oracleName: oracle.name,
    bounds: boundsOf(scenario, F, episodes),
  };
}
