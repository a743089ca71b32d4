import { cp, mkdir, mkdtemp, readdir, readFile, rename, rm, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { gunzipSync, gzipSync } from "node:zlib";
import { TreadleError } from "@treadle/contracts";
import type { PickFunction } from "@treadle/core";
import fc from "fast-check";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { RecordingWriter } from "../../../src/runner/loop/recording.ts";
import { RunnerLoop } from "../../../src/runner/loop/runner-loop.ts";
import { type ReplayedRecording, replayRun } from "../../../src/runner/run/replay-run.ts";

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-recording-"));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

const options = {
  supervision: {
    maxRestarts: 1,
    restartWindowMs: 1000,
    heartbeatTimeoutMs: 1e6,
    stallMs: 1e6,
    lockTimeoutMs: 1e6,
    startTimeoutMs: 1e6,
  },
  rejoinMs: 1,
  placeWaitMs: 1,
  maxStaleness: 0,
};
const invalid = (message: string) =>
  expect.objectContaining({ code: "recording.invalid", message: expect.stringContaining(message) });

/** A run of one rank that takes what the workflow puts, step by step. */
async function record(steps: number, maxMiB = 10, pick?: PickFunction): Promise<string[]> {
  const warnings: string[] = [];
  const startMs = 1000;
  let nowMs = startMs;
  const header = { runId: "a-run", startMs, options };
  const recording = new RecordingWriter({ folder, maxMiB, header, warn: (line) => warnings.push(line) });
  const loop = new RunnerLoop(options, { startMs, recorder: recording, now: () => ++nowMs });
  const id = { worker: "reader/0", incarnation: 0 };
  loop.on("commit", ({ step }) => loop.feed({ type: "committed", step }));
  const own = pick && { module: pathToFileURL(join(folder, "picks.mjs")).href, exportName: "mine", pick };
  loop.feed({ type: "define-channel", name: "in", capacity: 100, pick: own ?? "fifo" });
  expect(() => loop.feed({ type: "define-channel", name: "in", capacity: 1, pick: "fifo" })).toThrow("defined twice");
  const places = [{ id: "cpu:0", kind: "cpu", node: "here", index: 0, memoryBytes: 100 }];
  loop.feed({ type: "nodes", present: ["here"], places });
  loop.feed({ type: "add-component", component: "reader", restart: "rank", resizes: false, replays: [] });
  loop.feed({ type: "lay-out", components: { reader: { ranks: [{ node: "here", devices: ["cpu:0"] }] } } });
  loop.feed({ type: "launched", ...id });
  loop.feed({ type: "connected", ...id });
  loop.feed({ type: "ready", ...id, memoryBytes: 1 });
  for (let step = 1; step <= steps; step++) {
    const stream = `step-${step}`;
    loop.feed({ type: "begin-step", step });
    loop.feed({ type: "begin-work", step });
    const ends = [{ channel: "in", role: "source", stream } as const];
    loop.feed({ type: "call", sequence: step, component: "reader", method: "read", ranks: [0], ends, step });
    const own = `runner:${step}`;
    loop.feed({ type: "open", call: own, end: { channel: "in", role: "sink", stream } });
    const items = Array.from({ length: 5 }, (_, i) => ({
      payload: "secret",
      sizeBytes: 6,
      key: `${i % 2}`,
      weight: i,
    }));
    await loop.ask({ type: "put", call: own, channel: "in", items });
    loop.feed({ type: "close", call: own, outcome: { ok: true } });
    for (;;) {
      const from = { from: id, call: `${step}/0` };
      const answer = await loop.ask({ type: "take", ...from, channel: "in", acknowledge: true, maxItems: 2 });
      if (answer.type !== "batch") break;
    }
    loop.feed({ type: "returned", ...id, call: `${step}/0` });
    loop.feed({ type: "end-work", step });
    loop.feed({ type: "end-body", step });
    await new Promise(setImmediate); // the disk has its turn
  }
  loop.feed({ type: "fail", error: new TypeError("of a workflow") });
  loop.feed({ type: "end", error: new TreadleError("run.stopped", "the run has ended") });
  await recording.close();
  return warnings;
}

const seed = Number(process.env["TREADLE_SEED"]);

const segment = async (name = "0000"): Promise<string> => {
  const [first] = await readdir(join(folder, "recordings", name));
  return join(folder, "recordings", name, first as string);
};
async function rewrite(change: (lines: string[]) => string[]): Promise<void> {
  const file = await segment();
  const lines = gunzipSync(await readFile(file))
    .toString()
    .split("\n");
  await writeFile(file, gzipSync(change(lines).join("\n")));
}

test("what was recorded is decided the same again, what items hold is not in it, and a second runner has its own", async () => {
  expect(await record(3)).toEqual([]);
  await record(2);
  const { recordings } = await replayRun(folder, folder);
  expect(recordings).toMatchObject([
    { name: "0000", step: 3, end: "closed" },
    { name: "0001", step: 2, end: "closed" },
  ]);
  expect(gunzipSync(await readFile(await segment())).toString()).not.toContain("secret");
});

test("the state after a step, or at a time, is shown; what is not recorded is named", async () => {
  await record(3);
  const { state } = await replayRun(folder, folder, { step: 2 });
  expect(state).toMatchObject({ recording: "0000", ranks: [{ worker: "reader/0", phase: "ready" }], waits: [] });
  const early = await replayRun(folder, folder, { seconds: 0.003 });
  expect(early.state).toMatchObject({ ranks: [], channels: [{ channel: "in", streams: [] }] });
  await expect(replayRun(folder, folder, { step: 4 })).rejects.toEqual(invalid("'step 4' is not in the recording"));
});

test("the last state is that at the end, and at the time that is told of it, however it was rounded", async () => {
  await record(3);
  const atEnd = await replayRun(folder, folder, "end");
  const [{ seconds, inputs }] = atEnd.recordings as [ReplayedRecording];
  expect(atEnd.state).toMatchObject({
    recording: "0000",
    input: inputs,
    failure: "call.failed: TypeError: of a workflow",
  });
  expect(Number(seconds.toFixed(1))).toBeGreaterThan(seconds);
  for (const until of [seconds, Number(seconds.toFixed(1))])
    expect((await replayRun(folder, folder, { seconds: until })).state).toEqual({ ...atEnd.state, seconds });
  await expect(replayRun(folder, folder, { seconds: seconds + 0.2 })).rejects.toEqual(invalid("'--until end' shows"));
  await record(2);
  expect((await replayRun(folder, folder, "end")).state).toMatchObject({ recording: "0001" });
});

test("what is under way is shown: nodes, calls and what they wait for, and steps", async () => {
  await record(1);
  const shown = { nodes: ["here"], calls: [], steps: [] };
  expect((await replayRun(folder, folder, "end")).state).toMatchObject({ shown });
  const states = Array.from({ length: 40 }, (_, ms) => replayRun(folder, folder, { seconds: ms / 1000 }));
  const all = (await Promise.allSettled(states)).flatMap((each) =>
    each.status === "fulfilled" && each.value.state ? [each.value.state.shown] : [],
  );
  const call = { call: "1/0", worker: "reader/0", method: "read", step: 1, replied: false, attempts: 1 };
  expect(all).toContainEqual(expect.objectContaining({ calls: [expect.objectContaining(call)] }));
  expect(all).toContainEqual(expect.objectContaining({ steps: [{ step: 1, state: "open", pending: 1, blocks: 2 }] }));
});

test("a recording ends at its limit, and the run goes on", async () => {
  expect(await record(2000, 1e-4)).toMatchObject([expect.stringContaining("observe.recordMaxMiB")]);
  const [{ end, step = 0 }] = (await replayRun(folder, folder)).recordings as [ReplayedRecording];
  expect(end).toBe("limit");
  expect(step).toBeLessThan(2000);
});

describe("what is no recording of this version", () => {
  test("nothing was recorded", async () => {
    await expect(replayRun(folder, folder)).rejects.toEqual(invalid("set observe.record=true"));
  });

  test("it is cut short: what is whole is replayed, and it is said", async () => {
    await record(50);
    const whole = (await replayRun(folder, folder)).recordings[0]?.inputs as number;
    const file = await segment();
    const bytes = await readFile(file);
    for (const share of [0.95, 0.6, 0.5]) {
      await writeFile(file, bytes);
      await truncate(file, Math.floor(bytes.length * share));
      const [recording] = (await replayRun(folder, folder)).recordings;
      expect(recording?.end).toBe("cut-short");
      expect(recording?.inputs).toBeLessThan(whole);
    }
  });

  test("its runner was killed before a line of it was on the disk: it has no input, and the next runner's is replayed", async () => {
    await record(1);
    const file = await segment();
    const bytes = await readFile(file);
    await expect(replayRun(folder, folder)).resolves.toMatchObject({ recordings: [{ name: "0000" }] });
    await record(2);
    const nothing = { name: "0000", inputs: 0, end: "cut-short" };
    for (const length of [15, 5, 0]) {
      await writeFile(file, bytes.subarray(0, length));
      expect((await replayRun(folder, folder)).recordings).toMatchObject([nothing, { name: "0001", step: 2 }]);
    }
    await rm(file);
    expect((await replayRun(folder, folder)).recordings).toMatchObject([nothing, { name: "0001", step: 2 }]);
    await rm(join(folder, "recordings", "0001"), { recursive: true });
    await expect(replayRun(folder, folder)).rejects.toEqual(invalid("nothing is recorded"));
  });

  test("its beginning is none of a recording", async () => {
    await record(1);
    const file = await segment();
    for (const bytes of [gzipSync("{}\n"), gzipSync("no\n")]) {
      await writeFile(file, bytes);
      await expect(replayRun(folder, folder)).rejects.toEqual(invalid("does not begin with a header"));
    }
  });

  test("an input was altered, left out, or is none: the first that differs is named", async () => {
    await record(3);
    const at = 12;
    await rewrite((lines) => lines.with(at, (lines[at] as string).replace(/(?<=,\[[^,]*),\d+,/, ",7,")));
    await expect(replayRun(folder, folder)).rejects.toEqual(invalid(`first at input ${at} (`));
    await rewrite((lines) => lines.toSpliced(5, 1));
    await expect(replayRun(folder, folder)).rejects.toEqual(invalid("differs first at input 5 ("));
    await rewrite((lines) => lines.with(3, "[1,2]"));
    await expect(replayRun(folder, folder)).rejects.toEqual(invalid("it differs first at input 3, which is none"));
  });

  const last = -2; // the last line is empty
  const bogus = '{"type":"onloaded","worker":"reader/0","incarnation":0,"memoryBytes":1}';
  test.each<[string, (lines: string[]) => string[], string]>([
    ["inputs before the end", (lines) => lines.toSpliced(last - 6, 6), "it ends after input"],
    ["every call", (lines) => lines.filter((line) => !line.includes('"type":"call"')), "differs first at input"],
    ["'launched'", (lines) => lines.filter((line) => !line.includes('"launched"')), "differs first at input 6 ("],
    ["an input that is not of the run", (lines) => lines.toSpliced(9, 0, `[7,[1009,7,${bogus}]]`), "at input 9 ("],
    [
      "the clock",
      (lines) =>
        lines.with(
          9,
          (lines[9] as string).replace(/\[\d+,/g, (n) => `[${parseInt(n.slice(1), 10) - 5},`),
        ),
      "at input 9 (",
    ],
    [
      "the run's id",
      (lines) => lines.with(0, (lines[0] as string).replace("a-run", "b-run")),
      "at its header or input 1 (",
    ],
    [
      "a limit in the header",
      (lines) => lines.with(0, (lines[0] as string).replace('"maxRestarts":1', '"maxRestarts":2')),
      "at its header or input 1 (",
    ],
    ["what follows the end", (lines) => [...lines.slice(0, -1), lines.at(-3) as string, ""], "more follows its end"],
    ["a part of a line after the end", (lines) => [...lines.slice(0, -1), "[1"], "more follows its end"],
    ["how it ended", (lines) => lines.with(last, (lines.at(last) as string).replace("closed", "limit")), "another end"],
  ])("RW1: altered: %s", async (_, change, says) => {
    await record(3);
    await rewrite(change);
    await expect(replayRun(folder, folder)).rejects.toEqual(invalid("is not what its run wrote"));
    await expect(replayRun(folder, folder)).rejects.toEqual(invalid(says));
  });

  test("RW1: whatever line is left out, put in, moved, repeated or changed, it is found at the first that differs", async () => {
    await record(4);
    const file = await segment();
    const written = gunzipSync(await readFile(file))
      .toString()
      .trimEnd()
      .split("\n");
    const numInputs = written.length - 2;
    const line = fc.nat({ max: written.length - 1 });
    const kind = fc.constantFrom("removed", "swapped", "repeated", "copied", "changed", "cut-line");
    const change = fc.record({ kind, at: line, other: line, char: fc.nat(), to: fc.integer({ min: 32, max: 126 }) });
    type Change = typeof change extends fc.Arbitrary<infer Each> ? Each : never;
    const apply = (lines: readonly string[], each: Change): string[] => {
      const { at } = each;
      const mine = lines[at] as string;
      if (each.kind === "removed") return lines.toSpliced(at, 1);
      if (each.kind === "repeated") return lines.toSpliced(at, 0, mine);
      if (each.kind === "copied") return lines.toSpliced(at, 0, lines[each.other] as string);
      if (each.kind === "swapped") return lines.with(at, lines[each.other] as string).with(each.other, mine);
      const index = each.char % mine.length;
      if (each.kind === "cut-line") return lines.with(at, mine.slice(0, index));
      return lines.with(at, mine.slice(0, index) + String.fromCharCode(each.to) + mine.slice(index + 1));
    };
    await fc.assert(
      fc.asyncProperty(change, async (each) => {
        const lines = apply(written, each);
        const first = lines.findIndex((text, at) => text !== written[at]);
        await writeFile(file, gzipSync(`${lines.join("\n")}\n`));
        const outcome = await replayRun(folder, folder).then(
          ({ recordings: [recording] }) => recording as ReplayedRecording,
          (error: TreadleError) => error,
        );
        if (first < 0 && lines.length === written.length) expect(outcome).toMatchObject({ end: "closed" });
        else if (first < 0) expect(outcome).toMatchObject({ inputs: numInputs, end: "cut-short" });
        else {
          expect(outcome).toMatchObject({ code: "recording.invalid" });
          const [, input] = /(?:input|after input) (\d+)/.exec((outcome as TreadleError).message) ?? [];
          if (first > 0 && first <= numInputs) expect([first, first - 1]).toContain(Number(input));
        }
      }),
      { seed, numRuns: 150 },
    );
  });

  test("RW1: whatever bit is flipped, no input that differs is decided, and what is read is not taken for whole", async () => {
    await record(20);
    const file = await segment();
    const bytes = await readFile(file);
    const [whole] = (await replayRun(folder, folder)).recordings as [ReplayedRecording];
    const gzipHeaderBytes = 10; // of which most say nothing about what follows
    await fc.assert(
      fc.asyncProperty(fc.integer({ min: gzipHeaderBytes * 8, max: bytes.length * 8 - 1 }), async (bit) => {
        const flipped = Buffer.from(bytes);
        flipped[bit >> 3] = (flipped[bit >> 3] as number) ^ (1 << (bit & 7));
        await writeFile(file, flipped);
        const outcome = await replayRun(folder, folder).then(
          ({ recordings: [recording] }) => recording as ReplayedRecording,
          (error: TreadleError) => error,
        );
        if (outcome instanceof TreadleError)
          expect(outcome.message).toMatch(/is not what its run wrote|is damaged|does not begin with a header/);
        else expect(outcome.end === "cut-short" || outcome.inputs === whole.inputs).toBe(true);
      }),
      { seed, numRuns: 150 },
    );
  });

  test("a pick policy that draws at random is what differs, and the recording is said to be sound", async () => {
    await writeFile(
      join(folder, "picks.mjs"),
      "let n = 0; export const mine = (items) => (n++ % 2 ? [0] : [items.length - 1]);\n",
    );
    let n = 1;
    await record(2, 10, (items) => (n++ % 2 ? [0] : [items.length - 1]));
    const replayed = replayRun(folder, folder);
    await expect(replayed).rejects.toEqual(
      invalid("is as its run wrote it, and is decided differently now, first at input"),
    );
    await expect(replayed).rejects.toEqual(invalid("the pick policy 'mine' of"));
  });

  test("what others leave in its folders is no part of it; a segment that is missing or cut before others is", async () => {
    await record(1);
    const root = join(folder, "recordings");
    await writeFile(join(root, "notes.txt"), "mine");
    await mkdir(join(root, "mine"));
    await writeFile(join(root, "0000", ".DS_Store"), "mine");
    const file = join(root, "0000", "00000.jsonl.gz");
    expect((await replayRun(folder, folder)).recordings).toMatchObject([{ name: "0000", end: "closed" }]);
    await record(1);
    await rm(join(root, "0000"), { recursive: true });
    await record(1);
    expect((await replayRun(folder, folder)).recordings).toMatchObject([{ name: "0001" }, { name: "0002" }]);
    await rename(join(root, "0001"), join(root, "0000"));
    await rename(file, join(root, "0000", "00001.jsonl.gz"));
    await expect(replayRun(folder, folder)).rejects.toEqual(invalid("segment 0 of recording"));
    const bytes = await readFile(join(root, "0000", "00001.jsonl.gz"));
    await writeFile(file, bytes.subarray(0, bytes.length - 20));
    await expect(replayRun(folder, folder)).rejects.toEqual(invalid("is cut, and another segment follows"));
  });

  test("a recording is another run's, or one of its own once more", async () => {
    await record(1);
    await record(1);
    const root = join(folder, "recordings");
    await rm(join(root, "0001"), { recursive: true });
    await cp(join(root, "0000"), join(root, "0001"), { recursive: true });
    await expect(replayRun(folder, folder)).rejects.toEqual(invalid("is '0000' once more"));
    const file = join(root, "0001", "00000.jsonl.gz");
    const [header = "", ...lines] = gunzipSync(await readFile(file))
      .toString()
      .split("\n");
    await writeFile(file, gzipSync([header.replace(/"runId":"[^"]*"/, '"runId":"another"'), ...lines].join("\n")));
    await expect(replayRun(folder, folder)).rejects.toEqual(invalid("is of run 'another'"));
  });

  test("a line never ends", async () => {
    await record(1);
    const [header = ""] = gunzipSync(await readFile(await segment()))
      .toString()
      .split("\n");
    await writeFile(await segment(), gzipSync(`${header}\n${"x".repeat(2 ** 27 + 1)}`));
    await expect(replayRun(folder, folder)).rejects.toEqual(invalid("a line has more than 134217728 characters"));
  });

  test("bytes were changed, or another version wrote it", async () => {
    await record(30);
    const file = await segment();
    const bytes = await readFile(file);
    await writeFile(file, bytes.with(1, 0));
    await expect(replayRun(folder, folder)).rejects.toEqual(invalid("is damaged before its first input"));
    const stored = gzipSync(gunzipSync(bytes), { level: 0 });
    const digit = stored.indexOf('"format":') + '"format":'.length;
    await writeFile(file, stored.with(digit, "9".charCodeAt(0)));
    await expect(replayRun(folder, folder)).rejects.toEqual(invalid("is damaged"));
    await writeFile(file, gzipSync('{"format":99,"runId":"a-run"}\n'));
    await expect(replayRun(folder, folder)).rejects.toEqual(invalid("is of format '99'"));
  });
});
