import { mkdtemp, readdir, readFile, rm, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gunzipSync, gzipSync } from "node:zlib";
import { TreadleError } from "@treadle/contracts";
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
async function record(steps: number, maxMiB = 10): Promise<string[]> {
  const warnings: string[] = [];
  const startMs = 1000;
  let nowMs = startMs;
  const header = { runId: "a-run", startMs, options };
  const recording = new RecordingWriter({ folder, maxMiB, header, warn: (line) => warnings.push(line) });
  const loop = new RunnerLoop(options, { startMs, recorder: recording, now: () => ++nowMs });
  const id = { worker: "reader/0", incarnation: 0 };
  loop.on("commit", ({ step }) => loop.feed({ type: "committed", step }));
  loop.feed({ type: "define-channel", name: "in", capacity: 100, pick: "fifo" });
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
    for (const bytes of [gzipSync("{}\n"), gzipSync("no\n"), Buffer.from("no gzip at all")]) {
      await writeFile(file, bytes);
      await expect(replayRun(folder, folder)).rejects.toEqual(invalid("does not begin with a header"));
    }
  });

  test("an input was altered, left out, or is none: the first that differs is named", async () => {
    await record(3);
    const at = 12;
    await rewrite((lines) => lines.with(at, (lines[at] as string).replace(/,\d+,/, ",7,")));
    await expect(replayRun(folder, folder)).rejects.toEqual(invalid(`first at input ${at} (`));
    await rewrite((lines) => lines.toSpliced(5, 1));
    await expect(replayRun(folder, folder)).rejects.toEqual(invalid("decided differently now"));
    await rewrite((lines) => lines.with(3, "[1,2]"));
    await expect(replayRun(folder, folder)).rejects.toEqual(invalid("input 3 of recording '0000' is no input"));
    await rewrite((lines) => lines.with(3, '[1,2,{"type":"put","items":"no"}]'));
    await expect(replayRun(folder, folder)).rejects.toEqual(invalid("is none that a run has"));
  });

  test("bytes were changed, or another version wrote it", async () => {
    await record(30);
    const file = await segment();
    const bytes = await readFile(file);
    const middle = Math.floor(bytes.length / 2);
    bytes[middle] = ~(bytes[middle] as number) & 0xff;
    await writeFile(file, bytes);
    await expect(replayRun(folder, folder)).rejects.toThrow(
      /damaged after input|decided differently|is no input|is none that/,
    );
    await writeFile(file, gzipSync('{"format":99,"runId":"a-run"}\n'));
    await expect(replayRun(folder, folder)).rejects.toEqual(invalid("is of format '99'"));
  });
});
