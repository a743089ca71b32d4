import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  drawEpisodes,
  EpisodeOrder,
  type EpisodeOrderOptions,
  EpisodePredictor,
  GroupPlacement,
  modelNames,
  type PredictorRow,
  type PredictorState,
  type RecordedEpisode,
  WorkerLoads,
  workloadShapes,
} from "../../src/index.ts";
import { queueKey } from "../../src/rollout/queue-order.ts";

const seed = Number(process.env.TREADLE_SEED);

const order = (options: Partial<EpisodeOrderOptions> = {}) =>
  new EpisodeOrder({ scheduler: "pps", predictor: "learned", ...options });

const steps = (count: number) =>
  drawEpisodes(workloadShapes.coding, { steps: count, promptsPerStep: 12, samples: 8, prompts: 24, seed });

/** One step, turn by turn of all its episodes, as a rank tells of it; `said`: of each, what was foretold before each turn. */
function play(live: EpisodeOrder, step: number, episodes: readonly RecordedEpisode[], said: number[][] = []) {
  const ids = episodes.map(({ prompt, contextTokens }) =>
    live.begin({ prompt, contextTokens, group: `${step}/${prompt}` }),
  );
  const ask = (index: number) => {
    const id = ids[index]!;
    live.priority(id);
    said[index] = [...(said[index] ?? []), live.predicted(id).tokens];
  };
  for (const index of ids.keys()) ask(index);
  const longest = Math.max(...episodes.map(({ turns }) => turns.length));
  for (let turn = 0; turn < longest; turn++) {
    for (const [index, { turns }] of episodes.entries()) {
      const id = ids[index]!;
      if (turn >= turns.length) continue;
      const { toolSeconds = 0, hasToolFailed = false, observedTokens = 0, ...own } = turns[turn]!;
      live.turnEnded(id, own);
      if (turn === turns.length - 1) {
        live.ended(id);
        continue;
      }
      live.toolEnded(id, { toolSeconds, hasToolFailed, observedTokens });
      ask(index);
    }
  }
  return live.learn();
}

/** A predictor that has learned, and knows prompts apart. */
function taught(): PredictorState {
  const live = order();
  for (const [step, episodes] of steps(4).entries()) play(live, step, episodes);
  return live.state;
}

describe("EO1: a priority is the negated key that a simulated rollout orders by,", () => {
  const state = taught();
  const asked = fc.array(
    fc.record({ prompt: fc.nat(30), tokens: fc.array(fc.integer({ min: 1, max: 900 }), { maxLength: 3 }) }),
    {
      minLength: 1,
      maxLength: 12,
    },
  );
  test.each(["fcfs", "rr", "sjf", "las", "pps", "time"] as const)("with '%s'", (scheduler) => {
    fc.assert(
      fc.property(asked, (episodes) => {
        const live = order({ scheduler, state });
        live.tokenSeconds = 0.02;
        const predictor = new EpisodePredictor(state);
        const keyOf = queueKey(scheduler, "remaining");
        for (const [index, { prompt, tokens }] of episodes.entries()) {
          const start = { prompt: `${prompt}`, group: `${prompt}`, contextTokens: 100 };
          const id = live.begin(start);
          predictor.begin(`${index}`, start);
          for (const each of tokens) {
            live.turnEnded(id, { tokens: each, toolSeconds: 1 });
            predictor.turnEnded(`${index}`, { tokens: each, toolSeconds: 1 });
          }
          const said = predictor.predict(`${index}`);
          const predictedTokens = Math.expm1(said.tokens.logMean);
          const key = keyOf({
            trajectory: index,
            submittedAt: index,
            predictedTokens,
            predictedSeconds: predictedTokens * 0.02 + Math.expm1(said.toolSeconds.logMean),
            generatedTokens: tokens.reduce((sum, each) => sum + each, 0),
          });
          expect(live.priority(id)).toBe(-key);
        }
      }),
    );
  });
});

test("what is not known yet is equal, so that episodes keep their order until something was learned", () => {
  const live = order();
  const ids = ["a", "b", "c"].map((prompt) => live.begin({ prompt, group: prompt, contextTokens: 9 }));
  expect(new Set(ids.map((id) => live.priority(id))).size).toBe(1);
});

test("a long prompt goes first once steps were learned, and later turns are asked about anew", () => {
  const live = order();
  for (let step = 0; step < 4; step++) {
    for (const [prompt, tokens] of [
      ["short", 10],
      ["long", 1000],
    ] as const) {
      for (let sample = 0; sample < 8; sample++) {
        const id = live.begin({ prompt, group: `${step}/${prompt}`, contextTokens: 9 });
        live.priority(id);
        live.turnEnded(id, { tokens });
        live.ended(id);
      }
    }
    live.learn();
  }
  const [short, long] = ["short", "long"].map((prompt) => live.begin({ prompt, group: prompt, contextTokens: 9 }));
  const before = live.priority(long!);
  expect(before).toBeGreaterThan(10 * live.priority(short!));
  live.turnEnded(long!, { tokens: 900 });
  expect(live.priority(long!)).toBeLessThan(before);
});

test.each(modelNames)(
  "before '%s' has learned anything, placing by its word spreads episodes over all ranks",
  (predictor) => {
    const live = order({ predictor });
    const ids = Array.from({ length: 8 }, (_, each) =>
      live.begin({ prompt: `${each}`, group: `${each}`, contextTokens: 9 }),
    );
    const group = new GroupPlacement({ placement: "predicted", migrate: "never", own: 0, numRanks: 2 });
    group.up(1);
    group.conditions = { logSd: 0, F: { type: "affine", slope: 0.1 }, places: 16 };
    group.begin(
      0,
      ids.map((id) => live.predicted(id).tokens),
    );
    group.place();
    const policy = group.policy(0, new WorkerLoads(2));
    const homes = ids.map((_, index) => policy.workerFor(index, -1));
    expect([0, 1].map((rank) => homes.filter((home) => home === rank).length)).toEqual([4, 4]);
  },
);

