import { mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { TreadleError } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";
import type { Channel } from "../../../src/author/channel/channel.ts";
import type { Carried } from "../../../src/author/workflow.ts";
import { RunnerLoop } from "../../../src/runner/loop/runner-loop.ts";
import { CarriedFiles } from "../../../src/runner/run/carried-files.ts";
import { CarriedItems } from "../../../src/runner/run/carried-items.ts";
import type { CommittedRecord, Journal, JournalRecord, States } from "../../../src/runner/run/journal.ts";
import { RunFolder } from "../../../src/runner/run/run-folder.ts";
import { StepTracker } from "../../../src/runner/run/step-tracker.ts";

type StepRecord = Extract<JournalRecord, { type: "step" }>;
type Item = { readonly id: string; readonly tokens: Int32Array };

const supervision = {
  maxRestarts: 1,
  restartWindowMs: 1,
  heartbeatTimeoutMs: 1,
  stallMs: 1,
  lockTimeoutMs: 1,
  startTimeoutMs: 1,
};
const idsOf = (items: readonly unknown[]) => (items as readonly Item[]).map(({ id }) => id);
const turn = () => new Promise<void>((resolve) => setImmediate(resolve));
const batchSize = 4;

/** Those that wait, where they fill a step; else new ones, by round. */
const dataset = (step: number, { items, numSteps }: Carried<Item>): readonly Item[] =>
  items.length >= batchSize
    ? items.slice(0, batchSize)
    : Array.from({ length: batchSize }, (_, at) => ({
        id: `${step - numSteps}.${at}`,
        tokens: Int32Array.of(step, at),
      }));

const channelOf = (batches: () => AsyncIterable<Item[]>) => ({ batches }) as unknown as Pick<Channel<Item>, "batches">;

/** One life of a runner over a journal in memory, which says before which appends it dies. */
function lifeOf(
  journal: StepRecord[],
  totalSteps: number,
  maxStaleness: number,
  dies: (step: number) => boolean,
  carriedFiles: Pick<CarriedFiles, "waiting" | "save"> = { waiting: new Map(), save: async () => undefined },
) {
  const warnings: string[] = [];
  const tracker = new StepTracker({
    journal: {
      get lastStep() {
        return journal.at(-1);
      },
      get records() {
        return journal;
      },
      appendSteps: async (steps: CommittedRecord[], state: States) => {
        await turn();
        if (steps.some(({ step }) => dies(step))) throw new Error("the runner is dead");
        // As the next process reads it.
        const read = JSON.parse(JSON.stringify(steps)) as CommittedRecord[];
        journal.push(...read.map((step): StepRecord => ({ type: "step", ...step, state })));
      },
    } as unknown as Journal,
    totalSteps,
    carriedFiles,
    loop: new RunnerLoop({ supervision, rejoinMs: 1, placeWaitMs: 1, maxStaleness }, { now: () => 0 }),
    states: () => ({}),
    enter: () => {},
    onStarted: () => {},
    onCommitted: async () => {},
    warn: (line) => warnings.push(line),
  });
  return { tracker, warnings };
}

test("CI1, CI2: whenever the runner dies, each item is drawn once, and trained once or waits", async () => {
  let numDeaths = 0;
  await fc.assert(
    fc.asyncProperty(
      fc.integer({ min: 1, max: 14 }),
      fc.nat(2),
      fc.array(fc.nat(3), { minLength: 1, maxLength: 8 }),
      fc.array(fc.nat(13), { maxLength: 4 }),
      async (totalSteps, maxStaleness, numCarried, deaths) => {
        const journal: StepRecord[] = [];
        const left = new Set(deaths.map((step) => step + 1));
        let warnings: string[] = [];
        for (;;) {
          const life = lifeOf(journal, totalSteps, maxStaleness, (step) => left.delete(step));
          try {
            for await (const { index, batch, carry } of life.tracker.steps<Item>(dataset)) {
              const count = numCarried[(index + left.size) % numCarried.length] as number;
              carry(
                channelOf(async function* () {
                  await turn();
                  for (const item of batch.slice(0, count)) yield [item];
                }),
              );
              await turn();
            }
            warnings = life.warnings;
            break;
          } catch (error) {
            expect(String(error)).toContain("the runner is dead");
            numDeaths++;
          }
        }
        expect(journal.map(({ step }) => step)).toEqual(Array.from({ length: totalSteps }, (_, at) => at + 1));
        const queue = new CarriedItems(journal).now;
        const waiting = idsOf(queue.items);
        const given = journal.flatMap(({ items }) => items);
        const carried = journal.flatMap(({ carried: texts = [] }) =>
          idsOf(new CarriedItems([{ items: [], carried: texts }]).now.items),
        );
        // Each time that an item is given it is trained, or carried on; in the end it is trained once, or waits.
        const drawn = [...new Set(given)];
        for (const id of drawn) {
          const times = (list: readonly string[]) => list.filter((one) => one === id).length;
          expect(times(given) - times(carried)).toBe(waiting.includes(id) ? 0 : 1);
        }
        expect(queue.numGiven).toBe(drawn.length);
        const numRounds = totalSteps - queue.numSteps;
        const all = Array.from(
          { length: numRounds * batchSize },
          (_, at) => `${1 + Math.floor(at / batchSize)}.${at % batchSize}`,
        );
        expect(drawn.toSorted()).toEqual(all.toSorted());
        expect(warnings).toHaveLength(waiting.length > 0 ? 1 : 0);
        for (const { tokens } of queue.items as readonly Item[]) expect(tokens).toBeInstanceOf(Int32Array);
      },
    ),
    { numRuns: 150 },
  );
  expect(numDeaths).toBeGreaterThan(50);
});

test("CI2: the steps of this life are given an item as it was carried on, a resume what was to be kept of it", async () => {
  const journal: StepRecord[] = [];
  const given: Item[] = [];
  const life = async (totalSteps: number) => {
    const { tracker } = lifeOf(journal, totalSteps, 0, () => false);
    for await (const { index, batch, carry } of tracker.steps<Item>(dataset)) {
      given.push(...batch.filter(({ id }) => id.startsWith("1.")));
      if (index === 2 || index === 4) continue;
      carry(
        channelOf(async function* () {
          yield [...batch];
        }),
        { kept: ({ id }) => ({ id, tokens: new Int32Array() }) },
      );
    }
  };
  await life(3);
  await life(4);
  const lengths = given.map(({ tokens }) => tokens.length);
  expect(lengths).toEqual([2, 2, 2, 2, 2, 2, 2, 2]);
  const queue = new CarriedItems(journal.slice(0, 1)).now.items as readonly Item[];
  expect(queue.map(({ id, tokens }) => [id, tokens.length])).toEqual(["1.0", "1.1", "1.2", "1.3"].map((id) => [id, 0]));
});

test("CI3: whenever the runner dies, a resume has what is saved as it was after the last committed step, and no file of others", async () => {
  let [numDeaths, numWhole] = [0, 0];
  const root = await mkdtemp(join(tmpdir(), "treadle-carried-"));
  let numRuns = 0;
  await fc.assert(
    fc.asyncProperty(
      fc.integer({ min: 1, max: 10 }),
      fc.nat(2),
      fc.array(fc.nat(3), { minLength: 1, maxLength: 5 }),
      fc.array(fc.nat(9), { maxLength: 4 }),
      async (totalSteps, maxStaleness, numCarried, deaths) => {
        const folder = new RunFolder(root, `run-${numRuns++}`);
        await folder.create();
        const journal: StepRecord[] = [];
        const left = new Set(deaths.map((step) => step + 1));
        for (let isOver = false; !isOver; ) {
          // How often each was carried on, in steps that count; it has as many tokens.
          const times = new Map<string, number>();
          const carriedOn = (id: string) => times.set(id, (times.get(id) ?? 0) + 1);
          for (const { carried = [] } of journal)
            idsOf(new CarriedItems([{ items: [], carried }]).now.items).forEach(carriedOn);
          const files = new CarriedFiles(folder);
          const waiting = journal.at(-1)?.waiting;
          if (waiting) await files.restore(waiting);
          await files.keepOnly(waiting);
          const life = lifeOf(journal, totalSteps, maxStaleness, (step) => left.delete(step), files);
          try {
            for await (const { index, batch, carry } of life.tracker.steps<Item>(shortDataset)) {
              for (const { id, tokens } of batch) {
                expect([id, tokens.length]).toEqual([id, times.get(id) ?? 0]);
                if (journal.length > 0 && tokens.length > 0) numWhole++;
              }
              const unfinished = batch.slice(0, numCarried[index % numCarried.length]);
              carry(
                channelOf(async function* () {
                  await turn();
                  for (const { id } of unfinished) {
                    carriedOn(id);
                    yield [{ id, tokens: new Int32Array(times.get(id) as number) }];
                  }
                }),
                { kept: ({ id }) => ({ id, tokens: new Int32Array() }), saved: () => true },
              );
              await turn();
            }
            isOver = true;
          } catch (error) {
            expect(String(error)).toContain("the runner is dead");
            numDeaths++;
          }
        }
        await new CarriedFiles(folder).keepOnly(journal.at(-1)?.waiting);
        const numWaiting = new CarriedItems(journal).now.items.length;
        expect(await readdir(folder.carried)).toHaveLength(numWaiting > 0 ? 1 : 0);
      },
    ),
    { numRuns: 60 },
  );
  await rm(root, { recursive: true });
  expect(numDeaths).toBeGreaterThan(20);
  expect(numWhole).toBeGreaterThan(20);
});

/** Those that wait as soon as there are any, and new ones beside them. */
const shortDataset = (_: number, { items, numGiven }: Carried<Item>): readonly Item[] => [
  ...items,
  ...Array.from({ length: Math.max(1, batchSize - items.length) }, (_, at) => ({
    id: `new ${numGiven + at}`,
    tokens: new Int32Array(),
  })),
];

test("CI3: a file that is damaged, or is not there, is refused with what to do", async () => {
  const root = await mkdtemp(join(tmpdir(), "treadle-carried-"));
  const folder = new RunFolder(root, "run");
  await folder.create();
  const item = { id: "a", tokens: Int32Array.of(1, 2, 3) };
  const whole = new Map([["a", item]]);
  const saved = await new CarriedFiles(folder).save([{ index: 3, items: [], whole }]);
  if (saved === undefined) throw new Error("nothing was saved");
  expect(saved).toEqual({ folder: "carried/step-000003", files: ["manifest.json", "rank-0/items"] });
  const again = new CarriedFiles(folder);
  await again.restore(saved);
  expect(again.waiting).toEqual(whole);
  await writeFile(join(folder.path, saved.folder, "rank-0", "items"), "abc");
  const refused = async (code: string) =>
    expect(new CarriedFiles(folder).restore(saved)).rejects.toMatchObject({
      code,
      message: expect.stringContaining("treadle resume --checkpoint"),
    });
  await refused("checkpoint.corrupt");
  await again.keepOnly(undefined);
  await refused("checkpoint.missing");
  await rm(root, { recursive: true });
});

test("what is cut waits no more, and the journal has its id by the cause", async () => {
  const journal: StepRecord[] = [];
  const { tracker } = lifeOf(journal, 2, 0, () => false);
  const given: string[] = [];
  for await (const { index, batch, carry } of tracker.steps<Item>(dataset)) {
    given.push(...batch.map(({ id }) => id));
    if (index === 2) break;
    carry(
      channelOf(async function* () {
        yield batch.slice(0, 3);
      }),
      { cut: ({ id }) => (id === "1.0" ? undefined : id === "1.1" ? "late" : "alike") },
    );
  }
  await tracker.drained();
  expect(journal[0]?.cut).toEqual({ late: ["1.1"], alike: ["1.2"] });
  expect(idsOf(new CarriedItems(journal.slice(0, 1)).now.items)).toEqual(["1.0"]);
  expect(given).toHaveLength(2 * batchSize);
  await expect(async () => {
    const life = lifeOf([], 1, 0, () => false).tracker;
    for await (const { carry } of life.steps<Item>(dataset))
      carry(
        channelOf(async function* () {
          yield [{} as Item];
        }),
        { cut: () => "late" },
      );
  }).rejects.toThrow(/an item without an 'id' was carried on/);
});

test("items are carried on with an id, once, and within the body of their step", async () => {
  const carrying = async (items: readonly unknown[], when: "within" | "after" = "within") => {
    const { tracker } = lifeOf([], 2, 0, () => false);
    let carry: ((channel: Pick<Channel<Item>, "batches">) => void) | undefined;
    const channel = channelOf(async function* () {
      yield items as Item[];
    });
    for await (const step of tracker.steps(dataset)) {
      if (when === "within") step.carry(channel);
      else if (step.index === 2) carry?.(channel);
      carry = step.carry;
    }
  };
  await expect(carrying([{ tokens: 1 }])).rejects.toThrow(/an item without an 'id' was carried on/);
  await expect(carrying([{ id: "a" }, { id: "a" }])).rejects.toThrow(/two items called 'a' were carried on/);
  await expect(carrying([{ id: "a" }], "after")).rejects.toThrow(
    /step 1 was told to carry items on when its body had ended/,
  );
});

test("what a producer that failed leaves is nothing of the step's own: the failure of its call is the one that is told", async () => {
  const { tracker } = lifeOf([], 1, 0, () => false);
  const run = (async () => {
    for await (const { carry } of tracker.steps(dataset)) {
      tracker.track(turn().then(() => Promise.reject(new Error("no power"))));
      carry(
        // biome-ignore lint/correctness/useYield: it fails before
        channelOf(async function* () {
          throw new TreadleError("channel.producer-failed", "producer 'rollout/0' of 'late' failed");
        }),
      );
    }
  })();
  await expect(run).rejects.toThrow("no power");
});
