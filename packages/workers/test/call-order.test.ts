import type { Completion, FinishReason } from "@treadle/contracts";
import { createArithmeticTask } from "@treadle/learning";
import { drawEpisodes, EpisodeOrder, EpisodePredictor, learnSteps, workloadShapes } from "@treadle/trajectories";
import fc from "fast-check";
import { beforeEach, expect, test } from "vitest";
import { CallOrder, type CallOrderOptions } from "../src/rollout/call-order.ts";
import { limitsOf } from "../src/rollout/order-config.ts";

const prompt = (id: string) => ({ id, tokens: Int32Array.of(1, 2, 3) });

function completion(
  numTokens: number,
  policyVersion: number,
  { logprob = -0.5, finishReason = "stop" as FinishReason } = {},
) {
  const completion: Completion = {
    tokens: new Int32Array(numTokens),
    logprobs: new Float32Array(numTokens).fill(logprob),
    temperature: 1,
    finishReason,
    policyVersion,
  };
  return completion;
}

/** What the order of a rank was told, call by call. */
let told: unknown[][];
let call: CallOrder;
let calling: (options?: Partial<CallOrderOptions>) => CallOrder;
beforeEach(() => {
  told = [];
  const order = new EpisodeOrder({ scheduler: "pps", predictor: "learned" });
  for (const method of ["generating", "turnEnded", "toolEnded", "ended", "cut"] as const) {
    const own = order[method].bind(order) as (...given: unknown[]) => void;
    order[method] = (...given: unknown[]) => {
      told.push([method, ...given]);
      own(...given);
    };
  }
  calling = (options = {}) =>
    new CallOrder(order, [prompt("a"), prompt("a"), prompt("b")], { places: 2, step: 4, ...options });
  call = calling();
});

test("each turn is told of once, without what the tool appended", () => {
  call.turnEnded(0, completion(5, 0));
  call.toolEnded(0, { toolSeconds: 2, hasToolFailed: true, observedTokens: 3 });
  call.turnEnded(0, completion(12, 0));
  call.ended(0, completion(12, 0));
  expect(told).toEqual([
    ["turnEnded", 0, { tokens: 5, meanLogProbability: -0.5 }],
    ["toolEnded", 0, { toolSeconds: 2, hasToolFailed: true, observedTokens: 3 }],
    ["turnEnded", 0, { tokens: 4, meanLogProbability: -0.5 }],
    ["ended", 0],
  ]);
});

test("an episode that ends without a call has one turn, and one whose answer had no room gains none", () => {
  call.ended(2, completion(7, 0, { finishReason: "length" }));
  call.turnEnded(1, completion(4, 0));
  call.toolEnded(1, { toolSeconds: 0, hasToolFailed: false, observedTokens: 9 });
  call.ended(1, completion(4, 0, { finishReason: "length" }));
  expect(told.map(([method, id]) => `${method} ${id}`)).toEqual([
    "turnEnded 2",
    "ended 2",
    "turnEnded 1",
    "toolEnded 1",
    "ended 1",
  ]);
});

test("an episode that began again with other weights is another one, and one that was aborted is cut", () => {
  call.turnEnded(0, completion(5, 0));
  call.toolEnded(0, { toolSeconds: 1, hasToolFailed: false, observedTokens: 2 });
  call.ended(0, completion(6, 1));
  call.ended(1, completion(3, 1, { finishReason: "abort" }));
  expect(told.slice(2)).toEqual([
    ["cut", 0],
    ["turnEnded", 3, { tokens: 6, meanLogProbability: -0.5 }],
    ["ended", 3],
    ["generating", 1, 3],
    ["cut", 1],
  ]);
});

test("PG3: of a turn under way it is told of what the turn has chosen, also where the episode has begun again", () => {
  call.turnEnded(0, completion(5, 0));
  call.toolEnded(0, { toolSeconds: 1, hasToolFailed: false, observedTokens: 2 });
  for (const numTokens of [7, 10, 4]) call.generating(0, numTokens);
  expect(told.slice(2)).toEqual([
    ["generating", 0, 0],
    ["generating", 0, 3],
    ["generating", 0, 0],
  ]);
});

test("an episode that goes on with other weights is the same one, also where fewer of its tokens are there than it had", () => {
  const going = calling({ goesOn: true });
  going.turnEnded(0, completion(5, 0));
  going.toolEnded(0, { toolSeconds: 1, hasToolFailed: false, observedTokens: 2 });
  going.ended(0, completion(9, 1));
  const at = going.add(prompt("b"), { numTokens: 8, answers: [], policyVersion: 0 });
  going.ended(at, completion(3, 1));
  expect(told.slice(2)).toEqual([
    ["turnEnded", 3, { tokens: 2, meanLogProbability: -0.5 }],
    ["ended", 3],
    ["turnEnded", 6, { tokens: 0, meanLogProbability: undefined }],
    ["ended", 6],
  ]);
});