test("'time' counts tools beside tokens, as soon as a token's seconds were measured", () => {
  const live = order({ scheduler: "time" });
  const learnStep = () => {
    for (const [prompt, toolSeconds] of [
      ["fast", 0.1],
      ["slow", 100],
    ] as const) {
      for (let sample = 0; sample < 8; sample++) {
        const id = live.begin({ prompt, group: `${prompt}`, contextTokens: 9 });
        live.priority(id);
        live.turnEnded(id, { tokens: 50, toolSeconds });
        live.turnEnded(id, { tokens: 50 });
        live.ended(id);
      }
    }
    live.learn();
  };
  for (let step = 0; step < 3; step++) learnStep();
  const [fast, slow] = ["fast", "slow"].map((prompt) => live.begin({ prompt, group: prompt, contextTokens: 9 }));
  expect(live.priority(slow!)).toBeCloseTo(live.priority(fast!), 0);
  live.tokenSeconds = 0.01;
  expect(live.priority(slow!)).toBeGreaterThan(5 * live.priority(fast!));
});

test("EO2: each prediction is judged by its own episode's outcome, the oracle without error", () => {
  const live = order();
  let last = play(live, 0, []);
  expect(last.isEmpty).toBe(true);
  const all = steps(5);
  for (const [step, episodes] of all.entries()) last = play(live, step, episodes);
  const numAsked = all.at(-1)!.reduce((sum, { turns }) => sum + turns.length, 0);
  const of = (model: PredictorRow["model"]) => last.overall("tokens", model)!;
  expect(of("served").count).toBe(numAsked);
  const byStage = last.report().rows.filter(({ quantity, model }) => quantity === "tokens" && model === "served");
  expect(byStage.reduce((sum, { count }) => sum + count, 0)).toBe(numAsked);
  const logSdOf = (model: PredictorRow["model"]) => of(model).logSd;
  expect(logSdOf("oracle")).toBeCloseTo(0, 9);
  expect(logSdOf("served")).toBeLessThan(logSdOf("constant"));
  expect(play(live, 9, []).overall("tokens", "served")).toBeUndefined();
});

test("EO3: a prediction that is not finite is refused, with the episode's name", () => {
  const state = taught();
  const broken = structuredClone(state);
  broken.tokens.models.prompts.mean = 1e300;
  const live = order({ state: broken });
  const id = live.begin({ prompt: "new", group: "g", contextTokens: 9 });
  expect(() => live.priority(id)).toThrow(/predicts '(?:Infinity|NaN)' tokens .* for episode '0 of g'/);
  // What was not asked for its predictions needs none.
  const blind = order({ scheduler: "fcfs", state: broken });
  expect(blind.priority(blind.begin({ prompt: "new", group: "g", contextTokens: 9 }))).toBe(-0);
});

test("EO4: an episode that was cut or given up is forgotten with its step, and nothing is said of it", () => {
  const live = order();
  const start = { prompt: "a", group: "a", contextTokens: 9 };
  const [cut, left] = [live.begin(start), live.begin(start)];
  live.priority(cut);
  live.priority(left);
  live.cut(cut);
  expect(() => live.priority(cut)).toThrow(/'0' is not under way/);
  expect(live.learn().isEmpty).toBe(true);
  expect(() => live.ended(left)).toThrow(/'1' is not under way/);
});

test("a state of another version or shape is refused", () => {
  expect(() => order({ state: { version: 2 } })).toThrow(/version/);
  const live = order({ state: taught() });
  expect(order({ state: JSON.parse(JSON.stringify(live.state)) }).state).toEqual(live.state);
});

test("what it records of a step is what its episodes did, with what it foretold before each turn", () => {
  const [first = [], second = []] = steps(2);
  const live = order({ records: true });
  const plain = order();
  for (const each of [live, plain]) play(each, 1, first);
  live.takePlayed();
  const said: number[][] = [];
  const scores = [play(live, 2, second, said), play(plain, 2, second)].map((each) => each.report());
  expect(scores[0]).toEqual(scores[1]); // recording changes nothing that is judged
  const { episodes, logSd } = live.takePlayed();
  expect(logSd).toBeGreaterThan(0);
  const shown = episodes.map(({ contextTokens, turns }) => ({
    contextTokens,
    turns: turns.map(({ predictedTokens: _, predictedToolSeconds: _seconds, ...turn }) => turn),
  }));
  const expected = second.map(({ contextTokens, turns }) => ({
    contextTokens,
    // The last one calls no tool.
    turns: turns.map(({ tokens, toolSeconds = 0, observedTokens = 0 }, at) =>
      at < turns.length - 1 ? { tokens, toolSeconds, observedTokens } : { tokens, toolSeconds: 0, observedTokens: 0 },
    ),
  }));
  const byText = (all: readonly unknown[]) => all.map((each) => JSON.stringify(each)).sort();
  expect(byText(shown)).toEqual(byText(expected));
  // Before each turn, what the order would have said if it had been asked; episodes end in an order of their own.
  const predicted = episodes.map(({ turns }) => turns.map(({ predictedTokens }) => predictedTokens));
  expect(byText(predicted)).toEqual(byText(said));
  expect(new Set(said.map(([first]) => first)).size).toBeGreaterThan(1);
  expect(live.takePlayed().episodes).toEqual([]);
});
