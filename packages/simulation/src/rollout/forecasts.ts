import {
  EpisodePredictor,
  type Estimate,
  type Forecast,
  type LogNormal,
  type ModelName,
  normalFrom,
  type PredictorState,
  type RecordedEpisode,
  seededRandom,
} from "@treadle/trajectories";

/** What a simulated step is predicted with, and by how much that errs before the first turn, in the logarithm. */
export type Forecasting = {
  /** tokens of each episode, as predicted at the start */
  readonly initial: readonly number[];
  /** a new one for each simulated step: a forecast may learn while it runs */
  readonly forecast: () => Forecast;
  readonly logSd: number;
};

/** The shipped predictor, told of every turn and tool when they are over. */
export function learnedForecasting(
  state: PredictorState,
  episodes: readonly RecordedEpisode[],
  model: ModelName = "learned",
): Forecasting {
  const of = (estimate: Estimate): LogNormal => (model === "learned" ? estimate : estimate.models[model]);
  const start = (): EpisodePredictor => {
    const predictor = new EpisodePredictor(state, { learns: false });
    for (const [i, { prompt, contextTokens, limits }] of episodes.entries()) {
      predictor.begin(`${i}`, { prompt, group: prompt, contextTokens, limits });
    }
    return predictor;
  };
  const first = start();
  const said = episodes.map((_, i) => of(first.predictOnly(`${i}`, "tokens")));
  const initial = said.map(({ logMean }) => tokensOf(logMean));
  return {
    initial,
    logSd: said[0]?.logSd ?? 0,
    forecast: () => {
      const predictor = start();
      let isTold = false;
      const turnEnded = (trajectory: number, turn: number): void => {
        const { tokens, meanLogProbability } = episodes[trajectory]!.turns[turn]!;
        isTold = true;
        predictor.turnEnded(`${trajectory}`, { tokens, meanLogProbability });
      };
      return {
        stepEnded: (trajectory, step) => turnEnded(trajectory, step - 1),
        submitted: (trajectory, step) => {
          const { toolSeconds, hasToolFailed, observedTokens } = episodes[trajectory]!.turns[step - 1]!;
          predictor.toolEnded(`${trajectory}`, { toolSeconds, hasToolFailed, observedTokens });
        },
        finished: (trajectory) => {
          turnEnded(trajectory, episodes[trajectory]!.turns.length - 1);
          predictor.ended(`${trajectory}`);
        },
        tokensLeft: (trajectory) =>
          isTold ? tokensOf(of(predictor.predictOnly(`${trajectory}`, "tokens")).logMean) : initial[trajectory]!,
        toolSecondsLeft: (trajectory) => Math.expm1(of(predictor.predictOnly(`${trajectory}`, "toolSeconds")).logMean),
      };
    },
  };
}

const tokensOf = (logMean: number): number => Math.max(1, Math.expm1(logMean));

/** The truth, off by one factor an episode: errors of predictions persist. */
export function noisyForecasting(episodes: readonly RecordedEpisode[], logSd: number, seed: number): Forecasting {
  const normal = normalFrom(seededRandom(seed));
  const factors = episodes.map(() => Math.exp(logSd * normal()));
  const rests = episodes.map(({ turns }) => restsOf(turns.map(({ tokens }) => tokens)));
  const toolRests = episodes.map(({ turns }) => restsOf(turns.map(({ toolSeconds = 0 }) => toolSeconds)));
  const rest = (trajectory: number, step: number) => rests[trajectory]![step]! * factors[trajectory]!;
  return fixedForecasting(
    episodes.map((_, trajectory) => rest(trajectory, 0)),
    rest,
    logSd,
    (trajectory, step) => toolRests[trajectory]![step]! * factors[trajectory]!,
  );
}

/** `rest`: of a trajectory, from a step on, whatever happens meanwhile. */
function fixedForecasting(
  initial: readonly number[],
  rest: (trajectory: number, step: number) => number,
  logSd: number,
  toolRest: (trajectory: number, step: number) => number = () => 0,
): Forecasting {
  const told = { stepEnded: () => {}, submitted: () => {}, finished: () => {} };
  return { initial, forecast: () => ({ ...told, tokensLeft: rest, toolSecondsLeft: toolRest }), logSd };
}

/** Of each step, what is generated from it on. */
function restsOf(tokens: readonly number[]): number[] {
  const rests = [...tokens];
  for (let i = rests.length - 2; i >= 0; i--) rests[i]! += rests[i + 1]!;
  return rests;
}
