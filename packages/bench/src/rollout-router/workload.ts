import type { Prompt } from "@treadle/contracts";
import { createRandom, hashString, type Random } from "@treadle/learning";
import { normalFrom } from "@treadle/trajectories";

/** One sample of a prompt in one step. */
export type Script = {
  readonly prompt: Prompt;
  readonly name: string;
  readonly key: number;
  /** what its tool says to each turn but the last */
  readonly tools: readonly {
    readonly answer: Int32Array;
    readonly toolSeconds: number;
    readonly hasToolFailed: boolean;
  }[];
  /** tokens of each turn by where it begins behind the prompt; else the engine draws them */
  readonly turnTokens?: ReadonlyMap<number, number>;
};

const answer = Int32Array.of(3, 4);

const numRanks = 4;
const promptsPerRank = 12;
const samples = 4;
/** that steps are drawn from: as in later epochs, most have been seen before */
const numPrompts = 60;
const medianTurns = 2.5;
const medianToolMs = 20;
const logSd = { turns: 0.8, turnsOfSample: 0.35, toolMs: 0.8 };

/** A step's episodes by the rank that takes their prompts: each takes as many, drawn at random. */
export function drawStep(seed: number, step: number, mostTurns: number): readonly (readonly Script[])[] {
  const random = createRandom(seed).split("prompts");
  const chosen = random.split(`step ${step}`).shuffle(Array.from({ length: numPrompts }, (_, index) => index));
  return Array.from({ length: numRanks }, (_, rank) =>
    chosen
      .slice(rank * promptsPerRank, (rank + 1) * promptsPerRank)
      .flatMap((index) => samplesOf(index, random.split(index), step, mostTurns)),
  );
}

function samplesOf(index: number, random: Random, step: number, mostTurns: number): Script[] {
  const fixed = normalFrom(() => random.float());
  const [logTurns, logToolMs] = [Math.log(medianTurns) + logSd.turns * fixed(), Math.log(medianToolMs)];
  const prompt = { id: `prompt-${index}`, tokens: Int32Array.of(1, 2, 3 + (index % 13), 3 + Math.floor(index / 13)) };
  return Array.from({ length: samples }, (_, sample) => {
    const drawn = random.split(`${step}/${sample}`);
    const normal = normalFrom(() => drawn.float());
    const turns = Math.round(Math.exp(logTurns + logSd.turnsOfSample * normal()));
    const name = `${prompt.id}/${step}/${sample}`;
    return {
      prompt,
      name,
      key: hashString(name),
      tools: new Array(Math.max(1, Math.min(mostTurns, turns)) - 1).fill({
        answer,
        toolSeconds: Math.exp(logToolMs + logSd.toolMs * normal()) / 1000,
        hasToolFailed: false,
      }),
    };
  });
}
