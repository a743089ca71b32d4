import { expect, test } from "vitest";
import { RunnerWorld } from "../runner/runner-world.ts";

/** Two ranks on their way; what the runner says when the first one is late. */
function lateAfter(tell: (world: RunnerWorld) => void): string | undefined {
  const world = new RunnerWorld();
  world.component(3, { restart: "group" });
  for (const rank of [0, 1]) {
    const id = world.id(`actor/${rank}`);
    world.feed({ type: "launched", ...id });
    world.feed({ type: "connected", ...id });
  }
  tell(world);
  world.nowMs = 1000;
  world.feed({ type: "tick" });
  return world.all("end-process").find(({ worker }) => worker === "actor/0")?.verdict?.message;
}
const awaits = (world: RunnerWorld, rank: number, from: string) =>
  world.feed({ type: "awaits", ...world.id(`actor/${rank}`), messages: [{ from, what: "broadcast" }] });

test("S3: a late start names what it waits for, down to the one that waits for nobody", () => {
  const said = lateAfter((world) => {
    awaits(world, 0, "actor/1");
    awaits(world, 1, "actor/2");
  });
  expect(said).toBe(
    "worker 'actor/0' was not ready within supervision.startTimeoutMs (1000 ms): it waits for a message (broadcast) of 'actor/1', which waits for a message (broadcast) of 'actor/2', which is still starting",
  );
});

test("S3: ranks that wait for each other are called a deadlock, and one that has started without a word is told apart", () => {
  const circle = lateAfter((world) => {
    awaits(world, 0, "actor/1");
    awaits(world, 1, "actor/0");
  });
  expect(circle).toContain("this is a deadlock: 'actor/0' → 'actor/1' → 'actor/0'");
  const silent = lateAfter((world) => {
    world.feed({ type: "ready", ...world.id("actor/1"), memoryBytes: 0 });
    awaits(world, 0, "actor/1");
  });
  expect(silent).toContain("of 'actor/1', which has started and sends none");
});

test("what an earlier process waited for says nothing about the next one", () => {
  const said = lateAfter((world) => {
    awaits(world, 0, "actor/1");
    world.feed({ type: "awaits", ...world.id("actor/0"), messages: [] });
  });
  expect(said).toBe("worker 'actor/0' was not ready within supervision.startTimeoutMs (1000 ms)");
  const world = new RunnerWorld();
  world.component(1);
  world.up("actor/0");
  awaits(world, 0, "actor/1");
  expect(world.state.standstill().text).toContain("waits for a message");
  world.die("actor/0");
  expect(world.state.standstill().text).not.toContain("message");
});
