import fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { RunnerEffect } from "../../src/runner/runner-messages.ts";
import { limits, RunnerWorld } from "../runner/runner-world.ts";

const device = (index: number) => `node:0/cpu:${index}`;

/** Components by name, with the devices of each of their ranks. */
function start(components: Record<string, number[]>, options = limits, restart: "rank" | "group" = "rank") {
  const world = new RunnerWorld(options);
  for (const component of Object.keys(components))
    world.feed({ type: "add-component", component, restart, resizes: false, replays: [] });
  const layout = Object.entries(components).map(([name, devices]) => [
    name,
    { ranks: devices.map((index) => ({ node: "node:0", devices: [device(index)] })) },
  ]);
  world.feed({ type: "lay-out", components: Object.fromEntries(layout) });
  return world;
}

function setUp(world: RunnerWorld, worker: string, memoryBytes = 0): readonly RunnerEffect[] {
  const id = world.id(worker);
  world.feed({ type: "launched", ...id });
  world.feed({ type: "connected", ...id });
  return world.feed({ type: "ready", ...id, memoryBytes, loads: true });
}
const loaded = (world: RunnerWorld, worker: string, memoryBytes = 10) =>
  world.feed({ type: "onloaded", ...world.id(worker), memoryBytes });
const workersOf = (world: RunnerWorld, type: "onload" | "offload" | "up") =>
  world.all(type).map(({ worker }) => worker);

describe("a group that loads", () => {
  test("RK4, EX6: gets its devices together once all of its ranks are set up, and is up when it is loaded", () => {
    const world = start({ actor: [0, 1] });
    setUp(world, "actor/1");
    expect(workersOf(world, "onload")).toEqual([]);
    setUp(world, "actor/0");
    expect(workersOf(world, "onload").sort()).toEqual(["actor/0", "actor/1"]);
    loaded(world, "actor/0");
    expect(workersOf(world, "up")).toEqual([]);
    loaded(world, "actor/1");
    expect(workersOf(world, "up").sort()).toEqual(["actor/0", "actor/1"]);
    expect(world.state.lockSnapshot().holds).toEqual([]);
  });

  test("nobody else is loaded beside one whose memory nobody knows; afterwards what fits together stays", () => {
    const world = start({ rollout: [0], actor: [0] });
    setUp(world, "rollout/0");
    setUp(world, "actor/0");
    expect(workersOf(world, "onload")).toEqual(["rollout/0"]);
    loaded(world, "rollout/0");
    expect(workersOf(world, "offload")).toEqual(["rollout/0"]);
    expect(workersOf(world, "onload")).toEqual(["rollout/0"]);
    world.feed({ type: "offloaded", ...world.id("rollout/0") });
    expect(workersOf(world, "onload")).toEqual(["rollout/0", "actor/0"]);
    loaded(world, "actor/0");
    expect(workersOf(world, "up")).toEqual(["rollout/0", "actor/0"]);
  });

  test("an estimate that fits beside the others spares them the offload", () => {
    const world = start({ rollout: [0], actor: [0] });
    setUp(world, "rollout/0", 10);
    loaded(world, "rollout/0");
    setUp(world, "actor/0", 10);
    expect(workersOf(world, "offload")).toEqual([]);
    expect(workersOf(world, "onload")).toEqual(["rollout/0", "actor/0"]);
  });

  test("S2: one that dies while it loads frees its devices, and loads again; with its group where they hold one state", () => {
    for (const restart of ["rank", "group"] as const) {
      const world = start({ actor: [0, 1], other: [0] }, limits, restart);
      setUp(world, "actor/0");
      setUp(world, "actor/1");
      loaded(world, "actor/1");
      setUp(world, "other/0");
      expect(workersOf(world, "onload")).not.toContain("other/0");
      world.die("actor/0");
      if (restart === "group") setUp(world, "actor/1");
      setUp(world, "actor/0");
      const isUp = () => workersOf(world, "up").includes("actor/0");
      for (let i = 0; i < 10 && !isUp(); i++) {
        for (const { worker, incarnation, type } of [...world.all("offload"), ...world.all("onload")])
          if (type === "offload") world.feed({ type: "offloaded", worker, incarnation });
          else world.feed({ type: "onloaded", worker, incarnation, memoryBytes: 10 });
      }
      expect(new Set(workersOf(world, "up"))).toEqual(new Set(["actor/0", "actor/1", "other/0"]));
      expect(world.state.lockSnapshot().holds).toEqual([]);
    }
  });

  test("S3: a load that hangs has a deadline; a wait for its devices has the lock's", () => {
    const world = start({ actor: [0] });
    setUp(world, "actor/0");
    world.nowMs = 1000;
    world.feed({ type: "tick" });
    expect(world.all("end-process")).toMatchObject([
      { worker: "actor/0", verdict: { message: expect.stringContaining("was not loaded within") } },
    ]);

    const short = start(
      { rollout: [0], actor: [0] },
      { ...limits, supervision: { ...limits.supervision, lockTimeoutMs: 500 } },
    );
    setUp(short, "rollout/0");
    setUp(short, "actor/0");
    short.nowMs = 600;
    short.feed({ type: "tick" });
    expect(short.all("end-process")).toMatchObject([
      { worker: "rollout/0", verdict: { code: "lock.timeout" } },
      { worker: "actor/0", verdict: { code: "lock.timeout" } },
    ]);
  });
});

