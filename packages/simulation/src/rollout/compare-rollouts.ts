import {
  allocateRollout,
  drawEpisodes,
  EpisodePredictor,
  evaluatePredictor,
  type Interference,
  learnSteps,
  type MigrationRule,
  migrationRules,
  normalFrom,
  type PredictorReport,
  type PredictorState,
  type RecordedEpisode,
  type RolloutProblem,
  seededRandom,
  simulateRollout,
  workloadShapes,
} from "@treadle/trajectories";
import { type Forecasting, fixedForecasting, learnedForecasting, noisyForecasting, restsOf } from "./forecasts.ts";
import type { Predictions, RolloutScenario } from "./scenario.ts";

type Workload = keyof typeof workloadShapes;

/** One way to run a step: degrees of the workers, order of queues, placement. */
type Way = {
  readonly name: string;
  readonly degrees: readonly number[];
  readonly scheduler: "rr" | "pps";
  readonly placement: RolloutProblem["placement"];
  readonly rule?: MigrationRule;
};

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
  readonly chosen: Throughput;
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
        for (const predictions of scenario.predictions) {
          const forecasting = forecastingOf(predictions, predictor.state, step, scenario.seed);
          const figures = compareSetting(scenario, workload, F, step, forecasting);
          yield { workload, episodes: step.length, F, predictions, logSd: forecasting.logSd, ...figures };
        }
      }
    }
  }
}

function drawSteps(
  { samples, promptsPerStepPrompts, seed }: RolloutScenario,
  workload: Workload,
  episodes: number,
  steps: number,
) {
  const promptsPerStep = Math.ceil(episodes / samples);
  const prompts = Math.ceil(promptsPerStep * promptsPerStepPrompts);
  return drawEpisodes(workloadShapes[workload], { steps, promptsPerStep, samples, prompts, seed });
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
): Omit<RolloutComparison, "workload" | "episodes" | "F" | "predictions" | "logSd"> {
  const { gpus, tokenTime, maxBatch } = scenario;
  const run = ({ name, ...way }: Way): Throughput => ({
    name,
    tokensPerSecond: simulate(scenario, F, episodes, forecasting, way).throughput!,
  });
  const least = Math.min(...Object.keys(tokenTime).map(Number));
  const equal = (degree: number): number[] => new Array<number>(Math.floor(gpus / degree)).fill(degree);
  const degreesThatFit = Object.keys(tokenTime)
    .map(Number)
    .filter((degree) => degree <= gpus);
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
    chosen: run(chooseWay(scenario, workload, F, episodes, forecasting, candidates)),
  };
}

const best = (all: readonly Throughput[]): Throughput =>
  all.reduce((a, b) => (b.tokensPerSecond > a.tokensPerSecond ? b : a));

/**
 * The candidate that is fastest on lengths drawn from the predictions with their own log-sd. Nothing of the step's truth
 * is used but the prompts; turns and tools are typical ones of the workload, the same for all.
 */
function chooseWay(
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
    const { makespan } = simulate(scenario, F, drawn, forecasting, candidate);
    if (makespan < shortest) [chosen, shortest] = [candidate, makespan];
  }
  return chosen;
}

function simulate(
  { tokenTime, maxBatch, prefillRatio, migration }: RolloutScenario,
  F: Interference,
  episodes: readonly RecordedEpisode[],
  { initial, forecast }: Forecasting,
  { degrees, scheduler, placement, rule }: Omit<Way, "name">,
) {
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
    prefillRatio,
    migration,
  };
  // Nothing is asked of predictions where neither queues nor placement heed them.
  const isBlind = scheduler === "rr" && placement.type !== "dp";
  return simulateRollout(problem, { forecast: isBlind ? undefined : forecast(), migrationRule: rule });
}
