/** Runs that compute and pause for drawn times, and obey; what each waits is held against its bound at every instant. */
import fc from "fast-check";
import { expect, test } from "vitest";
import { DevicePoolState, type PoolEffect, type PoolInput } from "../../src/index.ts";
import { randomOf } from "../device-lock/drawn-workflows.ts";

const lastMs = 4_000;
const runSpec: fc.Arbitrary<Spec> = fc.record({
  maxSlowdown: fc.constantFrom(undefined, 1.1, 1.25, 1.5, 2, 3, 6),
  /** the longest that it computes without being able to stop, and the longest that it pauses */
  sectionMs: fc.integer({ min: 1, max: 20 }),
  pauseMs: fc.constantFrom(0, 0, 1, 30),
  priority: fc.nat(2),
  weight: fc.constantFrom(0.5, 1, 2),
});
const specs = fc.array(runSpec, { minLength: 2, maxLength: 4 });

type Spec = {
  readonly maxSlowdown: number | undefined;
  readonly sectionMs: number;
  readonly pauseMs: number;
  readonly priority: number;
  readonly weight: number;
};
type Living = Spec & {
  readonly run: string;
  phase: "out" | "waits" | "computes" | "pauses";
  untilMs: number;
  token: number | undefined;
  isWanted: boolean;
  drains: boolean;
  thereMs: number;
  waitedMs: number;
};

class World {
  readonly runs: readonly Living[];
  readonly #pool: DevicePoolState;
  readonly #random: () => number;
  #nowMs = 0;

  constructor(drawn: readonly Spec[], turnMs: number, patienceMs: number, seed: number) {
    const never = Number.MAX_SAFE_INTEGER;
    const limits = { residents: drawn.length, turnMs, patienceMs, yieldMs: never, beatLimitMs: never };
    this.#pool = new DevicePoolState(limits);
    this.#random = randomOf(seed);
    const none = { untilMs: 0, token: undefined, isWanted: false, drains: false, thereMs: 0, waitedMs: 0 };
    this.runs = drawn.map((spec, i) => ({ ...spec, run: `${i}`, phase: "out", ...none }));
    for (const { run, maxSlowdown, priority, weight } of this.runs) {
      const devices = [{ id: "gpu:0", memoryMiB: 100 }];
      this.#send({ type: "join", run, member: { priority, weight, maxSlowdown, devices } });
    }
  }

  pass(): void {
    this.#nowMs++;
    for (const living of this.runs) {
      if (living.phase === "out") continue;
      living.thereMs++;
      if (living.phase === "waits") living.waitedMs++;
    }
    for (const living of this.runs) this.#goOn(living);
    this.#send({ type: "tick" });
  }

  #goOn(living: Living): void {
    const { run, phase, untilMs, pauseMs } = living;
    if (phase === "pauses" && living.token !== undefined && (living.isWanted || living.drains)) this.#release(living);
    if (phase === "out" || phase === "waits" || this.#nowMs < untilMs) return;
    if (phase === "computes" && pauseMs > 0) {
      living.phase = "pauses";
      living.untilMs = this.#nowMs + this.#upTo(pauseMs);
      return;
    }
    if (living.drains) this.#release(living);
    if (living.token === undefined) {
      living.phase = "waits";
      this.#send({ type: "request", run, devices: ["gpu:0"] });
    } else this.#compute(living);
  }

  #compute(living: Living): void {
    living.phase = "computes";
    living.untilMs = this.#nowMs + this.#upTo(living.sectionMs);
  }

  #release(living: Living): void {
    const { run, token } = living;
    Object.assign(living, { token: undefined, isWanted: false, drains: false });
    this.#send({ type: "release", run, token: token as number });
  }

  #upTo(most: number): number {
    return 1 + Math.floor(this.#random() * most);
  }

  #send(input: PoolInput): void {
    for (const effect of this.#pool.handle(input, this.#nowMs)) this.#act(effect);
  }

  #act(effect: PoolEffect): void {
    const living = this.runs[Number(effect.run)] as Living;
    if (effect.type === "admitted") Object.assign(living, { phase: "pauses", untilMs: this.#nowMs });
    else if (effect.type === "granted") {
      living.token = effect.lease.token;
      this.#compute(living);
    } else if (effect.type === "wanted") {
      living.isWanted = true;
      living.drains ||= effect.drains;
    } else throw new Error(JSON.stringify(effect));
  }
}

test("no run waits for longer than its bound allows, but for what others need to drain and a turn of each (PD8)", () => {
  fc.assert(
    fc.property(specs, fc.integer({ min: 1, max: 60 }), fc.integer({ min: 1, max: 500 }), fc.integer(), (...drawn) => {
      const [all, turnMs, patienceMs, seed] = drawn;
      const world = new World(all, turnMs, patienceMs, seed);
      // A holder that pauses gives back at once, and one that computes when its section is over.
      const drainMs = 2 + Math.max(...all.map(({ sectionMs }) => sectionMs));
      for (let ms = 0; ms < lastMs; ms++) {
        world.pass();
        for (const living of world.runs) {
          const { maxSlowdown, thereMs, waitedMs } = living;
          if (maxSlowdown === undefined) continue;
          const others = world.runs.filter((each) => each !== living && each.maxSlowdown !== undefined);
          const turnsMs = others.reduce((sum, { weight }) => sum + turnMs * weight + drainMs, 0);
          const owedMs = maxSlowdown * waitedMs - (maxSlowdown - 1) * thereMs;
          const mostMs = maxSlowdown * (drainMs + turnsMs);
          if (owedMs > mostMs) expect.fail(`'${living.run}' owes ${owedMs} of at most ${mostMs} ms after ${ms} ms`);
        }
      }
    }),
    { numRuns: 60 },
  );
});

test("a run without a bound goes on beside those that have one (PD5, PD8)", () => {
  const spec = { sectionMs: 10, pauseMs: 0, priority: 0, weight: 1 };
  const bounded = [2, 3].map((maxSlowdown) => ({ ...spec, maxSlowdown }));
  const world = new World([...bounded, { ...spec, maxSlowdown: undefined }], 20, 100, 1);
  for (let ms = 0; ms < lastMs; ms++) world.pass();
  const [, , free] = world.runs as [Living, Living, Living];
  // The others need 1/2 + 1/3 of the time at most.
  expect(1 - free.waitedMs / free.thereMs).toBeGreaterThan((1 - 1 / 2 - 1 / 3) / 2);
});

test("bounds that cannot be kept together are not promised together: one run waits for the other's end (PD1, PD8)", () => {
  const spec = { sectionMs: 10, pauseMs: 0, priority: 0, weight: 1 };
  const phases = (...all: (number | undefined)[]) =>
    new World(
      all.map((maxSlowdown) => ({ ...spec, maxSlowdown })),
      20,
      100,
      1,
    ).runs.map(({ phase }) => phase);
  expect(phases(2, 2)).toEqual(["pauses", "pauses"]);
  expect(phases(2, 1.5)).toEqual(["pauses", "out"]);
  expect(phases(1, undefined)).toEqual(["pauses", "out"]);
  expect(phases(1.5, undefined, 3)).toEqual(["pauses", "pauses", "out"]);
  expect(phases(3, 3, 3)).toEqual(["pauses", "pauses", "pauses"]);
});
