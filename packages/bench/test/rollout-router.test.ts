import { expect, test } from "vitest";
import { compareWays } from "../src/rollout-router/rollout-router.ts";

const seed = Number(process.env.TREADLE_SEED);

test("every way of sharing a rollout makes the same tokens, and takes the same virtual time again", async () => {
  const compare = () => compareWays("bound by its ranks", "learned", { seed, numLearning: 1, numSteps: 1 });
  const timesOf = (compared: Awaited<ReturnType<typeof compare>>) =>
    compared.map(({ way, ms, aloneMs, numMoves }) => ({ way, ms, aloneMs, numMoves }));
  const first = timesOf(await compare());
  expect(first).toHaveLength(5);
  for (const { way, ms, numMoves } of first) {
    expect(ms[0]).toBeGreaterThan(0);
    if (way.migrate === "never") expect(numMoves).toBe(0);
  }
  expect(timesOf(await compare())).toEqual(first);
}, 240_000);
