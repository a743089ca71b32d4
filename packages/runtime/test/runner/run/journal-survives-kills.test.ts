import { appendFile, mkdtemp, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { TreadleError } from "@treadle/contracts";
import fc from "fast-check";
import { afterEach, beforeEach, expect, test } from "vitest";
import { Journal, type JournalRecord, readRecords, stateFilesOf } from "../../../src/runner/run/journal.ts";

let folder: string;
let path: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "journal-"));
  path = join(folder, "journal.jsonl");
});
afterEach(() => rm(folder, { recursive: true }));

const stateOf = (index: number) => ({ actor: { folder: `state/actor.${index}`, files: ["manifest.json"] } });
const step = (index: number, more: Partial<Extract<JournalRecord, { type: "step" }>> = {}): JournalRecord => ({
  type: "step",
  step: index,
  seconds: 0.5,
  metrics: { reward: index / 3 },
  items: [`prompt-${index}`, "zweiundvierzig – ü€😀"],
  state: stateOf(index),
  ...more,
});
const started: JournalRecord = { type: "started", runId: "r", workflow: "w", at: "now" };

async function write(...records: readonly JournalRecord[]): Promise<Buffer> {
  const journal = await Journal.open(path);
  for (const record of records) await journal.append(record);
  await journal.close();
  return readFile(path);
}

test("a new journal is empty, and what was appended is there again", async () => {
  const reported = { metrics: { accuracy: 0.13, loss: Number.NaN } };
  const once: JournalRecord = {
    ...{ type: "once", name: "warm-up", value: { a: [1, null] }, state: stateOf(0) },
    ...reported,
  };
  await write(started, once, step(1), step(2));
  const journal = await Journal.open(path);
  expect(journal.records).toEqual([started, once, step(1), step(2)]);
  expect(journal.lastStep).toEqual(step(2));
  expect(journal.once("warm-up")).toEqual(once);
  expect(journal.once("other")).toBeUndefined();
  expect(journal.state).toEqual(stateOf(2));
  await journal.close();
});

test("appends that overlap are written in the order of the calls", async () => {
  const journal = await Journal.open(path);
  await Promise.all(Array.from({ length: 50 }, (_, i) => journal.append(step(i + 1))));
  await journal.close();
  const { records } = readRecords(await readFile(path, "utf8"), path);
  expect(records.map((record) => (record as { step: number }).step)).toEqual(
    Array.from({ length: 50 }, (_, i) => i + 1),
  );
});

test("J1: cut at any byte, a journal keeps every whole record, drops the torn one, and goes on", async () => {
  const whole = await write(started, step(1), step(2), step(3));
  const ends = [...whole.entries()].filter(([, byte]) => byte === 10).map(([at]) => at + 1);
  for (let length = 0; length <= whole.length; length++) {
    await writeFile(path, whole.subarray(0, length));
    const journal = await Journal.open(path);
    const kept = ends.filter((end) => end <= length).length;
    expect(journal.records).toEqual([started, step(1), step(2), step(3)].slice(0, kept));
    if (length % 37 === 0) {
      await journal.append(step(9));
      const { records } = readRecords(await readFile(path, "utf8"), path);
      expect(records).toEqual([...journal.records]);
      expect(records.at(-1)).toEqual(step(9));
    }
    await journal.close();
  }
});

test("any damaged byte before the end of the last line is journal.corrupt and names the line; nothing wrong is ever read", async () => {
  const records = [started, step(1), step(2), step(3)];
  const whole = await write(...records);
  fc.assert(
    fc.property(fc.nat(whole.length - 1), fc.integer({ min: 1, max: 255 }), (at, change) => {
      const damaged = Buffer.from(whole);
      damaged[at] = (damaged[at] as number) ^ change;
      const line = whole.subarray(0, at).filter((byte) => byte === 10).length;
      let read: readonly JournalRecord[];
      try {
        read = readRecords(damaged.toString("utf8"), path).records;
      } catch (error) {
        expect(error).toBeInstanceOf(TreadleError);
        expect((error as TreadleError).code).toBe("journal.corrupt");
        expect((error as TreadleError).details["line"]).toBe(line + 1);
        return;
      }
      expect(at).toBe(whole.length - 1); // without its end, the last line looks torn
      expect(read).toEqual(records.slice(0, -1));
    }),
    { numRuns: 300 },
  );
});