test("a prompt has the history of the steps in which it occurred before, each time under an id of its own", () => {
  const task = createArithmeticTask({ maxOperand: 2, minOperand: 0, heldOutFraction: 0, validationFraction: 0 });
  const steps = Array.from({ length: 6 }, (_, step) => task.problemsAt(step + 1, 8));
  const [first] = steps[0]!;
  const isLong = ({ tokens }: { readonly tokens: Int32Array }) => tokens.join() === first!.tokens.join();
  const short = steps.flat().find((one) => !isLong(one));
  const order = new EpisodeOrder({ scheduler: "pps", predictor: "prompt-history" });
  for (const [step, prompts] of steps.entries()) {
    const rows = prompts.flatMap((one) => [one, one, one, one]);
    const played = new CallOrder(order, rows, { places: 4, step });
    for (const [index, one] of rows.entries()) {
      played.predicted(index);
      played.ended(index, completion(isLong(one) ? 200 : 10, step));
    }
    order.learn();
  }
  const again = [
    { ...first!, id: "seen before, and long" },
    { ...short!, id: "seen before, and short" },
  ];
  const played = new CallOrder(order, again, { places: 4, step: 6 });
  expect(new Set(steps.flat().map(({ id }) => id)).size).toBe(steps.flat().length);
  expect(played.predicted(0).tokens).toBeGreaterThan(2 * played.predicted(1).tokens);
});

test("where a token's seconds are measured while episodes run, 'time' counts them at the next wait", () => {
  const order = new EpisodeOrder({ scheduler: "time", predictor: "learned" });
  let tokenSeconds: number | undefined;
  const options = { places: 2, step: 1, tokenSeconds: () => tokenSeconds };
  const timed = new CallOrder(order, [prompt("a"), prompt("b")], options);
  timed.ended(1, completion(50, 0));
  order.learn();
  const next = new CallOrder(order, [prompt("a")], options);
  const inTokens = next.priority(0);
  tokenSeconds = 0.01;
  expect(inTokens).toBeGreaterThan(1);
  expect(next.priority(0)).toBeLessThan(inTokens / 2);
});

test.each([
  [1e-7, 0],
  [Number.NEGATIVE_INFINITY, -100],
])("a mean log-probability of %s is told as one that can be", (logprob, expected) => {
  call.ended(0, completion(2, 0, { logprob }));
  expect(told[0]).toEqual(["turnEnded", 0, { tokens: 2, meanLogProbability: expected }]);
});

test("the engine may keep three more a place, and displaces by a margin", () => {
  expect(call.options).toMatchObject({ spareCaches: 6, displace: { margin: 0.5, minTokens: 8 } });
  expect(call.options.priority(2)).toBe(call.options.priority(0));
  const blind = new EpisodeOrder({ scheduler: "las", predictor: "learned" });
  expect(new CallOrder(blind, [prompt("a")], { places: 1, step: 0 }).options.displace).toBeUndefined();
});

test("PG4: no episode of a call is predicted to exceed what its rank lets it choose, nor what its model's context holds", () => {
  const order = new EpisodeOrder({ scheduler: "pps", predictor: "learned" });
  const teaching = new CallOrder(order, [prompt("a"), prompt("b")], { places: 2, step: 1 });
  for (const index of [0, 1]) teaching.ended(index, completion(900, 0));
  order.learn();
  const limited = (config: { maxTokens: number; contextLength: number; maxCalls?: number }) => {
    const { maxTokens, contextLength, maxCalls } = config;
    const call = maxCalls === undefined ? {} : { call: { maxCalls } };
    const model = { contextLength } as Parameters<typeof limitsOf>[0]["model"];
    const limits = limitsOf({ maxTokens, model, ...call });
    return new CallOrder(order, [prompt("a")], { places: 2, step: 2, limits });
  };
  expect(limited({ maxTokens: 4000, contextLength: 4000 }).predicted(0).tokens).toBeGreaterThan(400);
  expect(limited({ maxTokens: 50, contextLength: 4000 }).predicted(0).tokens).toBeCloseTo(50, 6);
  // The prompt has three.
  const inContext = limited({ maxTokens: 4000, contextLength: 103 });
  expect(inContext.predicted(0).tokens).toBeCloseTo(100, 6);
  inContext.turnEnded(0, completion(20, 0));
  inContext.toolEnded(0, { toolSeconds: 0, hasToolFailed: false, observedTokens: 30 });
  expect(inContext.predicted(0).tokens).toBeCloseTo(50, 6);
  const lastTurn = limited({ maxTokens: 4000, contextLength: 4000, maxCalls: 0 });
  lastTurn.turnEnded(0, completion(20, 0));
  expect(lastTurn.predicted(0).tokens, "at least one, as of any that goes on").toBe(1);
});

