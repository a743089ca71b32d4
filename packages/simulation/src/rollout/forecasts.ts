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
  const start = (): { predictor: EpisodePredictor; initial: number[]; logSd: number } => {
    const predictor = new EpisodePredictor(state, { learns: false });
    for (const [i, { prompt, contextTokens, limits }] of episodes.entries()) {
      predictor.begin(`${i}`, { prompt, group: prompt, contextTokens, limits });
    }
    const said = episodes.map((_, i) => of(predictor.predictOnly(`${i}`, "tokens")));
    return { predictor, initial: said.map(({ logMean }) => tokensOf(logMean)), logSd: said[0]?.logSd ?? 0 };
  };
  const { initial, logSd } = start();
  return {
    initial,
    logSd,
    forecast: () => {
      const { predictor } = start();
      const rest = (trajectory: number) => ({
        tokens: tokensOf(of(predictor.predictOnly(`${trajectory}`, "tokens")).logMean),
        // Few schedulers read it.
        get toolSeconds() {
          return Math.expm1(of(predictor.predictOnly(`${trajectory}`, "toolSeconds")).logMean);
        },
      });
      const turnEnded = (trajectory: number, turn: number): void => {
        const { tokens, meanLogProbability } = episodes[trajectory]!.turns[turn]!;
        predictor.turnEnded(`${trajectory}`, { tokens, meanLogProbability });
      };
      return {
        atStepEnd: (trajectory, step) => {
          turnEnded(trajectory, step - 1);
          return rest(trajectory).tokens;
        },
        atSubmission: (trajectory, step) => {
          if (step === 0) return rest(trajectory);
          const { toolSeconds, hasToolFailed, observedTokens } = episodes[trajectory]!.turns[step - 1]!;
          predictor.toolEnded(`${trajectory}`, { toolSeconds, hasToolFailed, observedTokens });
          return rest(trajectory);
        },
        finished: (trajectory) => {
          turnEnded(trajectory, episodes[trajectory]!.turns.length - 1);
          predictor.ended(`${trajectory}`);
        },
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
  const atSubmission = (trajectory: number, step: number) => ({
    tokens: rest(trajectory, step),
    toolSeconds: toolRest(trajectory, step),
  });
  return { initial, forecast: () => ({ atStepEnd: rest, atSubmission, finished: () => {} }), logSd };
}

/** Of each step, what is generated from it on. */
function restsOf(tokens: readonly number[]): number[] {
  const rests = [...tokens];
  for (let i = rests.length - 2; i >= 0; i--) rests[i]! += rests[i + 1]!;
  return rests;
}
