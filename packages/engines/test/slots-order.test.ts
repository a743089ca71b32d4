import type { Completion, Sampling } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";
import { type Reading, Slots } from "../src/embedded/slots.ts";
import type { GenerationOrder } from "../src/engine.ts";
import { contextLength, promptLists, read, take, vocabSize } from "./slot-driver.ts";

const stop = 1;

type Driven = {
  readonly size?: number;
  readonly seed: number;
  readonly order?: GenerationOrder | undefined;
  /** steps that a tool takes */
  readonly delay?: (index: number) => number;
  readonly restartAt?: number;
  readonly chunk?: number;
};

/** Drives slots to the end with a tool that answers twice; before step `restartAt` the model changes to version 1. */
function drive(prompts: readonly Int32Array[], given: Driven) {
  const { size = 1, seed, order, delay = () => 0, restartAt = Number.POSITIVE_INFINITY, chunk = 4 } = given;
  const sampling: Sampling = { maxTokens: 6, temperature: 1, stopTokens: [stop], seed };
  const slots = new Slots(size, prompts, sampling, contextLength, { isExtensible: true, order });
  const numCaches = size + (order?.spareCaches ?? 0);
  const histories: number[][] = Array.from({ length: numCaches }, () => []);
  const completions = new Map<number, Completion>();
  const note = (finished: readonly [number, Completion][]) => {
    for (const [index, completion] of finished) {
      expect(completions.has(index), "a prompt finished twice").toBe(false);
      completions.set(index, completion);
    }
  };
  const answer = ({ tokens }: Completion) =>
    tokens.filter((token) => token === stop).length <= 2 ? Int32Array.of(2, 4) : undefined;
  let due: { readonly at: number; readonly act: () => [number, Completion][] }[] = [];
  // Every step computes a token or waits for a tool, and a restart computes all of it twice.
  const most = 2 * prompts.length * (contextLength + 3 * 7);
  for (let step = 0; !slots.done; step++) {
    expect(step, "somebody starves").toBeLessThanOrEqual(most);
    if (step === restartAt) slots.restart();
    const version = step >= restartAt ? 1 : 0;
    const now = due.filter(({ at }) => at <= step);
    due = due.filter(({ at }) => at > step);
    for (const { act } of now) note(act());
    if (slots.done || slots.isHeld) continue;
    const readings = take(slots, histories, chunk);
    expect(readings.length, "nothing was computed").toBeGreaterThan(0);
    expect(readings.length, "more than there are slots").toBeLessThanOrEqual(size);
    expect(new Set(readings.map(({ cache }) => cache)).size, "one cache for two").toBe(readings.length);
    for (const { cache } of readings) expect(cache, "more caches than allowed").toBeLessThan(numCaches);
    note(slots.advance(readings, read(readings, histories, version), version));
    for (const held of slots.takeHeld()) {
      const act = () => slots.extend(held, answer(held.completion), step + 1 >= restartAt ? 1 : 0);
      due.push({ at: step + 1 + delay(held.index), act });
    }
  }
  expect(completions.size, "a prompt was lost").toBe(prompts.length);
  return completions;
}

const drawnOrders = fc.record({
  priorities: fc.array(fc.double({ min: -100, max: 100, noNaN: true }), { minLength: 1, maxLength: 30 }),
  spareCaches: fc.integer({ min: 0, max: 8 }),
  displace: fc.option(
    fc.record({ margin: fc.double({ min: 0, max: 2, noNaN: true }), minTokens: fc.integer({ min: 1, max: 3 }) }),
    { nil: undefined },
  ),
});

/** Priorities that differ with every question, so that whatever can be displaced is. */
function orderOf({
  priorities,
  ...rest
}: { readonly priorities: readonly number[] } & Omit<GenerationOrder, "priority">) {
  let numAsked = 0;
  return { ...rest, priority: () => priorities[numAsked++ % priorities.length]! };
}

const situations = fc.record({
  prompts: promptLists,
  seed: fc.integer({ min: 0, max: 1000 }),
  size: fc.integer({ min: 1, max: 5 }),
  chunk: fc.integer({ min: 1, max: 9 }),
  delay: fc.func(fc.integer({ min: 0, max: 6 })),
  drawn: drawnOrders,
});

test("whatever the priorities and tools, every prompt ends once with the tokens and log-probabilities that it has alone (SL1, SL2, SL8)", () => {
  fc.assert(
    fc.property(situations, ({ prompts, seed, drawn, ...rest }) => {
      expect(drive(prompts, { seed, ...rest, order: orderOf(drawn) })).toEqual(drive(prompts, { seed }));
    }),
    { numRuns: 150 },
  );
});

