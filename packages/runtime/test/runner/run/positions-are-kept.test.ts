/** A dataset that says where it has come to goes on there, whenever the runner dies. */
import fc from "fast-check";
import { expect, test } from "vitest";
import type { Carried, Drawn, Position } from "../../../src/author/workflow.ts";
import { RunnerLoop } from "../../../src/runner/loop/runner-loop.ts";
import { CarriedItems, drawnOf, maxPositionBytes } from "../../../src/runner/run/carried-items.ts";
import { type CommittedRecord, type Journal, JournalRecord, type States } from "../../../src/runner/run/journal.ts";
import { StepTracker } from "../../../src/runner/run/step-tracker.ts";

type StepRecord = Extract<JournalRecord, { type: "step" }>;
type Item = { readonly id: string };

const supervision = {
  ...{ maxRestarts: 1, restartWindowMs: 1, heartbeatTimeoutMs: 1, stallMs: 1, lockTimeoutMs: 1, startTimeoutMs: 1 },
};

/** One life of a runner over a journal in memory, which says before which appends it dies. */
function lifeOf(journal: StepRecord[], totalSteps: number, maxStaleness: number, dies: (step: number) => boolean) {
  return new StepTracker({
    journal: {
      get lastStep() {
        return journal.at(-1);
      },
      get records() {
        return journal;
      },
      appendSteps: async (steps: CommittedRecord[], state: States) => {
        await new Promise<void>((resolve) => setImmediate(resolve));
        if (steps.some(({ step }) => dies(step))) throw new Error("the runner is dead");
        // As the next process reads it.
        const read = steps.map((step) =>
          JournalRecord.parse(JSON.parse(JSON.stringify({ type: "step", ...step, state }))),
        );
        journal.push(...(read as StepRecord[]));
      },
    } as unknown as Journal,
    totalSteps,
    carriedFiles: { waiting: new Map(), save: async () => undefined },
    loop: new RunnerLoop({ supervision, rejoinMs: 1, placeWaitMs: 1, maxStaleness }, { now: () => 0 }),
    states: () => ({}),
    enter: () => {},
    onStarted: () => {},
    onCommitted: async () => {},
    warn: () => {},
  });
}

test("CI4: whenever the runner dies, steps are given each row of a dataset with a position once, in its order", async () => {
  let numDeaths = 0;
  await fc.assert(
    fc.asyncProperty(
      fc.integer({ min: 1, max: 14 }),
      fc.nat(2),
      fc.array(fc.nat(3), { minLength: 1, maxLength: 5 }),
      fc.array(fc.nat(13), { maxLength: 5 }),
      fc.boolean(),
      async (totalSteps, maxStaleness, counts, deaths, changesIt) => {
        const journal: StepRecord[] = [];
        const left = new Set(deaths.map((step) => step + 1));
        // How many rows a step takes is not told by its number, nor where the next one goes on; 0 leaves the position out.
        const dataset = (step: number, { position }: Carried<Item>): readonly Item[] | Drawn<Item> => {
          const count = counts[step % counts.length] as number;
          const at = (position as { row: number } | undefined)?.row ?? 0;
          if (count === 0) return [];
          const items = Array.from({ length: count }, (_, index) => ({ id: `${at + index}` }));
          // What it is given is its own to change.
          const next = changesIt && position !== undefined ? (position as { row: number }) : { row: at };
          next.row += count;
          return { items, position: next };
        };
        for (;;) {
          const life = lifeOf(journal, totalSteps, maxStaleness, (step) => left.delete(step));
          try {
            for await (const _ of life.steps<Item>(dataset)) await Promise.resolve();
            break;
          } catch (error) {
            expect(String(error)).toContain("the runner is dead");
            numDeaths++;
          }
        }
        const given = journal.flatMap(({ items }) => items);
        expect(given).toEqual(given.map((_, row) => `${row}`));
        expect(journal).toHaveLength(totalSteps);
        expect(new CarriedItems(journal).now.position).toEqual(given.length === 0 ? undefined : { row: given.length });
      },
    ),
    { numRuns: 150 },
  );
  expect(numDeaths).toBeGreaterThan(50);
});

test("CI4: a position is as it was when it was returned, whatever its dataset goes on to do with it", () => {
  const position = { rows: [1] };
  const drawn = drawnOf(1, { items: [], position });
  position.rows.push(2);
  expect(drawn.position).toEqual({ rows: [1] });
  expect(drawnOf(1, { items: [], position: null })).toEqual({ items: [], position: null });
});

const circular: Record<string, unknown> = {};
circular["self"] = circular;
test.each([
  [undefined, "is 'undefined'"],
  [Number.NaN, "is no JSON"],
  [1n, "is no JSON"],
  [new Date(0), "is no JSON"],
  [{ at: () => 1 }, "is no JSON"],
  [circular, "is no JSON"],
  ["é".repeat(maxPositionBytes / 2), `has '${maxPositionBytes + 2}' bytes`],
])("a position that no journal could give back is refused: %s", (position, says) => {
  expect(() => drawnOf(7, { items: [], position: position as Position })).toThrow(
    `the position that step 7 leaves in its dataset ${says}; allowed is JSON of at most ${maxPositionBytes} bytes`,
  );
});

test("what is neither a list nor items with a position is refused", () => {
  expect(() => drawnOf(2, { position: 1 } as unknown as Drawn<Item>)).toThrow("gave step 2 'undefined' as items");
});
