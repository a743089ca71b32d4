/** Several processes have a pool one after the other, and for a while at once: what one grants no other has granted. */
import type { DeviceLease, PoolMember } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { DevicePoolState, type PoolEffect, type PoolInput } from "../../src/index.ts";

const never = 1_000_000;
const limits = { residents: 4, turnMs: 10, patienceMs: 20, yieldMs: never, beatLimitMs: never };
const memberOf = (devices: readonly string[], memory: Partial<PoolMember> = {}): PoolMember => ({
  ...{ priority: 0, weight: 1, devices: devices.map((id) => ({ id, memoryMiB: 100 })) },
  ...memory,
});

describe("a restored run", () => {
  const both = memberOf(["gpu:0", "gpu:1"]);
  const half = { "gpu:0": 50, "gpu:1": 50 };

  function restored() {
    const state = new DevicePoolState({ ...limits, residents: 2, beatLimitMs: 100 }, 1000);
    const at = (nowMs: number, input: PoolInput): readonly PoolEffect[] => state.handle(input, nowMs);
    at(0, { type: "restore", run: "a", member: both, memoryMiB: half });
    at(0, { type: "join", run: "b", member: both });
    return { state, at };
  }
  const types = (effects: readonly PoolEffect[]) => effects.map(({ type, run }) => `${type} ${run}`);

  test("keeps all of its devices from others until it says which it has; what it has it keeps, by its old token (PD9)", () => {
    const { state, at } = restored();
    expect(at(1, { type: "request", run: "b", devices: ["gpu:1"] })).toEqual([]);
    expect(state.view(1)[1]?.waits?.on).toEqual({ type: "devices", runs: ["a"] });
    expect([...state.leases]).toEqual([]);
    const lease = { token: 7, devices: ["gpu:0"] };
    expect(at(2, { type: "join", run: "a", member: both, leases: [lease] })).toEqual([
      { type: "admitted", run: "a", memoryMiB: half },
      { type: "granted", run: "b", lease: { token: 1001, devices: ["gpu:1"] } },
    ]);
    expect(state.leases.get("a")).toEqual([lease]);
    expect(types(at(3, { type: "request", run: "b", devices: ["gpu:0"] }))).toEqual(["wanted a"]);
    expect(types(at(4, { type: "release", run: "a", token: 7 }))).toEqual(["granted b"]);
  });

  test("is ended when it says nothing, and its devices are free when nothing of it is left (PD2, PD7, PD9)", () => {
    const { at } = restored();
    at(1, { type: "request", run: "b", devices: ["gpu:1"] });
    at(60, { type: "beat", run: "b" });
    expect(types(at(100, { type: "tick" }))).toEqual(["end a"]);
    expect(types(at(101, { type: "join", run: "a", member: both }))).toEqual(["refused a"]);
    expect(types(at(102, { type: "gone", run: "a" }))).toEqual(["granted b"]);
  });

  test.each([
    ["a device that it did not join with", [{ token: 1, devices: ["gpu:2"] }]],
    ["a token that was never granted", [{ token: 1001, devices: ["gpu:0"] }]],
    ["one device twice", [1, 2].map((token) => ({ token, devices: ["gpu:0"] }))],
    ["one token twice", ["gpu:0", "gpu:1"].map((device) => ({ token: 1, devices: [device] }))],
  ])("that says it has %s is ended, and keeps its devices until it is gone (PD2, PD9)", (_, leases) => {
    const { at } = restored();
    at(1, { type: "request", run: "b", devices: ["gpu:1"] });
    expect(types(at(2, { type: "join", run: "a", member: both, leases }))).toEqual(["end a"]);
    expect(types(at(3, { type: "tick" }))).toEqual([]);
    expect(types(at(4, { type: "gone", run: "a" }))).toEqual(["granted b"]);
  });

  test("that says it has what another one has is ended; so is one with leases that nobody has a record of (PD9)", () => {
    const { at } = restored();
    at(1, { type: "restore", run: "c", member: both, memoryMiB: half });
    const leases = [{ token: 1, devices: ["gpu:0"] }];
    expect(types(at(2, { type: "join", run: "a", member: both, leases }))).toContain("admitted a");
    expect(types(at(3, { type: "join", run: "c", member: both, leases: [{ token: 2, devices: ["gpu:0"] }] }))).toEqual([
      "end c",
    ]);
    expect(types(at(4, { type: "join", run: "d", member: both, leases: [{ token: 3, devices: ["gpu:1"] }] }))).toEqual([
      "end d",
    ]);
  });

  test("has the memory that it was granted, whatever runs may have now (PD1)", () => {
    const { at } = restored();
    expect(types(at(1, { type: "join", run: "c", member: memberOf(["gpu:0"], { memoryPerDeviceMiB: 1 }) }))).toEqual(
      [],
    );
    expect(types(at(2, { type: "gone", run: "a" }))).toEqual(["admitted c"]);
  });
});

const devices = ["d0", "d1", "d2"];
const runs = [0, 1, 2, 3];
const steps = fc.array(
  fc.record({
    does: fc.constantFrom(
      "join",
      "ask",
      "ask",
      "release",
      "deliver",
      "deliver",
      "deliver",
      "open",
      "learn",
      "die",
      "time",
    ),
    run: fc.nat(runs.length - 1),
    devices: fc.subarray(devices, { minLength: 1 }),
    which: fc.nat(50),
  }),
  { maxLength: 150 },
);

/** What was recorded of each run that was admitted; and who wrote last. */
type Log = { readonly admitted: Map<string, Record<string, number>>; epoch: number };
type Run = {
  readonly name: string;
  epoch: number;
  hasJoined: boolean;
  isAlive: boolean;
  asked: (readonly string[])[];
  leases: DeviceLease[];
};
type Message = { readonly run: Run; readonly epoch: number } & (
  | { readonly to: "pool"; readonly input: PoolInput }
  | { readonly to: "run"; readonly effect: PoolEffect }
);

