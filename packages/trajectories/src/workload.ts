import type { RecordedEpisode } from "./predict/evaluate.ts";
import { normalFrom, seededRandom } from "./random.ts";

/**
 * Agentic workloads in the shapes of Heddle §7: heavy-tailed numbers of turns, tokens a turn and seconds of tools,
 * samples of one prompt alike but far from equal, failing tools before more turns, at most 40 Ki tokens.
 */
export type WorkloadShape = {
  readonly medianTurns: number;
  readonly medianTokensPerTurn: number;
  readonly medianToolSeconds: number;
  readonly toolLogSd: number;
  readonly contextTokens: number;
  readonly observedTokens: number;
  /** log-sd of a prompt's mean among prompts, and of a sample among those of its prompt */
  readonly betweenPrompts: number;
  readonly withinPrompt: number;
};

export const workloadShapes = {
  coding: {
    medianTurns: 5,
    medianTokensPerTurn: 420,
    medianToolSeconds: 0.8,
    toolLogSd: 1.1,
    contextTokens: 900,
    observedTokens: 220,
    betweenPrompts: 0.6,
    withinPrompt: 0.55,
  },
  search: {
    medianTurns: 5,
    medianTokensPerTurn: 110,
    medianToolSeconds: 1,
    toolLogSd: 0.6,
    contextTokens: 400,
    observedTokens: 500,
    betweenPrompts: 0.35,
    withinPrompt: 0.45,
  },
  math: {
    medianTurns: 3,
    medianTokensPerTurn: 1100,
    medianToolSeconds: 0.15,
    toolLogSd: 0.8,
    contextTokens: 250,
    observedTokens: 60,
    betweenPrompts: 0.7,
    withinPrompt: 0.5,
  },
} as const satisfies Record<string, WorkloadShape>;

export const workloadNames = Object.keys(workloadShapes) as (keyof typeof workloadShapes)[];

const mostTokens = 40_960;

export type DrawnWorkload = {
  readonly steps: number;
  readonly promptsPerStep: number;
  readonly samples: number;
  /** prompts that steps are drawn from */
  readonly prompts: number;
  readonly seed: number;
};

/** One list of episodes a step, samples of a prompt beside each other. Equal seeds draw equal episodes. */
export function drawEpisodes(shape: WorkloadShape, drawn: DrawnWorkload): RecordedEpisode[][] {
  const uniform = seededRandom(drawn.seed);
  const normal = normalFrom(uniform);
  const difficulties = Array.from({ length: drawn.prompts }, () => shape.betweenPrompts * normal());
  return Array.from({ length: drawn.steps }, () =>
    Array.from({ length: drawn.promptsPerStep }, () => Math.floor(uniform() * drawn.prompts)).flatMap((prompt) =>
      Array.from({ length: drawn.samples }, () => {
        const excess = difficulties[prompt]! + shape.withinPrompt * normal();
        return drawEpisode(shape, `${prompt}`, excess, uniform, normal);
      }),
    ),
  );
}

/** `excess`: by how much this sample is longer than the median, in the logarithm; two thirds of it in turns. */
function drawEpisode(
  shape: WorkloadShape,
  prompt: string,
  excess: number,
  uniform: () => number,
  normal: () => number,
): RecordedEpisode {
  const numTurns = Math.max(1, Math.round(shape.medianTurns * Math.exp(0.67 * excess + 0.2 * normal())));
  const turns: RecordedEpisode["turns"][number][] = [];
  let left = mostTokens;
  for (let turn = 0; turn < numTurns && left > 0; turn++) {
    const meant = shape.medianTokensPerTurn * Math.exp(0.33 * excess + 0.6 * normal());
    const tokens = Math.min(left, Math.max(1, Math.round(meant)));
    left -= tokens;
    const isLast = turn === numTurns - 1 || left === 0;
    turns.push({
      tokens,
      toolSeconds: isLast ? 0 : shape.medianToolSeconds * Math.exp(shape.toolLogSd * normal()),
      hasToolFailed: !isLast && uniform() < 1 / (1 + Math.exp(1 - 1.5 * excess)),
      observedTokens: isLast ? 0 : Math.round(shape.observedTokens * Math.exp(0.3 * normal())),
      meanLogProbability: -Math.abs(0.4 + 0.1 * excess + 0.05 * normal()),
    });
  }
  const contextTokens = Math.round(shape.contextTokens * Math.exp(0.3 * normal()));
  return { prompt, contextTokens, limits: { maxTokens: mostTokens }, turns };
}
