import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterEach, beforeEach, expect, test } from "vitest";
import {
  Checkpoints,
  chooseCheckpoint,
  keptCheckpoints,
  unscoredWarning,
} from "../../../src/runner/run/checkpoints.ts";

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "checkpoints-"));
});
afterEach(() => rm(folder, { recursive: true }));
/** What a checkpoint copies is a folder. */
async function stateFolder(): Promise<string> {
  const path = join(folder, "actor.7");
  await mkdir(path);
  await writeFile(join(path, "file"), "state");
  return path;
}
const policy = { stateEverySteps: 1, everySteps: 2, keepLast: 2, keepBest: 1, bestBy: "accuracy" };

test("exactly the last few and the best stay, later ones first among equals", () => {
  const notes = fc.uniqueArray(
    fc.record({
      step: fc.nat(50),
      score: fc.option(fc.integer({ min: 0, max: 4 }), { nil: null }),
      components: fc.constant<string[]>([]),
    }),
    { selector: (note) => note.step },
  );
  fc.assert(
    fc.property(notes, fc.nat(4), fc.nat(3), (all, keepLast, keepBest) => {
      const kept = keptCheckpoints(all, { keepLast, keepBest });
      for (const note of all) {
        const later = all.filter((other) => other.step > note.step).length;
        const better = all.filter(
          (other) =>
            other.score !== null &&
            (note.score === null || other.score > note.score || (other.score === note.score && other.step > note.step)),
        ).length;
        const isBest = note.score !== null && better < keepBest;
        expect(kept.has(note.step)).toBe(later < keepLast || isBest);
      }
    }),
  );
});

test("the last is that of the latest step, the best has the highest score and then the latest step, and others go by their step", () => {
  const note = fc.record({
    step: fc.nat(50),
    score: fc.option(fc.integer({ min: 0, max: 4 }), { nil: null }),
    components: fc.constant<string[]>([]),
  });
  const notes = fc.uniqueArray(note, { selector: ({ step }) => step });
  fc.assert(
    fc.property(notes, fc.nat(50), (all, step) => {
      const named = all.find((each) => each.step === step);
      if (named) expect(chooseCheckpoint(all, step)).toBe(named);
      else expect(() => chooseCheckpoint(all, step)).toThrow(`no checkpoint of step '${step}'`);
      if (all.length === 0) expect(() => chooseCheckpoint(all, "last")).toThrow("no checkpoint yet");
      else expect(chooseCheckpoint(all, "last").step).toBe(Math.max(...all.map((each) => each.step)));
      const scored = all.flatMap((each) => (each.score === null ? [] : [{ step: each.step, score: each.score }]));
      if (scored.length === 0) return void expect(() => chooseCheckpoint(all, "best")).toThrow("has a score");
      const highest = Math.max(...scored.map(({ score }) => score));
      const steps = scored.filter(({ score }) => score === highest).map((each) => each.step);
      expect(chooseCheckpoint(all, "best").step).toBe(Math.max(...steps));
    }),
  );
});

test("writes, lists and prunes, and survives what a kill leaves behind", async () => {
  const checkpoints = new Checkpoints(folder, policy);
  const state = await stateFolder();
  await mkdir(join(folder, "step-000004.partial"));
  for (const [step, score] of [
    [2, 0.5],
    [4, 0.9],
    [6, 0.1],
    [8, undefined],
  ] as const) {
    expect(checkpoints.isDue(step)).toBe(true);
    await checkpoints.write(step, { actor: state }, score);
  }
  expect(checkpoints.isDue(9)).toBe(false);
  expect((await checkpoints.list()).map(({ step, score }) => [step, score])).toEqual([
    [4, 0.9],
    [6, 0.1],
    [8, null],
  ]);
  expect(await readFile(join(folder, "step-000004", "actor", "file"), "utf8")).toBe("state");
  expect((await readdir(folder)).filter((name) => name.endsWith(".partial"))).toEqual([]);
});

test("a checkpoint from which a component still goes on stays until the component has saved a newer state", async () => {
  const checkpoints = new Checkpoints(folder, { ...policy, keepLast: 1, keepBest: 0 });
  const own = await stateFolder();
  const { path } = await checkpoints.write(2, { actor: own, critic: own }, undefined);
  const critic = join(path, "critic");
  for (const step of [4, 6])
    expect((await checkpoints.write(step, { actor: own, critic }, undefined)).path).not.toBe(path);
  expect((await checkpoints.list()).map(({ step }) => step)).toEqual([2, 6]);
  await checkpoints.write(8, { actor: own, critic: own }, undefined);
  expect((await checkpoints.list()).map(({ step }) => step)).toEqual([8]);
});

test("a checkpoint that goes without ever having been compared is named, with what could be compared", async () => {
  const checkpoints = new Checkpoints(folder, policy);
  const state = await stateFolder();
  const metrics = { reward: 1, loss: 0 };
  const warningAt = async (step: number, score: number | undefined, own = policy) =>
    unscoredWarning((await checkpoints.write(step, { actor: state }, score)).removed, own, metrics);
  expect(await warningAt(2, undefined)).toBeUndefined(); // it is one of the last
  expect(await warningAt(4, undefined)).toBeUndefined();
  expect(await warningAt(6, 0.5)).toBe(
    "the checkpoint of step '2' is removed and was never compared with others: its step did not report 'accuracy' " +
      "(checkpoints.bestBy); the last step reported 'reward', 'loss'; set checkpoints.bestBy to what every step of " +
      "checkpoints.everySteps reports, or checkpoints.keepBest to 0",
  );
  expect(await warningAt(8, 0.4, { ...policy, keepBest: 0 })).toBeUndefined(); // nobody asked for a best one
  expect(await warningAt(10, 0.3)).toBeUndefined();
  expect(await warningAt(12, 0.2)).toBeUndefined(); // it was worse than the best
});

test("a checkpoint whose note is damaged is no checkpoint, and stops no other", async () => {
  const checkpoints = new Checkpoints(folder, policy);
  const state = await stateFolder();
  await checkpoints.write(2, { actor: state }, 1);
  await writeFile(join(folder, "step-000002", "checkpoint.json"), "{ torn");
  await checkpoints.write(4, { actor: state }, 1);
  expect((await checkpoints.list()).map(({ step }) => step)).toEqual([4]);
});

test.each(["../../../etc/passwd", "/etc/passwd", "a/b", ".."])(
  "a note that names a component '%s' is none: states are read below the checkpoint alone",
  async (component) => {
    const checkpoints = new Checkpoints(folder, policy);
    const path = join(folder, "step-000002");
    await mkdir(path);
    const note = (components: string[]) => JSON.stringify({ step: 2, score: null, components });
    await writeFile(join(path, "checkpoint.json"), note(["actor"]));
    expect(await checkpoints.list()).toHaveLength(1);
    await writeFile(join(path, "checkpoint.json"), note(["actor", component]));
    expect(await checkpoints.list()).toEqual([]);
  },
);
