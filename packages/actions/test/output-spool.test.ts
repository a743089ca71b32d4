import fc from "fast-check";
import { expect, test } from "vitest";
import { DiskBudget, type EventSink, OutputSpool } from "../src/grpc/output-spool.ts";

/** Takes as many events as it was allowed, then says that it is full. */
function sinkOf() {
  const events: { output?: { stdout?: Buffer; stderr?: Buffer }; said?: number }[] = [];
  let drained: () => void = () => {};
  let room = 1;
  let hasEnded = false;
  const sink: EventSink = {
    write(event) {
      events.push(event);
      room--;
      return room > 0;
    },
    end: () => {
      hasEnded = true;
    },
    on: (_, listener) => {
      drained = listener;
    },
  };
  const allow = (more: number): void => {
    const wasFull = room <= 0;
    room = more;
    if (wasFull) drained();
  };
  return { sink, events, allow, hasEnded: () => hasEnded };
}

test("OS1 small pieces that wait are given on as large ones, those of one stream after another's, in order", () => {
  const { sink, events, allow } = sinkOf();
  const spool = new OutputSpool(sink, new DiskBudget(2 ** 30));
  const pieces = Array.from({ length: 100_000 }, (_, i) => Buffer.from(String(i % 10)));
  for (const [i, piece] of pieces.entries()) spool.give(i < 70_000 ? "stdout" : "stderr", piece);
  allow(Number.POSITIVE_INFINITY);
  expect(events.length).toBeLessThan(10);
  const of = (stream: "stdout" | "stderr") => events.map(({ output }) => output?.[stream]?.toString() ?? "").join("");
  const expected = pieces.join("");
  expect([of("stdout"), of("stderr")]).toEqual([expected.slice(0, 70_000), expected.slice(70_000)]);
});

const step = fc.oneof(
  { weight: 4, arbitrary: fc.record({ bytes: fc.uint8Array({ maxLength: 50 }), isError: fc.boolean() }) },
  { weight: 1, arbitrary: fc.record({ said: fc.integer() }) },
  { weight: 2, arbitrary: fc.record({ allow: fc.integer({ min: 1, max: 5 }) }) },
);

type Seen = (string | [stream: string, hex: string])[];

/** Pieces of one stream may come as one. */
function joined(seen: Seen): Seen {
  const all: Seen = [];
  for (const one of seen) {
    const last = all.at(-1);
    if (typeof one !== "string" && typeof last === "object" && last[0] === one[0]) last[1] += one[1];
    else all.push(typeof one === "string" ? one : [...one]);
  }
  return all;
}

test("OS1 OS2 OS3 whatever is given arrives once and in order, within the budget, however slowly it is taken", () => {
  fc.assert(
    fc.property(fc.array(step, { maxLength: 60 }), fc.integer({ min: 0, max: 400 }), (steps, limit) => {
      const { sink, events, allow, hasEnded } = sinkOf();
      const budget = new DiskBudget(limit);
      const spool = new OutputSpool(sink, budget);
      const given: Seen = [];
      for (const one of steps) {
        if ("allow" in one) allow(one.allow);
        else if ("said" in one) {
          spool.tell({ said: one.said });
          given.push(`said ${one.said}`);
        } else {
          const stream = one.isError ? "stderr" : "stdout";
          const before = budget.usedBytes;
          if (spool.give(stream, Buffer.from(one.bytes))) given.push([stream, Buffer.from(one.bytes).toString("hex")]);
          else expect(before + one.bytes.length).toBeGreaterThan(limit);
        }
        expect(budget.usedBytes).toBeLessThanOrEqual(limit);
      }
      spool.end();
      for (let i = 0; i <= steps.length && !hasEnded(); i++) allow(5);
      expect(hasEnded()).toBe(true);
      expect(budget.usedBytes).toBe(0);
      const seen: Seen = events.map(({ output, said }) => {
        if (output === undefined) return `said ${said}`;
        return output.stdout ? ["stdout", output.stdout.toString("hex")] : ["stderr", output.stderr!.toString("hex")];
      });
      expect(joined(seen)).toEqual(joined(given));
    }),
  );
});

test("OS3 a client that went away leaves nothing unread", () => {
  const { sink } = sinkOf();
  const budget = new DiskBudget(1000);
  const spool = new OutputSpool(sink, budget);
  for (let i = 0; i < 5; i++) spool.give("stdout", Buffer.alloc(100));
  expect(budget.usedBytes).toBe(400);
  spool.discard();
  expect(budget.usedBytes).toBe(0);
  expect(spool.give("stdout", Buffer.alloc(5000))).toBe(true);
});
