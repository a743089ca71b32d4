import { expect, test } from "vitest";
import { replayActions } from "../src/actions/replay.ts";

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
