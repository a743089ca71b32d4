import { expect, test } from "vitest";
import { replayActions } from "../src/actions/replay.ts";
import { pytestSuite } from "../src/actions/suites.ts";

test("a reserved core is held while its trajectory thinks; an action's only while it runs", async () => {
  const { ways, cores } = await replayActions({ trajectories: 2, turns: 2, testFiles: 1, rounds: 1 });
  expect(ways.map(({ name }) => name)).toEqual([
    "trajectory-level reservation of a core",
    "action-level, fixed DoP 1",
    ...(cores > 1 ? [`action-level, fixed DoP ${cores}`] : []),
    "action-level, elastic",
  ]);
  const [reservation, fixed] = ways.map(({ figures }) => figures);
  // Both think twice after their first action, 0.3 s and 0.6 s at a time.
  expect(reservation!.heldCoreSeconds - reservation!.busyCoreSeconds).toBeGreaterThan(2 * (0.3 + 0.6));
  expect(fixed!.heldCoreSeconds).toBeGreaterThan(fixed!.busyCoreSeconds);
  for (const { figures } of ways) {
    expect(figures.step).toBeGreaterThan(figures.reward);
    expect(figures.busyCoreSeconds).toBeGreaterThan(0);
  }
}, 240_000);

test("a suite of pytest in a root-owned /testbed is a reward in every way of scheduling", async (context) => {
  const suite = await pytestSuite(1);
  if (typeof suite === "string") return context.skip(suite);
  try {
    const { ways, driver } = await replayActions({ trajectories: 1, turns: 1, rounds: 1, suite });
    expect(driver).toBe("cgroup");
    // Its one test waits a second.
    for (const { figures } of ways) expect(figures.reward).toBeGreaterThan(1);
  } finally {
    await suite.close();
  }
}, 240_000);
