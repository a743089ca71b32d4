import { expect, test } from "vitest";
import { limits, RunnerWorld } from "../runner/runner-world.ts";

const { supervision, rejoinMs } = limits;
const startTimeoutMs = supervision.startTimeoutMs;

function at(world: RunnerWorld, nowMs: number): void {
  world.nowMs = nowMs;
  world.feed({ type: "tick" });
}

test("RT1: a rank without a place waits as long as its own limit says, however short that of starts is, and then starts", () => {
  const placeWaitMs = 50 * startTimeoutMs;
  const world = new RunnerWorld({ placeWaitMs });
  world.component(1);
  world.up("actor/0");
  world.nodes();
  world.die("actor/0");
  for (let nowMs = 0; nowMs < rejoinMs + placeWaitMs; nowMs += startTimeoutMs / 2) at(world, nowMs);
  expect(world.state.failure).toBeUndefined();
  expect(world.state.rank("actor/0")?.phase).toBe("placing");
  expect(world.all("wake").at(-1)?.atMs).toBe(rejoinMs + placeWaitMs);
  world.nodes("node:1");
  expect(world.all("moved").at(-1)?.to.node).toBe("node:1");
  world.up("actor/0");
  expect(world.state.rank("actor/0")?.phase).toBe("ready");
});

test("RT1: without a place in that time the run ends, naming the limit, also where that of starts is longer", () => {
  const world = new RunnerWorld({ placeWaitMs: startTimeoutMs / 4 });
  world.component(1);
  world.up("actor/0");
  world.nodes();
  world.die("actor/0");
  at(world, rejoinMs + startTimeoutMs / 4 - 1);
  expect(world.state.failure).toBeUndefined();
  at(world, rejoinMs + startTimeoutMs / 4);
  expect(world.state.failure?.message).toBe(
    "no node is left for 'actor/0': 'node:0' is gone, and within cluster.placeWaitMs (250 ms) no other had devices like node:0/cpu:0 with room for it; start a node agent, then 'treadle resume', or raise that limit",
  );
});

test("RT1: a start that waits for a rank without a place is not late; its time begins when there is one", () => {
  const world = new RunnerWorld({ placeWaitMs: 50 * startTimeoutMs });
  world.nodes("node:0", "node:1");
  world.feed({ type: "add-component", component: "actor", restart: "group", resizes: false, replays: [] });
  const devices = ["node:0/cpu:0", "node:0/cpu:1", "node:1/cpu:0"];
  const ranks = devices.map((device) => ({ node: device.split("/")[0] as string, devices: [device] }));
  world.feed({ type: "lay-out", components: { actor: { ranks } } });
  for (const index of ranks.keys()) {
    const id = world.id(`actor/${index}`);
    world.feed({ type: "launched", ...id });
    world.feed({ type: "connected", ...id });
    world.feed({ type: "ready", ...id, memoryBytes: 2 ** 52 }); // together on a device they have no room
  }
  world.nodes("node:0");
  world.die("actor/2");
  const first = world.id("actor/0");
  world.feed({ type: "launched", ...first });
  world.feed({ type: "connected", ...first });
  world.feed({ type: "awaits", ...first, messages: [{ from: "actor/2", what: "rendezvous" }] });
  for (let nowMs = 0; nowMs < 40 * startTimeoutMs; nowMs += startTimeoutMs / 2) at(world, nowMs);
  expect(world.state.rank("actor/2")?.phase).toBe("placing");
  expect(world.all("end-process")).toEqual([]);
  world.nodes("node:0", "node:1");
  const placedMs = world.nowMs;
  world.feed({ type: "launched", ...world.id("actor/2") });
  at(world, placedMs + startTimeoutMs / 4);
  expect(world.all("end-process")).toEqual([]);
  at(world, placedMs + startTimeoutMs);
  expect(world.all("end-process").map(({ worker }) => worker)).toContain("actor/0");
});

test("RT3: a rank moves to no device of what it is to be apart from, unless the two shared devices before", () => {
  const placed = (...devices: string[]) => ({
    ranks: devices.map((device) => ({ node: device.split("/")[0] as string, devices: [device] })),
  });
  const apart = (other: string, component: string) =>
    ({ type: "add-component", component, restart: "rank", resizes: false, replays: [], apart: [other] }) as const;
  const run = (judge: string) => {
    const world = new RunnerWorld({ placeWaitMs: 1000 });
    world.nodes("node:0", "node:1");
    world.feed(apart("judge", "actor"));
    world.feed(apart("actor", "judge"));
    const components = { actor: placed("node:0/cpu:0", "node:0/cpu:1"), judge: placed(judge) };
    world.feed({ type: "lay-out", components });
    for (const worker of ["actor/0", "actor/1", "judge/0"]) world.up(worker);
    world.nodes("node:1");
    for (const worker of ["actor/0", "actor/1"]) world.die(worker);
    at(world, rejoinMs);
    return world;
  };
  const moved = run("node:1/cpu:1").all("moved");
  expect(moved.map(({ to }) => to.devices)).toEqual([["node:1/cpu:0"], ["node:1/cpu:0"]]);
  const together = run("node:0/cpu:1");
  together.die("judge/0");
  at(together, rejoinMs + 1);
  expect(new Set(together.all("moved").flatMap(({ to }) => to.devices)).size).toBe(2);
  const crowded = new RunnerWorld({ placeWaitMs: 1000 });
  crowded.feed(apart("judge", "actor"));
  crowded.feed(apart("actor", "judge"));
  crowded.nodes("node:0", "node:1");
  const components = { actor: placed("node:0/cpu:0"), judge: placed("node:1/cpu:0", "node:1/cpu:1") };
  crowded.feed({ type: "lay-out", components });
  for (const worker of ["actor/0", "judge/0", "judge/1"]) crowded.up(worker);
  crowded.nodes("node:1");
  crowded.die("actor/0");
  at(crowded, rejoinMs + 1000);
  expect(crowded.state.failure?.message).toContain(
    "had devices like node:0/cpu:0 with room for it, apart from 'judge';",
  );
});