test("PG4: an episode that has begun may choose what it has left, and what tools said to it counts for the context alone", () => {
  const order = new EpisodeOrder({ scheduler: "las", predictor: "learned" });
  const teaching = new CallOrder(order, [prompt("a"), prompt("b")], { places: 2, step: 1 });
  for (const index of [0, 1]) teaching.ended(index, completion(9000, 0));
  order.learn();
  const limits = { maxTokens: 500, contextTokens: 1000, maxTurns: 9 };
  const goesOn = (given: Partial<typeof limits>, answers: readonly (readonly [number, number])[]) => {
    const next = new CallOrder(order, [], { places: 2, step: 2, limits: { ...limits, ...given } });
    next.add(prompt("a"), { numTokens: 400, answers, policyVersion: 1 });
    return next;
  };
  const carried = goesOn({}, [[100, 400]]);
  expect(carried.predicted(0).tokens, "of 500, 100 are chosen").toBeCloseTo(400, 6);
  expect(carried.priority(0), "it has generated 100").toBe(-100);
  carried.turnEnded(0, completion(420, 1));
  expect(carried.predicted(0).tokens).toBeCloseTo(380, 6);
  expect(goesOn({ contextTokens: 703 }, [[100, 400]]).predicted(0).tokens).toBeCloseTo(300, 6);
  expect(goesOn({ maxTurns: 1 }, [[100, 400]]).predicted(0).tokens, "its turns are over").toBe(1);
  // Cut in the midst of its first turn; that may end with what it has.
  const cut = goesOn({}, []);
  expect(cut.predicted(0).tokens).toBeCloseTo(100, 6);
  cut.turnEnded(0, completion(400, 1));
  cut.toolEnded(0, { toolSeconds: 1, hasToolFailed: false, observedTokens: 50 });
  cut.turnEnded(0, completion(460, 1));
  expect(cut.predicted(0).tokens).toBeCloseTo(90, 6);
});

test("an episode that goes on in a later step is predicted as one that has just done the same: turns, tools, their seconds and failures", () => {
  const seed = Number(process.env.TREADLE_SEED);
  const predictor = new EpisodePredictor();
  learnSteps(
    predictor,
    drawEpisodes(workloadShapes.coding, { steps: 4, promptsPerStep: 8, samples: 8, prompts: 12, seed }),
  );
  const { state } = predictor;
  const begin = () => new EpisodeOrder({ scheduler: "time", predictor: "learned", state });
  const turns = fc.array(
    fc.record({
      numTokens: fc.integer({ min: 1, max: 300 }),
      observedTokens: fc.integer({ min: 1, max: 99 }),
      toolSeconds: fc.double({ min: 0, max: 60, noNaN: true }),
      hasToolFailed: fc.boolean(),
      logprob: fc.double({ min: -3, max: 0, noNaN: true }),
    }),
    { minLength: 1, maxLength: 6 },
  );
  fc.assert(
    fc.property(turns, (drawn) => {
      const [went, goesOn] = [begin(), begin()].map((order) => new CallOrder(order, [], { places: 2, step: 1 }));
      went!.add(prompt("a"));
      const logprobs: number[] = [];
      const answers: [number, number][] = [];
      for (const { numTokens, observedTokens, toolSeconds, hasToolFailed, logprob } of drawn) {
        logprobs.push(...new Array<number>(numTokens).fill(logprob));
        const from = logprobs.length;
        const written = { tokens: new Int32Array(from), logprobs: Float32Array.from(logprobs) };
        went!.turnEnded(0, { ...completion(from, 1), ...written });
        went!.toolEnded(0, { toolSeconds, hasToolFailed, observedTokens });
        logprobs.push(...new Array<number>(observedTokens).fill(0));
        answers.push([from, logprobs.length]);
      }
      goesOn!.add(prompt("a"), {
        ...{ numTokens: logprobs.length, answers, outcomes: drawn, policyVersion: 1 },
        logprobs: Float32Array.from(logprobs),
      });
      expect(goesOn!.predicted(0)).toEqual(went!.predicted(0));
      expect(goesOn!.priority(0)).toBe(went!.priority(0));
    }),
    { seed },
  );
});

test("an episode that had begun, and begins again with other weights, has nothing of before", () => {
  const begun = { numTokens: 400, answers: [[100, 400]] as const, policyVersion: 1 };
  expect(call.add(prompt("c"), begun)).toBe(3);
  call.turnEnded(3, completion(7, 2));
  expect(told).toEqual([
    ["cut", 3],
    ["turnEnded", 4, { tokens: 7, meanLogProbability: -0.5 }],
  ]);
});

test("PG4: a call's longest comes to no more than it may choose, nor than its context leaves beside the shortest prompt", () => {
  const order = new EpisodeOrder({ scheduler: "pps", predictor: "learned" });
  const most = (limits?: { maxTokens?: number; contextTokens?: number }) =>
    new CallOrder(order, [{ id: "long", tokens: new Int32Array(40) }, prompt("a")], { places: 2, step: 1, limits })
      .mostTokens;
  expect(most({ maxTokens: 500, contextTokens: 9000 })).toBe(500);
  expect(most({ maxTokens: 500, contextTokens: 103 })).toBe(100);
  expect(most({ maxTokens: 500 })).toBe(500);
  expect(most()).toBeUndefined();
});
