import { SpanBatch } from "@treadle/contracts";
import { describe, expect, it } from "vitest";
import { createTracer } from "../src/index.ts";
import { traceNow } from "../src/tracer.ts";

function clocked(options: { capacity?: number; enabled?: boolean } = {}) {
  const clock = { ms: 1000 };
  const tracer = createTracer({ worker: "rollout/0", devices: ["gpu:0"], pid: 7, now: () => clock.ms, ...options });
  return { clock, tracer };
}

describe("a tracer that is on", () => {
  it("records a span from its start to its end, with what was known at its start", () => {
    const { clock, tracer } = clocked();
    tracer.setStep(3);
    const span = tracer.span("generate", "compute", { attributes: { tokens: 1 } });
    tracer.setStep(4);
    tracer.setDevices(["gpu:1"]);
    clock.ms += 25;
    span.end({ chunks: 2 });
    expect(tracer.drain().records).toEqual([
      {
        kind: "span",
        name: "generate",
        category: "compute",
        startMs: 1000,
        durationMs: 25,
        step: 3,
        devices: ["gpu:0"],
        attributes: { tokens: 1, chunks: 2 },
      },
    ]);
  });

  it("ends a span with its scope, also when the scope throws", () => {
    const { clock, tracer } = clocked();
    expect(() => {
      using _ = tracer.span("train", "call");
      clock.ms += 5;
      throw new Error("diverged");
    }).toThrow("diverged");
    expect(tracer.drain().records).toMatchObject([{ name: "train", durationMs: 5 }]);
  });

  it("counts the first end of a span only (TC3)", () => {
    const { clock, tracer } = clocked();
    const span = tracer.span("x", "call");
    span.end();
    clock.ms += 10;
    span.end();
    span.set({ late: true });
    expect(tracer.drain().records).toMatchObject([{ durationMs: 0 }]);
  });

  it("lets the oldest records go when nobody drains, and says how many (TC2)", () => {
    const { tracer } = clocked({ capacity: 3 });
    for (const name of ["a", "b", "c", "d", "e"]) tracer.instant(name, "failure");
    const batch = tracer.drain();
    expect(batch.records.map((record) => record.name)).toEqual(["c", "d", "e"]);
    expect(batch.dropped).toBe(2);
    expect(tracer.drain()).toMatchObject({ dropped: 0, records: [] });
  });

  it("never gives a span a negative length when it is told times in the wrong order", () => {
    const { tracer } = clocked();
    tracer.complete("x", "transfer", 10, 5);
    expect(tracer.drain().records).toMatchObject([{ startMs: 10, durationMs: 0 }]);
  });

  it("tells what is under way, the longest first", () => {
    const { clock, tracer } = clocked();
    const call = tracer.span("train", "call");
    clock.ms += 1;
    tracer.span("episodes", "channel-wait");
    expect(tracer.open().map(({ name }) => name)).toEqual(["train", "episodes"]);
    call.end();
    expect(tracer.open().map(({ name }) => name)).toEqual(["episodes"]);
  });

  it("drains what another process can check and read", () => {
    const { tracer } = clocked();
    tracer.span("a", "compute", { attributes: { loss: Number.NaN, note: null } }).end();
    tracer.counter("depth", 4);
    tracer.counter("memory", { used: 1, free: 2 });
    tracer.instant("died", "failure");
    const crossed = SpanBatch.parse(JSON.parse(JSON.stringify(tracer.drain())));
    expect(crossed.worker).toBe("rollout/0");
    expect(crossed.records.map(({ kind }) => kind)).toEqual(["span", "counter", "counter", "instant"]);
    expect(crossed.records[1]).toMatchObject({ values: { depth: 4 } });
  });
});

describe("a tracer that is off", () => {
  it("records nothing, and hands out one and the same span (TC1)", () => {
    const { tracer } = clocked({ enabled: false });
    const span = tracer.span("a", "compute");
    expect(tracer.span("b", "call")).toBe(span);
    span.end();
    tracer.instant("c", "failure");
    tracer.counter("d", 1);
    expect(tracer.drain()).toEqual({ worker: "rollout/0", pid: 7, dropped: 0, records: [] });
    expect(tracer.open()).toEqual([]);
  });
});

it("tells wall-clock time that never runs backwards (TC4)", () => {
  const times = Array.from({ length: 1000 }, traceNow);
  expect(times).toEqual([...times].sort((a, b) => a - b));
  expect(Math.abs(times[0]! - Date.now())).toBeLessThan(60_000);
});
