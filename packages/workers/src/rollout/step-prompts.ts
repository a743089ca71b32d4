/**
 * The prompts that a step is given, by what waits. Pure.
 *
 * - QP1 new prompts come in the order of their dataset, each once: those that were spare before, then others by whole rounds, which count
 *   from 1 without a gap
 * - QP2 where groups that are rewarded alike are drawn again (`resample`), so many spare prompts for one that is played come with it; what of
 *   them no group needs waits for the next step
 * - QP3 the same step and the same that waits give the same prompts, also where a resume knows a spare one by its place alone
 * - QP4 a dataset with a position is asked from the one that the draw before it has left, also in another step and after a resume, and a spare
 *   prompt of it is kept whole, for it cannot be drawn again by its place
 */
import type { Prompt } from "@treadle/contracts";
import type { Carried, Drawn, Position, Unfinished } from "@treadle/runtime";
import { tailRound } from "@treadle/trajectories";
import type { Draw } from "../data/prompt-source.ts";
import { oversamplingOf, type RolloutOrderConfig } from "./order-config.ts";

type Given = { readonly step: number; readonly carried: Carried<Prompt> };

/**
 * The prompts of a step that wants so many: those that lost a race where it is their turn, new ones, and spare ones among them; with the
 * position that the step leaves, where `draw` tells one.
 */
export async function promptsOfStep(
  config: RolloutOrderConfig,
  numWanted: number,
  given: Given,
  draw: (round: number, count: number) => readonly Prompt[] | Promise<readonly Prompt[]>,
): Promise<readonly Prompt[]>;
export async function promptsOfStep(
  config: RolloutOrderConfig,
  numWanted: number,
  given: Given,
  draw: Draw,
): Promise<readonly Prompt[] | Drawn<Prompt>>;
export async function promptsOfStep(
  config: RolloutOrderConfig,
  numWanted: number,
  { step, carried }: Given,
  draw: Draw,
): Promise<readonly Prompt[] | Drawn<Prompt>> {
  const drawing = new Drawing(draw, carried.position);
  const items = await itemsOfStep(config, numWanted, { step, carried }, drawing);
  return drawing.hasLeft ? { items, position: drawing.position as Position } : items;
}

/** QP4: the draws of one step, one after the other. */
class Drawing {
  position: Position | undefined;
  /** it has told where the next one goes on */
  hasLeft = false;
  readonly #draw: Draw;

  constructor(draw: Draw, position: Position | undefined) {
    this.#draw = draw;
    this.position = position;
  }

  async next(round: number, count: number): Promise<readonly Prompt[]> {
    const drawn = await this.#draw(round, count, this.position);
    if (!("position" in drawn)) return drawn;
    this.position = drawn.position;
    this.hasLeft = true;
    return drawn.items;
  }
}

async function itemsOfStep(
  config: RolloutOrderConfig,
  numWanted: number,
  { step, carried }: Given,
  drawing: Drawing,
): Promise<readonly Prompt[]> {
  const { numSteps: numLateSteps } = carried;
  const { resample = 0, tail } = config;
  const late = carried.items.filter(({ spare }) => !spare);
  const given = { step, numWanted, numLate: late.length, numLateSteps };
  const { numLate, fresh } = tailRound(given, {
    prompts: oversamplingOf(config).prompts,
    lateJoin: tail === "carry",
  });
  const first = late.slice(0, numLate);
  if (resample === 0) return [...first, ...(fresh ? await drawing.next(fresh.round, fresh.count) : [])];
  const numFresh = fresh?.count ?? 0;
  const numSpare = resample * (numLate + numFresh);
  const waiting: Prompt[] = [];
  for (const prompt of carried.items) if (prompt.spare) waiting.push(await drawnAgain(prompt, numWanted, drawing));
  const atLeast = numFresh + numSpare - waiting.length;
  const news = [...waiting, ...(await newOnes(atLeast, numWanted, carried.numGiven, drawing))];
  const played = [...first, ...news.slice(0, numFresh).map(({ spare: _, ...prompt }) => prompt)];
  const spares = news.slice(numFresh);
  // Each rank that takes prompts takes its part of what is spare.
  const numEach = spares.length / played.length;
  return played.flatMap((prompt, at) => [
    prompt,
    ...spares.slice(Math.round(at * numEach), Math.round((at + 1) * numEach)),
  ]);
}

/** QP1: whole rounds of new prompts, at least so many, behind those that were given before. */
async function newOnes(atLeast: number, perRound: number, numGiven: number, drawing: Drawing): Promise<Prompt[]> {
  const first = Math.ceil(numGiven / perRound) + 1;
  const numRounds = Math.max(0, Math.ceil(atLeast / perRound));
  const news: Prompt[] = [];
  for (let round = first; round < first + numRounds; round++)
    for (const [index, prompt] of (await drawing.next(round, perRound)).entries())
      news.push({ ...prompt, spare: { round, index, ...(drawing.hasLeft && { isWhole: true }) } });
  return news;
}

/** QP3 */
async function drawnAgain(prompt: Prompt, perRound: number, drawing: Drawing): Promise<Prompt> {
  const { spare, tokens } = prompt;
  if (!spare || tokens.length > 0) return prompt;
  return { ...((await drawing.next(spare.round, perRound))[spare.index] as Prompt), spare };
}

/** What becomes of prompts that a step leaves. What their episodes had is saved beside the journal, so these go on after a resume, too. */
export const unfinishedPrompts: Unfinished<Prompt> = {
  kept: ({ begun: _, ...prompt }) =>
    prompt.spare && !prompt.spare.isWhole ? { id: prompt.id, tokens: new Int32Array(), spare: prompt.spare } : prompt,
  saved: ({ begun }) => begun !== undefined,
  cut: ({ cut }) => cut,
};
