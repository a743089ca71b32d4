import { appendFileSync, mkdtempSync, renameSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { RunEvent } from "@treadle/contracts";
import fc from "fast-check";
import { afterEach, beforeEach, expect, it } from "vitest";
import { EventThinning, EventWriter, parseEventLine } from "../src/event-file.ts";
import { LineTail } from "../src/line-tail.ts";

let folder: string;
let path: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "treadle-tail-"));
  path = join(folder, "lines");
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const readAll = async (tail: LineTail, maxBytes?: number) => {
  const lines: string[] = [];
  for (let hasMore = true; hasMore; ) {
    const read = await tail.read(maxBytes);
    lines.push(...read.lines.map(({ text }) => text));
    hasMore = read.hasMore;
  }
  return lines;
};

it("gives each line once, whatever the writes and reads are cut into (LT1)", async () => {
  const texts = fc.array(
    fc.string({ unit: "grapheme", minLength: 1 }).map((text) => text.replace(/[\r\n]/g, "_")),
    {
      maxLength: 20,
    },
  );
  await fc.assert(
    fc.asyncProperty(
      texts,
      fc.integer({ min: 1, max: 7 }),
      fc.integer({ min: 1, max: 9 }),
      async (lines, write, read) => {
        writeFileSync(path, "");
        const tail = new LineTail(path);
        const bytes = Buffer.from(lines.map((line) => `${line}\n`).join(""));
        const got: string[] = [];
        for (let at = 0; at < bytes.length; at += write) {
          appendFileSync(path, bytes.subarray(at, at + write));
          got.push(...(await readAll(tail, read)));
        }
        expect(got).toEqual(lines);
      },
    ),
    { numRuns: 15 },
  );
});

it("begins again when the file is cut or replaced (LT2), and skips lines without end (LT3)", async () => {
  writeFileSync(path, "one\ntwo\nhal");
  const tail = new LineTail(path, { maxLineBytes: 10 });
  expect(await readAll(tail)).toEqual(["one", "two"]);
  truncateSync(path, 4);
  expect((await tail.read()).restarted).toBe(true);
  writeFileSync(`${path}.new`, "three\nfour\nfive\n");
  renameSync(`${path}.new`, path);
  const read = await tail.read();
  expect([read.restarted, read.lines.map(({ atByte }) => atByte)]).toEqual([true, [0, 6, 11]]);
  appendFileSync(path, `${"x".repeat(50)}`);
  expect(await readAll(tail)).toEqual([]);
  appendFileSync(path, "yyy\nsix\n");
  expect([await readAll(tail), tail.numSkipped]).toEqual([["six"], 1]);
  rmSync(path);
  expect((await tail.read()).restarted).toBe(true);
});

it("keeps a run's events, thinned, and says nothing where it cannot write (EF1, EF2)", async () => {
  const file = join(folder, "events.jsonl");
  const queue = (atMs: number, depth: number): RunEvent => ({ type: "queue", atMs, channel: "c", depth });
  {
    using writer = new EventWriter(file);
    for (let second = 0; second < 10; second++) writer.write(queue(second * 1000, second < 5 ? 1 : 2));
    writer.write({ type: "step-finished", atMs: 1, step: 1, seconds: 1, metrics: { loss: Number.NaN }, tokens: 0 });
  }
  appendFileSync(file, '{"type":"que');
  {
    using writer = new EventWriter(file);
    writer.write(queue(99, 7));
  }
  const lines = await readAll(new LineTail(file));
  const events = lines.map(parseEventLine).filter((event) => event !== undefined) as RunEvent[];
  expect(events.map((event) => (event.type === "queue" ? event.depth : event.type))).toEqual([
    1,
    2,
    "step-finished",
    7,
  ]);
  expect(events[2]).toMatchObject({ metrics: { loss: Number.NaN } });
  using full = new EventWriter("/dev/full/events");
  expect(() => full.write(queue(1, 1))).not.toThrow();
  const thinning = new EventThinning();
  const phase = (atMs: number, done: number): RunEvent => ({ type: "phase", atMs, name: "launching", done, total: 3 });
  expect([phase(0, 1), phase(10, 2), phase(20, 3)].map((event) => thinning.keeps(event))).toEqual([true, false, true]);
});
