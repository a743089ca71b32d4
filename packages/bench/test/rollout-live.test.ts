import { learnedForecasting, waysOf } from "@treadle/simulation";
import { expect, test } from "vitest";
import { playWay, settingOf } from "../src/rollout-router/rollout-live.ts";

const seed = Number(process.env.TREADLE_SEED);
const setting = settingOf("coding", { gpus: 4, episodes: 64 }, 0.04, seed);
const { verl, placed } = waysOf(setting.scenario, setting.F, learnedForecasting(setting.state, setting.episodes));

test("ranks that keep what they took take as long as they are simulated to", async () => {
  const { seconds, simulatedSeconds, numMoves } = await playWay(setting, verl);
  expect(Math.abs(seconds / simulatedSeconds - 1)).toBeLessThan(0.03);
  expect(numMoves).toBe(0);
});

test("ranks of different size that share episodes make all of their tokens, and take the same time again", async () => {
  const way = placed("pays", [2, 1, 1]);
  const played = await playWay(setting, way);
  expect(played.seconds).toBeGreaterThan(0);
  expect(await playWay(setting, way)).toEqual(played);
  // The ranks of a live step know less of each other.
  expect(played.seconds / played.simulatedSeconds).toBeGreaterThan(0.5);
  expect(played.seconds / played.simulatedSeconds).toBeLessThan(2);
}, 120_000);
