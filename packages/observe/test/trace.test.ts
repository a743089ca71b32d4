import { appendFileSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { SpanBatch } from "@treadle/contracts";
import fc from "fast-check";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { readTrace, TraceWriter, toChromeTrace } from "../src/index.ts";
import { Lanes } from "../src/lanes.ts";
import { syntheticTrace } from "../src/testing/index.ts";

let folder: string;
let path: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "treadle-trace-"));
  path = join(folder, "trace.jsonl");
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

function write(batches: readonly SpanBatch[]): void {
  using writer = new TraceWriter(path);
  for (const batch of batches) writer.append(batch);
}

type Event = {
  ph: string;
  pid: number;
  tid?: number;
  ts?: number;
  dur?: number;
  name: string;
  cat?: string;
  id?: number;
  args: Record<string, unknown>;
};

async function chromeEvents(batches: readonly SpanBatch[]): Promise<Event[]> {
  write(batches);
  const output = join(folder, "out.json");
  const { numEvents } = await toChromeTrace([path], output);
  const { traceEvents } = JSON.parse(readFileSync(output, "utf8")) as { traceEvents: Event[] };
  expect(traceEvents).toHaveLength(numEvents);
  return traceEvents;
}

describe("a trace file", () => {
  it("reads back what was appended, and skips a line that a killed writer left", async () => {
    const [first, second] = syntheticTrace({ steps: 1 });
    write([first!]);
    appendFileSync(path, '{"worker":"rollout/0","pid":1,"rec');
    appendFileSync(path, "\n");
    write([second!]);
    const workers: string[] = [];
    for await (const { worker } of readTrace([path])) workers.push(worker);
    expect(workers).toEqual([first!.worker, second!.worker]);
  });

  it("stops at its limit and counts what it left out", () => {
    const batches = syntheticTrace({ steps: 2 });
    using writer = new TraceWriter(path, { maxBytes: 6000 });
    for (const batch of [...batches, ...batches]) writer.append(batch);
    expect(statSync(path).size).toBeLessThanOrEqual(6000);
    expect(writer.droppedRecords).toBeGreaterThan(0);
  });

  it("refuses a file that is no trace", async () => {
    writeFileSync(path, '{"step":1}\n');
    await expect(toChromeTrace([path], join(folder, "out.json"))).rejects.toThrow(/line 1 of '.*trace.jsonl' is not/);
  });
});

describe("a trace for Perfetto", () => {
  it("names a process for every component and the devices, and a thread for every rank", async () => {
    const events = await chromeEvents(syntheticTrace({ steps: 1 }));
    const named = (kind: string) => events.filter(({ name }) => name === kind).map(({ args }) => args.name);
    expect(named("process_name")).toEqual(["devices", "rollout", "reward", "actor", "runner"]);
    expect(named("thread_name")).toEqual(
      expect.arrayContaining(["rollout/0", "rollout/1", "actor/1", "gpu:0", "cpu:0"]),
    );
  });

  it("keeps times in microseconds from the start, and every thread free of partial overlaps", async () => {
    const events = (await chromeEvents(syntheticTrace())).filter(({ ph }) => ph === "X");
    expect(Math.min(...events.map(({ ts }) => ts!))).toBe(0);
    expect(events.find(({ name }) => name === "forward-backward")?.dur).toBe(520_000);
    for (const a of events) {
      for (const b of events) {
        if (a === b || a.pid !== b.pid || a.tid !== b.tid || a.ts! > b.ts!) continue;
        const isApart = a.ts! + a.dur! <= b.ts! + 1;
        const isNested = a.ts! + a.dur! >= b.ts! + b.dur! - 1;
        expect(isApart || isNested || a.ts === b.ts).toBe(true);
      }
    }
  });

  it("marks on a device when another worker's state is loaded", async () => {
    const events = await chromeEvents(syntheticTrace({ steps: 1 }));
    const switches = events.filter(({ cat, pid }) => cat === "switch" && pid === 1).map(({ name }) => name);
    expect(switches.sort()).toEqual([
      "switch to actor/0",
      "switch to actor/1",
      "switch to rollout/0",
      "switch to rollout/1",
    ]);
  });

  it("draws an arrow from what sends to what receives, forwards in time", async () => {
    const events = await chromeEvents(syntheticTrace({ steps: 1 }));
    const arrivals = events.filter(({ ph }) => ph === "f");
    expect(arrivals).toHaveLength(4);
    for (const arrival of arrivals) {
      const departure = events.find(({ ph, id }) => ph === "s" && id === arrival.id);
      expect(departure!.ts!).toBeLessThan(arrival.ts!);
    }
  });
});

it("puts spans on lanes where they nest or are apart", () => {
  const stretch = fc.tuple(fc.nat(50), fc.integer({ min: 1, max: 30 }));
  fc.assert(
    fc.property(fc.array(stretch, { maxLength: 25 }), (stretches) => {
      const lanes = new Lanes();
      const placed = stretches
        .map(([start, length]) => ({ start, end: start + length }))
        .sort((a, b) => a.end - b.end)
        .map((span) => ({ ...span, lane: lanes.assign(span.start, span.end - span.start) }));
      for (const a of placed) {
        for (const b of placed) {
          if (a.lane === b.lane) expect(a.start < b.start && b.start < a.end && a.end < b.end).toBe(false);
        }
      }
    }),
    { numRuns: 300 },
  );
});
