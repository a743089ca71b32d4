import { TreadleError } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";
import { RunnerLoop } from "../../../src/runner/loop/runner-loop.ts";
import type { CommittedRecord, Journal, JournalRecord, States } from "../../../src/runner/run/journal.ts";
import { StepTracker } from "../../../src/runner/run/step-tracker.ts";

type StepRecord = Extract<JournalRecord, { type: "step" }>;
type Gate = { promise: Promise<void>; open: () => void; fail: (error: unknown) => void };

function gate(): Gate {
  let open!: () => void;
  let fail!: (error: unknown) => void;
  const promise = new Promise<void>((resolve, reject) => {
    open = resolve;
    fail = reject;
  });
  promise.catch(() => {});
  return { promise, open, fail };
}

const supervision = {
  maxRestarts: 1,
  restartWindowMs: 1,
  heartbeatTimeoutMs: 1,
  stallMs: 1,
  lockTimeoutMs: 1,
  startTimeoutMs: 1,
};
const turn = () => new Promise<void>((resolve) => setImmediate(resolve));

/** A tracker over a journal in memory, whose appends take a turn of the event loop. */
function world(maxStaleness: number, totalSteps: number, journalFails = (_step: number) => false) {
  const journal: StepRecord[] = [];
  const events: string[] = [];
  const entered: (number | undefined)[] = [];
  let nowMs = 0;
  const tracker = new StepTracker({
    journal: {
      lastStep: undefined,
      records: [],
      appendSteps: async (steps: CommittedRecord[], state: States) => {
        await turn();
        if (steps.some(({ step }) => journalFails(step))) throw new TreadleError("disk.full", "no space left");
        journal.push(...steps.map((step): StepRecord => ({ type: "step", ...step, state })));
      },
    } as unknown as Journal,
    totalSteps,
    carriedFiles: { waiting: new Map(), save: async () => undefined },
    loop: new RunnerLoop({ supervision, rejoinMs: 1, placeWaitMs: 1, maxStaleness }, { now: () => ++nowMs }),
    states: () => ({}),
    enter: (step) => entered.push(step),
    onStarted: (step) => events.push(`start ${step}`),
    onCommitted: async ({ step }) => void events.push(`commit ${step}`),
    warn: () => {},
  });
  return { tracker, journal, events, entered };
}

const dataset = (step: number) => [{ id: `a${step}` }, { id: step }, { other: 1 }, null];

test("W2, J1: however calls end, at most maxStaleness + 1 steps are open and commits are in order, each once", async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.nat(3),
      fc.array(fc.nat(2), { minLength: 1, maxLength: 6 }),
      fc.infiniteStream(fc.nat(1000)),
      async (maxStaleness, callsOfStep, choices) => {
        const { tracker, journal, events } = world(maxStaleness, callsOfStep.length);
        const calls: Gate[] = [];
        let isDone = false;
        const run = (async () => {
          for await (const { index } of tracker.steps(dataset)) {
            for (let i = 0; i < (callsOfStep[index - 1] as number); i++) {
              const call = gate();
              calls.push(call);
              tracker.track(call.promise);
            }
            tracker.record({ reward: index });
            await turn();
          }
          isDone = true;
        })();
        for (let rounds = 0; !isDone; rounds++) {
          expect(rounds).toBeLessThan(500);
          const pick = (choices.next().value as number) % (calls.length + 1);
          calls.splice(pick, 1)[0]?.open();
          for (let i = 0; i < 4; i++) await turn();
          const started = events.filter((event) => event.startsWith("start")).length;
          expect(started - journal.length).toBeLessThanOrEqual(maxStaleness + 1);
        }
        await run;
        const steps = callsOfStep.map((_, at) => at + 1);
        expect(journal.map((record) => record.step)).toEqual(steps);
        expect(events.filter((event) => event.startsWith("commit"))).toEqual(steps.map((step) => `commit ${step}`));
        for (const record of journal) {
          expect(record.items).toEqual([`a${record.step}`, String(record.step), "2", "3"]);
          expect(record.metrics).toEqual({ reward: record.step });
          expect(record.state).toEqual({});
        }
      },
    ),
    { numRuns: 60 },
  );
});

test("a failed call surfaces in the loop, and neither its step nor a later one is committed", async () => {
  const { tracker, journal, events } = world(1, 5);
  const calls = [gate(), gate(), gate()];
  const run = (async () => {
    for await (const { index } of tracker.steps(dataset)) tracker.track((calls[index - 1] as Gate).promise);
  })();
  await turn();
  calls[1]?.open();
  for (let i = 0; i < 4; i++) await turn();
  calls[0]?.fail(new Error("boom"));
  await expect(run).rejects.toThrow("boom");
  await turn();
  expect(journal).toEqual([]);
  expect(events).toEqual(["start 1", "start 2"]);
});

test("a journal that cannot be written surfaces, and nothing after it is committed", async () => {
  const { tracker, journal } = world(2, 6, (step) => step === 2);
  const run = (async () => {
    for await (const _ of tracker.steps(dataset)) await turn();
  })();
  await expect(run).rejects.toMatchObject({ code: "disk.full" });
  for (let i = 0; i < 5; i++) await turn();
  expect(journal.map((record) => record.step)).toEqual([1]);
});

test("stop lets the step under way finish, and begins no other", async () => {
  const { tracker, journal } = world(0, 9);
  for await (const { index } of tracker.steps(dataset)) if (index === 3) tracker.stop();
  expect(journal.map((record) => record.step)).toEqual([1, 2, 3]);
});

test("a workflow that leaves the loop early has the step it left committed when it ends well", async () => {
  const { tracker, journal, entered } = world(0, 9);
  const call = gate();
  for await (const { index } of tracker.steps(dataset)) {
    if (index < 2) continue;
    tracker.track(call.promise);
    break;
  }
  expect(tracker.current).toBeUndefined();
  expect(entered.at(-1)).toBeUndefined();
  expect(journal.map((record) => record.step)).toEqual([1]);
  const drained = tracker.drained();
  await turn();
  expect(journal).toHaveLength(1);
  call.open();
  await drained;
  expect(journal.map((record) => record.step)).toEqual([1, 2]);
});

test("a workflow that throws within a step does not get that step committed", async () => {
  const { tracker, journal } = world(0, 9);
  const run = (async () => {
    for await (const { index } of tracker.steps(dataset)) if (index === 2) throw new Error("mine");
  })();
  await expect(run).rejects.toThrow("mine");
  for (let i = 0; i < 5; i++) await turn();
  expect(journal.map((record) => record.step)).toEqual([1]);
});

test("a call that the workflow cancelled itself does not fail its step", async () => {
  const { tracker, journal } = world(0, 1);
  for await (const _ of tracker.steps(dataset)) {
    const call = gate();
    tracker.track(call.promise);
    call.fail(new TreadleError("call.cancelled", "by the workflow"));
  }
  expect(journal.map((record) => record.step)).toEqual([1]);
});

test("metrics belong to the step they are recorded for, and to none outside of steps", async () => {
  const { tracker, journal } = world(1, 2);
  expect(tracker.record({ x: 1 })).toBe(false);
  const first = gate();
  for await (const { index } of tracker.steps(dataset)) {
    if (index === 1) tracker.track(first.promise);
    else {
      expect(tracker.record({ late: 1 }, 1)).toBe(true);
      first.open();
    }
  }
  expect(journal.map((record) => record.metrics)).toEqual([{ late: 1 }, {}]);
});
