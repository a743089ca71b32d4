import fc from "fast-check";
import { expect, test } from "vitest";
import type { PolicyName } from "../../src/channel/pick-policy.ts";
import type { RunnerEffect } from "../../src/runner/runner-messages.ts";
import { RunnerWorld } from "../runner/runner-world.ts";

/** What each rank gets of these weights when all ranks want all of it, one after the other, until nothing is left. */
function sharesOf(pick: PolicyName, weights: readonly number[], numRanks: number): number[][] {
  const runner = new RunnerWorld();
  runner.feed({ type: "define-channel", name: "in", capacity: 1000, pick });
  runner.component(numRanks);
  const ranks = Array.from({ length: numRanks }, (_, rank) => rank);
  for (const rank of ranks) runner.up(`actor/${rank}`);
  const stream = "step-1";
  runner.feed({ type: "open", call: "own", end: { channel: "in", role: "sink", stream } });
  const items = weights.map((weight, payload) => ({ payload, sizeBytes: 1, weight }));
  runner.feed({ type: "put", request: 1000, call: "own", channel: "in", items });
  runner.feed({ type: "close", call: "own", outcome: { ok: true } });
  const ends = [{ channel: "in", role: "source", stream } as const];
  runner.feed({ type: "call", sequence: 1, component: "actor", method: "work", ranks, ends });
  const shares = ranks.map((): number[] => []);
  const note = (effects: readonly RunnerEffect[]) => {
    for (const effect of effects) {
      if (effect.type !== "answer" || effect.answer.type !== "batch") continue;
      const share = shares[Number(effect.answer.worker.split("/")[1])] as number[];
      share.push(...effect.answer.items.map(({ payload }) => payload as number));
    }
  };
  let request = 0;
  for (const rank of [...ranks, ...ranks]) {
    const from = runner.id(`actor/${rank}`);
    const ask = { request: ++request, from, call: `1/${rank}`, channel: "in", acknowledge: true } as const;
    note(runner.feed({ type: "take", ...ask }));
  }
  return shares;
}

const weightsOf = (shares: readonly (readonly number[])[], weights: readonly number[]) =>
  shares.map((share) => share.reduce((sum, item) => sum + (weights[item] as number), 0));

test("C5: by weight, ranks that want all of a stream get parts of like weight, and each item comes once", () => {
  fc.assert(
    fc.property(
      fc.array(fc.integer({ min: 0, max: 50 }), { minLength: 1, maxLength: 30 }),
      fc.integer({ min: 1, max: 4 }),
      (weights, numRanks) => {
        const shares = sharesOf("weight", weights, numRanks);
        expect(shares.flat().toSorted((a, b) => a - b)).toEqual([...weights.keys()]);
        const loads = weightsOf(shares, weights);
        const total = loads.reduce((sum, load) => sum + load, 0);
        const heaviest = Math.max(...weights);
        // Whoever got the last item of the heaviest part was the lightest then (Graham 1969).
        expect(Math.max(...loads)).toBeLessThanOrEqual(total / numRanks + heaviest * (1 - 1 / numRanks) + 1e-9);
        expect(Math.max(...loads) - Math.min(...loads)).toBeLessThanOrEqual(heaviest);
        if (weights.length >= numRanks) for (const share of shares) expect(share.length).toBeGreaterThan(0);
      },
    ),
  );
});

test("of episodes, which arrive as they end, short ones first, no rank gets much more by weight; by count the last one does", () => {
  const tokens = Array.from({ length: 32 }, (_, group) => 100 + 10 * group);
  const excess = (pick: PolicyName) => {
    const loads = weightsOf(sharesOf(pick, tokens, 4), tokens);
    return (Math.max(...loads) * loads.length) / loads.reduce((sum, load) => sum + load, 0) - 1;
  };
  expect(excess("fifo")).toBeGreaterThan(0.4);
  expect(excess("weight")).toBeLessThan(0.01);
});
