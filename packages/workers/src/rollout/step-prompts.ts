/**
 * The prompts that a step is given, by what waits. Pure.
 *
 * - QP1 new prompts come in the order of their dataset, each once: those that were spare before, then others by whole rounds, which count
 *   from 1 without a gap
 * - QP2 where groups that are rewarded alike are drawn again (`resample`), so many spare prompts for one that is played come with it; what of
 *   them no group needs waits for the next step
 * - QP3 the same step and the same that waits give the same prompts, also where a resume knows a spare one by its place alone
 */
import type { Prompt } from "@treadle/contracts";
import type { Carried, Unfinished } from "@treadle/runtime";
import { tailRound } from "@treadle/trajectories";
import { oversamplingOf, type RolloutOrderConfig } from "./order-config.ts";

/** New prompts of a round. */
type Draw = (round: number, count: number) => readonly Prompt[];

/** The prompts of a step that wants so many: those that lost a race where it is their turn, new ones, and spare ones among them. */
export function promptsOfStep(
  config: RolloutOrderConfig,
  numWanted: number,
  { step, carried }: { readonly step: number; readonly carried: Carried<Prompt> },
  draw: Draw,
): readonly Prompt[] {
  const { numSteps: numLateSteps } = carried;
  const { resample = 0, tail } = config;
  const late = carried.items.filter(({ spare }) => !spare);
  const given = { step, numWanted, numLate: late.length, numLateSteps };
  const { numLate, fresh } = tailRound(given, {
    prompts: oversamplingOf(config).prompts,
    lateJoin: tail === "carry",
  });
  const first = late.slice(0, numLate);
  if (resample === 0) return [...first, ...(fresh ? draw(fresh.round, fresh.count) : [])];
  const numFresh = fresh?.count ?? 0;
  const numSpare = resample * (numLate + numFresh);
  const waiting = carried.items.filter(({ spare }) => spare).map((prompt) => drawnAgain(prompt, numWanted, draw));
  const news = [...waiting, ...newOnes(numFresh + numSpare - waiting.length, numWanted, carried.numGiven, draw)];
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
function newOnes(atLeast: number, perRound: number, numGiven: number, draw: Draw): Prompt[] {
  const first = Math.ceil(numGiven / perRound) + 1;
  const numRounds = Math.max(0, Math.ceil(atLeast / perRound));
  return Array.from({ length: numRounds }, (_, at) => first + at).flatMap((round) =>
    draw(round, perRound).map((prompt, index) => ({ ...prompt, spare: { round, index } })),
  );
}

/** QP3 */
function drawnAgain(prompt: Prompt, perRound: number, draw: Draw): Prompt {
  const { spare, tokens } = prompt;
  if (!spare || tokens.length > 0) return prompt;
  return { ...(draw(spare.round, perRound)[spare.index] as Prompt), spare };
}

/** What becomes of prompts that a step leaves. What their episodes had is saved beside the journal, so these go on after a resume, too. */
export const unfinishedPrompts: Unfinished<Prompt> = {
  kept: ({ begun: _, ...prompt }) =>
    prompt.spare ? { id: prompt.id, tokens: new Int32Array(), spare: prompt.spare } : prompt,
  saved: ({ begun }) => begun !== undefined,
  cut: ({ cut }) => cut,
};