test("garbage after the last record is a torn line, garbage between records is not", async () => {
  await write(started, step(1));
  await appendFile(path, "abc");
  const journal = await Journal.open(path);
  expect(journal.records).toHaveLength(2);
  await journal.append(step(2));
  await journal.close();
  const text = await readFile(path, "utf8");
  await writeFile(path, text.replace("\n", "\nabc\n"));
  await expect(Journal.open(path)).rejects.toMatchObject({ code: "journal.corrupt", details: { line: 2 } });
});

test("a diverged metric is kept as what it is", async () => {
  const metrics = { loss: Number.NaN, up: Number.POSITIVE_INFINITY, down: Number.NEGATIVE_INFINITY, fine: 1 };
  await write(started, step(1, { metrics }), step(2));
  const journal = await Journal.open(path);
  expect(journal.records[1]).toEqual(step(1, { metrics }));
  expect(journal.records).toHaveLength(3);
  await journal.close();
});

test("the state is that of the newest record that has any", async () => {
  await write(started, step(1), step(2, { state: {} }), { type: "resumed", at: "later", fromStep: 2 });
  const journal = await Journal.open(path);
  expect(journal.state).toEqual(stateOf(1));
  await journal.close();
});

test("J1: a journal that another runner has opened refuses the first one, and has all that the first was told is done", async () => {
  for (let round = 0; round < 30; round++) {
    const first = await Journal.open(path);
    const done: number[] = [];
    const appending = (async () => {
      for (let index = 1; ; index++) {
        await first.append(step(round * 1000 + index));
        done.push(round * 1000 + index);
      }
    })();
    const refused = expect(appending).rejects.toMatchObject({ code: "run.locked" });
    while (done.length < round % 4) await new Promise((resolve) => setImmediate(resolve));
    const second = await Journal.open(path);
    await refused;
    const seen = second.records.map((record) => (record as { step: number }).step);
    expect(seen).toEqual(expect.arrayContaining(done));
    await second.append(step(round * 1000 + 999));
    await expect(first.append(step(1))).rejects.toMatchObject({ code: "run.locked" });
    await Promise.all([first.close(), second.close()]);
    const { records } = readRecords(await readFile(path, "utf8"), path);
    expect(records.map((record) => (record as { step: number }).step)).toEqual([...seen, round * 1000 + 999]);
  }
});

test("J1: a runner killed while it takes the journal over leaves it to the next, with or without its copy", async () => {
  const whole = await write(started, step(1), step(2));
  for (const copied of [false, true]) {
    await rename(path, `${path}.taken`);
    if (copied) await writeFile(path, whole);
    const journal = await Journal.open(path);
    expect(journal.records).toEqual([started, step(1), step(2)]);
    await journal.close();
    expect(await readdir(folder)).toEqual(["journal.jsonl"]);
  }
});

test("J1: steps that are committed together are all there or, torn, none; the state is that after the last", async () => {
  const steps = [1, 2, 3].map((index) => {
    const { type: _, state: __, ...rest } = step(index) as Extract<JournalRecord, { type: "step" }>;
    return rest;
  });
  const journal = await Journal.open(path);
  await journal.append(started);
  const before = (await readFile(path)).length;
  await journal.appendSteps(steps, stateOf(3));
  await journal.close();
  const whole = await readFile(path);
  const again = await Journal.open(path);
  expect(again.records).toEqual([started, step(1, { state: {} }), step(2, { state: {} }), step(3)]);
  expect(again.state).toEqual(stateOf(3));
  await again.close();
  for (let length = before; length < whole.length; length += 11) {
    await writeFile(path, whole.subarray(0, length));
    const torn = await Journal.open(path);
    expect(torn.records).toEqual([started]);
    await torn.close();
  }
});

test("KR1: an entry refers to the files of its states, and of what waits after it", () => {
  const state = { actor: { folder: "state/actor.3", files: ["manifest.json"] } };
  const waiting = { folder: "carried/step-000003", files: ["manifest.json", "rank-0/items"] };
  const step = { step: 3, seconds: 1, metrics: {}, items: [] };
  const files = [
    "state/actor.3/manifest.json",
    "carried/step-000003/manifest.json",
    "carried/step-000003/rank-0/items",
  ];
  for (const record of [
    { type: "step", ...step, state, waiting },
    {
      type: "steps",
      steps: [
        { ...step, step: 2 },
        { ...step, waiting },
      ],
      state,
    },
    { type: "once", name: "judge", value: 1, state, waiting },
  ])
    expect(stateFilesOf(JSON.stringify(record))).toEqual(files);
});