test("L1: whatever the order of starts, swaps and deaths, no two load on a device at once, and all are up in the end", () => {
  const size = fc.record({
    rollout: fc.array(fc.nat(1), { minLength: 1, maxLength: 3 }),
    actor: fc.array(fc.nat(1), { minLength: 1, maxLength: 3 }),
  });
  fc.assert(
    fc.property(
      size,
      fc.constantFrom("rank" as const, "group" as const),
      fc.infiniteStream(fc.nat(1000)),
      fc.nat(3),
      (sizes, restart, picks, numDeaths) => {
        const world = start(sizes, { ...limits, supervision: { ...limits.supervision, maxRestarts: 100 } }, restart);
        const placeOf = (worker: string) => world.state.rank(worker)?.place.devices[0] as string;
        /** by worker, what its process is to do next */
        const due = new Map<string, { incarnation: number; act: () => void }>();
        const resident = new Map<string, "loading" | "loaded">();
        let seen = 0;
        let deaths = numDeaths;
        const look = () => {
          for (const effect of world.effects.slice(seen)) {
            if (effect.type === "launch") {
              const { worker } = effect;
              due.set(worker, { incarnation: effect.incarnation, act: () => void setUp(world, worker) });
            } else if (effect.type === "onload") {
              const { worker } = effect;
              const mates = [...resident].filter(([other]) => other !== worker && placeOf(other) === placeOf(worker));
              const strangers = mates.filter(([other]) => other.split("/")[0] !== worker.split("/")[0]);
              expect(strangers).toEqual([]);
              resident.set(worker, "loading");
              const act = () => {
                resident.set(worker, "loaded");
                loaded(world, worker);
              };
              due.set(worker, { incarnation: effect.incarnation, act });
            } else if (effect.type === "offload") {
              const { worker } = effect;
              const act = () => {
                resident.delete(worker);
                world.feed({ type: "offloaded", ...world.id(worker) });
              };
              due.set(worker, { incarnation: effect.incarnation, act });
            } else if (effect.type === "discard") {
              resident.delete(effect.worker);
              if (due.get(effect.worker)?.incarnation === effect.incarnation) due.delete(effect.worker);
            }
          }
          seen = world.effects.length;
        };
        look();
        const pick = () => picks.next().value as number;
        while (due.size > 0) {
          const worker = [...due.keys()][pick() % due.size] as string;
          if (deaths > 0 && pick() % 5 === 0 && resident.has(worker)) {
            deaths--;
            world.die(worker);
          } else {
            const { act } = due.get(worker) as { act: () => void };
            due.delete(worker);
            act();
          }
          look();
        }
        expect(world.state.ranks.map(({ phase }) => phase)).toEqual(world.state.ranks.map(() => "ready"));
        expect(world.state.lockSnapshot().holds).toEqual([]);
      },
    ),
  );
});
