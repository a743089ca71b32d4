import fc from "fast-check";
import { expect, test } from "vitest";
import {
  drawEpisodes,
  type EpisodeLimits,
  EpisodeOrder,
  EpisodePredictor,
  learnSteps,
  quantileOf,
  workloadShapes,
} from "../../src/index.ts";

const seed = Number(process.env.TREADLE_SEED);

/** Of episodes of thousands of tokens. */
const { state } = (() => {
  const predictor = new EpisodePredictor();
  learnSteps(
    predictor,
    drawEpisodes(workloadShapes.math, { steps: 3, promptsPerStep: 8, samples: 8, prompts: 8, seed }),
  );
  return predictor;
})();

const drawnLimits = fc.record({
  maxTokens: fc.option(fc.integer({ min: 1, max: 3000 }), { nil: undefined }),
  contextTokens: fc.option(fc.integer({ min: 200, max: 3000 }), { nil: undefined }),
  maxTurns: fc.option(fc.integer({ min: 1, max: 4 }), { nil: undefined }),
});
const drawnTurns = fc.array(
  fc.record({ tokens: fc.integer({ min: 1, max: 900 }), toolSeconds: fc.nat(9), observedTokens: fc.nat(400) }),
  { maxLength: 5 },
);
const contextTokens = 150;

function leftOf(limits: EpisodeLimits, turns: readonly { readonly tokens: number; readonly observedTokens: number }[]) {
  const tokens = turns.reduce((sum, turn) => sum + turn.tokens, 0);
  const observed = turns.reduce((sum, turn) => sum + turn.observedTokens, 0);
  const { maxTokens = Infinity, contextTokens: context = Infinity, maxTurns = Infinity } = limits;
  if (turns.length >= maxTurns) return 0;
  return Math.max(0, Math.min(maxTokens - tokens, context - contextTokens - tokens - observed));
}

test("PG4: no model foretells more tokens than an episode's limits leave it, and neither does any quantile", () => {
  fc.assert(
    fc.property(drawnLimits, drawnTurns, fc.double({ min: 0.01, max: 0.99, noNaN: true }), (limits, turns, share) => {
      const predictor = new EpisodePredictor(state);
      predictor.begin("a", { prompt: "1", group: "g", contextTokens, limits });
      for (const [at, turn] of [undefined, ...turns].entries()) {
        if (turn) predictor.turnEnded("a", turn);
        const left = leftOf(limits, turns.slice(0, at));
        const { tokens, toolSeconds } = predictor.predict("a");
        for (const each of [tokens, ...Object.values(tokens.models)])
          expect(Math.expm1(each.logMean)).toBeLessThanOrEqual(left * (1 + 1e-12) + 1e-9);
        expect(quantileOf(tokens, share)).toBeLessThanOrEqual(left);
        if (at >= (limits.maxTurns ?? Infinity) - 1) expect(toolSeconds.logMean).toBe(0);
      }
    }),
  );
});

test("PG4: what bounds an episode bounds what orders and places it, and what is learned of it", () => {
  const order = new EpisodeOrder({ scheduler: "pps", predictor: "learned", state });
  const start = { prompt: "1", group: "g", contextTokens };
  const [free, bounded] = [order.begin(start), order.begin({ ...start, limits: { maxTokens: 40 } })] as const;
  expect(order.predicted(free).tokens).toBeGreaterThan(100);
  expect(order.predicted(bounded).tokens).toBeCloseTo(40, 9);
  expect(order.priority(free)).toBeGreaterThan(order.priority(bounded));
  order.turnEnded(bounded, { tokens: 30 });
  expect(order.predicted(bounded).tokens).toBeCloseTo(10, 9);
  order.turnEnded(bounded, { tokens: 10 });
  order.ended(bounded);
  // All of what was foretold of it came.
  expect(order.learn().overall("tokens", "served")?.logSd).toBeCloseTo(0, 9);
});
