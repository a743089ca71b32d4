import type { Prompt } from "@treadle/contracts";
import type { Drawn, Position } from "@treadle/runtime";
import fc from "fast-check";
import { expect, test } from "vitest";
import { promptsOfStep, unfinishedPrompts } from "../src/rollout/step-prompts.ts";

const draw = (round: number, count: number): Prompt[] =>
  Array.from({ length: count }, (_, index) => ({ id: `${round}.${index}`, tokens: Int32Array.of(round, index + 1) }));
const idsOf = (prompts: readonly Prompt[]) => prompts.map(({ id }) => id);
const cases = fc.record({
  tail: fc.constantFrom("wait", "cut", "batch", "carry"),
  resample: fc.integer({ min: 1, max: 3 }),
  numWanted: fc.integer({ min: 1, max: 7 }),
  /** its dataset goes on from a position, and heeds no number of a round */
  hasPosition: fc.boolean(),
  /** of each step: which of its prompts lose, how many spare ones are begun, and whether another runner goes on behind it */
  steps: fc.array(fc.record({ lost: fc.nat(), used: fc.nat(), isResumed: fc.boolean() }), {
    minLength: 1,
    maxLength: 12,
  }),
});

/** The same prompts, by how many were drawn before. */
const drawFrom =
  (numWanted: number) =>
  (_: number, count: number, position: Position | undefined): Drawn<Prompt> => {
    const row = (position as number | undefined) ?? 0;
    const rows = Array.from({ length: count }, (_, at) => row + at);
    const items = rows.map((at) => draw(1 + Math.floor(at / numWanted), numWanted)[at % numWanted] as Prompt);
    return { items, position: row + count };
  };

test("QP1, QP2, QP3, QP4: new prompts are played in the order of the dataset, each once, whoever is replaced, loses, or dies", async () => {
  await fc.assert(
    fc.asyncProperty(cases, async ({ tail, resample, numWanted, hasPosition, steps }) => {
      let waiting: readonly Prompt[] = [];
      const given = new Set<string>();
      let numSteps = 0;
      let position: Position | undefined;
      const [played, ended]: [string[], string[]] = [[], []];
      for (const [at, { lost, used, isResumed }] of steps.entries()) {
        const known = waiting;
        const ask = (items: readonly Prompt[]) =>
          promptsOfStep(
            { tail: tail as "wait", resample },
            numWanted,
            { step: at + 1, carried: { items, numSteps, numGiven: given.size, position } },
            hasPosition ? drawFrom(numWanted) : draw,
          );
        const kept = known.map((prompt) => unfinishedPrompts.kept?.(prompt) as Prompt);
        for (const prompt of kept) if (prompt.spare) expect(prompt.tokens).toHaveLength(hasPosition ? 2 : 0);
        const drawn = await ask(isResumed ? kept : known);
        expect(drawn).toEqual(await ask(known));
        const batch = "position" in drawn ? drawn.items : drawn;
        if ("position" in drawn) position = drawn.position;
        if (batch.some(({ id }) => idsOf(known).includes(id))) numSteps++;
        waiting = known.filter(({ id }) => !idsOf(batch).includes(id));
        for (const { id, tokens } of batch) {
          expect(tokens).toHaveLength(2);
          given.add(id);
        }
        const spares = batch.filter(({ spare }) => spare);
        const regular = batch.filter(({ spare }) => !spare);
        expect(regular.length).toBeGreaterThanOrEqual(numWanted);
        expect(spares.length).toBeGreaterThanOrEqual(resample * regular.length);
        // Less than a round more than needed, or what was spare before.
        const most = resample * regular.length + numWanted;
        expect(spares.length).toBeLessThan(Math.max(most, known.filter(({ spare }) => spare).length + 1));
        // Whoever takes some of them in their order finds its part of the spare ones.
        const gaps = batch
          .map(({ spare }) => (spare ? "s" : "r"))
          .join("")
          .split("r")
          .map(({ length }) => length);
        expect(gaps.shift()).toBe(0);
        expect(Math.max(...gaps) - Math.min(...gaps)).toBeLessThanOrEqual(1);
        const numUsed = used % (spares.length + 1);
        played.push(...idsOf(regular.filter(({ isLate }) => !isLate)), ...idsOf(spares.slice(0, numUsed)));
        const numLost = tail === "batch" || tail === "carry" ? lost % (regular.length + 1) : 0;
        const late = regular.filter(({ isLate }) => !isLate).slice(0, numLost);
        ended.push(...idsOf(regular).filter((id) => !idsOf(late).includes(id)), ...idsOf(spares.slice(0, numUsed)));
        waiting = [...waiting, ...late.map((prompt) => ({ ...prompt, isLate: true })), ...spares.slice(numUsed)];
      }
      expect(new Set(played).size).toBe(played.length);
      expect(new Set(ended).size).toBe(ended.length);
      const numRounds = given.size / numWanted;
      const all = Array.from({ length: numRounds }, (_, round) => idsOf(draw(round + 1, numWanted))).flat();
      expect([...ended, ...idsOf(waiting)].toSorted()).toEqual(all.toSorted());
      expect([...played, ...idsOf(waiting.filter(({ spare }) => spare))].toSorted()).toEqual(all.toSorted());
    }),
  );
});

test("without 'resample' no prompt is spare, and none is drawn beyond what a step wants", async () => {
  const carried = { items: [], numSteps: 0, numGiven: 8 };
  expect(await promptsOfStep({}, 4, { step: 3, carried }, draw)).toEqual(draw(3, 4));
});