test("after a restart in any order each completion is wholly of the old or wholly of the new model (SL3)", () => {
  fc.assert(
    fc.property(situations, fc.integer({ min: 0, max: 40 }), ({ prompts, seed, drawn, ...rest }, restartAt) => {
      const [old, renewed] = [drive(prompts, { seed }), drive(prompts, { seed, restartAt: 0 })];
      for (const [index, completion] of drive(prompts, { seed, ...rest, restartAt, order: orderOf(drawn) })) {
        expect(completion).toEqual((completion.policyVersion === 0 ? old : renewed).get(index));
      }
    }),
  );
});

/** Slots whose sequences say what they are told: by default token 0, which is no stop. */
function scripted(size: number, numPrompts: number, order: GenerationOrder) {
  const prompts = Array.from({ length: numPrompts }, (_, index) => Int32Array.of(2 + (index % 3)));
  const sampling: Sampling = { maxTokens: 8, temperature: 0, stopTokens: [stop], seed: 0 };
  const slots = new Slots(size, prompts, sampling, 64, { isExtensible: true, order });
  const say = (readings: readonly Reading[], token: (reading: Reading) => number) => {
    const logprobs = new Float32Array(readings.length * vocabSize).fill(-9);
    readings.forEach((reading, row) => {
      logprobs[row * vocabSize + token(reading)] = -0.1;
    });
    return logprobs;
  };
  /** One token of each in a slot, and the caches of those. */
  const step = (token: (reading: Reading) => number = () => 0) => {
    const { readings } = slots.next(100);
    const finished = slots.advance(readings, say(readings, token), 0);
    return { caches: readings.map(({ cache }) => cache), firsts: readings.map(({ tokens }) => tokens[0]), finished };
  };
  return { slots, step };
}

test("a free slot goes to the highest priority, of equal ones to the lowest index (SL6)", () => {
  const priorities = [1, 5, 3, 5, 2, 3];
  const { slots, step } = scripted(1, priorities.length, { priority: (index) => priorities[index]! });
  const order: number[] = [];
  while (!slots.done) {
    step(() => stop);
    for (const held of slots.takeHeld()) order.push(...slots.extend(held, undefined, 0).map(([index]) => index));
  }
  expect(order).toEqual([1, 3, 2, 5, 4, 0]);
});

test("a priority is asked for again once a sequence was extended, and after a restart (SL6)", () => {
  const asked: number[] = [];
  const order = { priority: (index: number) => asked.push(index) };
  const { slots, step } = scripted(2, 3, order);
  expect(asked).toEqual([0, 1, 2]);
  step(({ cache }) => (cache === 0 ? stop : 0));
  const [held] = slots.takeHeld();
  expect(asked).toHaveLength(3);
  slots.extend(held!, Int32Array.of(3), 0);
  expect(asked.slice(3)).toEqual([held!.index]);
  slots.restart();
  expect(asked.slice(4).sort()).toEqual([0, 1, 2]);
});

test("with a spare cache a sequence whose tool works leaves its slot, keeps what it has read, and takes it again when it may (SL4, SL8)", () => {
  const { slots, step } = scripted(1, 3, { priority: (index) => -index, spareCaches: 1 });
  expect(step(() => stop).caches).toEqual([0]);
  const [held] = slots.takeHeld();
  expect(slots.isHeld).toBe(false);
  expect(step().caches).toEqual([1]);
  slots.extend(held!, Int32Array.of(3), 0);
  // Nothing displaces the other: absent a rule, a slot is kept.
  expect(step().caches).toEqual([1]);
  step(() => stop);
  const [other] = slots.takeHeld();
  const { caches, firsts } = step();
  expect(caches).toEqual([0]);
  // Its stop token and the tool's were unread, and nothing before them is read again.
  expect(firsts).toEqual([stop]);
  expect(slots.extend(other!, undefined, 0)).toHaveLength(1);
});

test("without a spare cache a sequence whose tool works keeps its place (SL8)", () => {
  const { slots, step } = scripted(1, 2, { priority: (index) => index });
  step(() => stop);
  expect(slots.isHeld).toBe(true);
  const [held] = slots.takeHeld();
  expect(held!.index).toBe(1);
  slots.extend(held!, undefined, 0);
  expect(slots.isHeld).toBe(false);
});

test.each([
  ["keeps its slot against a priority within the margin", 14, [1, 1, 1, 1]],
  ["keeps it for its least number of tokens, and then makes room", 16, [1, 1, 0, 0]],
])("a sequence %s (SL7)", (_name, priority, expected) => {
  let numAsked = 0;
  const order = {
    priority: (index: number) => (index === 1 ? 10 : numAsked++ === 0 ? 20 : priority),
    spareCaches: 1,
    displace: { margin: 0.5, minTokens: 3 },
  };
  const { slots, step } = scripted(1, 2, order);
  expect(step(() => stop).caches).toEqual([0]);
  const [held] = slots.takeHeld();
  // The other begins while the tool works.
  expect(step().caches).toEqual([1]);
  slots.extend(held!, Int32Array.of(3), 0);
  expect([step(), step(), step(), step()].map(({ caches }) => caches[0])).toEqual(expected);
});