class World {
  readonly log: Log = { admitted: new Map(), epoch: 0 };
  readonly pools = new Map<number, DevicePoolState>();
  readonly runs: Run[] = runs.map((index) => ({
    ...{ name: `r${index}`, epoch: 0, hasJoined: false, isAlive: true, asked: [], leases: [] },
  }));
  /** in order for each run and pool */
  way: Message[] = [];
  nowMs = 0;

  /** PS3: what is recorded of what another process has opened meanwhile ends this one. */
  #mayRecord(epoch: number): boolean {
    if (epoch === this.log.epoch) return true;
    this.pools.delete(epoch);
    return false;
  }

  open(): void {
    const pool = new DevicePoolState(limits, ++this.log.epoch * 1000);
    this.pools.set(this.log.epoch, pool);
    for (const [run, memoryMiB] of this.log.admitted)
      pool.handle({ type: "restore", run, member: memberOf(devices), memoryMiB }, this.nowMs);
  }

  say(run: Run, input: PoolInput): void {
    this.way.push({ to: "pool", run, epoch: run.epoch, input });
  }

  /** PS4. */
  learn(run: Run): void {
    if (!run.isAlive || run.epoch === this.log.epoch) return;
    run.epoch = this.log.epoch;
    if (!run.hasJoined) return;
    this.say(run, { type: "join", run: run.name, member: memberOf(devices), leases: [...run.leases] });
    for (const asked of run.asked) this.say(run, { type: "request", run: run.name, devices: asked });
  }

  feed(epoch: number, input: PoolInput): void {
    const pool = this.pools.get(epoch);
    for (const effect of pool?.handle(input, this.nowMs) ?? []) {
      if (effect.type === "end") throw new Error(effect.why);
      if (effect.type === "refused") throw new Error(`${effect.why}: ${JSON.stringify(input)}`);
      const run = this.runs.find(({ name }) => name === effect.run) as Run;
      if (effect.type === "admitted" && !this.log.admitted.has(run.name)) {
        if (!this.#mayRecord(epoch)) return;
        this.log.admitted.set(run.name, effect.memoryMiB);
      }
      this.way.push({ to: "run", run, epoch, effect });
    }
  }

  deliver(which: number): void {
    const ways = [...new Set(this.way.map(({ run, epoch, to }) => `${run.name} ${epoch} ${to}`))];
    const way = ways[which % Math.max(1, ways.length)];
    const at = this.way.findIndex(({ run, epoch, to }) => `${run.name} ${epoch} ${to}` === way);
    const [message] = at < 0 ? [] : this.way.splice(at, 1);
    if (message === undefined || message.run.epoch !== message.epoch || !message.run.isAlive) return; // PS4
    if (message.to === "pool") this.feed(message.epoch, message.input);
    else if (message.effect.type === "granted") {
      const { lease } = message.effect;
      message.run.asked = message.run.asked.filter((asked) => asked.join() !== lease.devices.join());
      message.run.leases.push(lease);
    }
  }

  /** PS2: nothing of it is left, which every process that has the pool sees; the last one records it. */
  die(run: Run): void {
    Object.assign(run, { isAlive: false, leases: [], asked: [] });
    this.log.admitted.delete(run.name);
    for (const epoch of this.pools.keys()) this.feed(epoch, { type: "gone", run: run.name });
  }

  check(): void {
    const held = this.runs.flatMap(({ leases }) => leases.flatMap((lease) => lease.devices));
    expect(new Set(held).size, `a device is leased twice: ${held}`).toBe(held.length);
  }

  settle(): void {
    for (const run of this.runs) this.learn(run);
    for (let round = 0; this.way.length > 0 && round < 1000; round++) this.deliver(round);
  }
}

test("whoever has the pool, and whatever those had under way who had it before, no device is leased twice; in the end all get theirs (PD2, PD9)", () => {
  fc.assert(
    fc.property(steps, (all) => {
      const world = new World();
      world.open();
      for (const { does, run: index, devices: some, which } of all) {
        const run = world.runs[index] as Run;
        if (does === "open") world.open();
        else if (does === "deliver") world.deliver(which);
        else if (does === "learn") world.learn(run);
        else if (does === "time") {
          world.nowMs += which;
          for (const epoch of [...world.pools.keys()]) world.feed(epoch, { type: "tick" });
        } else if (!run.isAlive || run.epoch === 0) continue;
        else if (does === "die") world.die(run);
        else if (does === "join" && !run.hasJoined) {
          run.hasJoined = true;
          world.say(run, { type: "join", run: run.name, member: memberOf(devices) });
        } else if (does === "ask" && run.hasJoined && world.log.admitted.has(run.name)) {
          const own = [...run.asked, ...run.leases.map((lease) => lease.devices)].flat();
          if (some.some((device) => own.includes(device))) continue;
          run.asked.push(some);
          world.say(run, { type: "request", run: run.name, devices: some });
        } else if (does === "release" && run.leases.length > 0) {
          const [lease] = run.leases.splice(which % run.leases.length, 1);
          world.say(run, { type: "release", run: run.name, token: (lease as DeviceLease).token });
        }
        world.check();
      }
      for (let round = 0; round < 50; round++) {
        world.settle();
        world.check();
        for (const run of world.runs)
          for (const { token } of run.leases.splice(0)) world.say(run, { type: "release", run: run.name, token });
      }
      expect(world.runs.flatMap(({ asked }) => asked)).toEqual([]);
    }),
    { numRuns: 300 },
  );
});
