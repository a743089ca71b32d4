/** Runs and time drawn at random; an account kept from inputs and effects alone, by the plain rules, judges every step. */
import type { DeviceLease } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";
import { DevicePoolState, type PoolEffect, type PoolInput, type PoolLimits } from "../../src/index.ts";

const memoryOf: Readonly<Record<string, number>> = { d0: 100, d1: 100, d2: 60 };
const devices = Object.keys(memoryOf);
const runs = ["r0", "r1", "r2", "r3", "r4"];
const priorityOf = (run: string): number => Number(run.slice(1)) % 3;
const weightOf = (run: string): number => 1 + (Number(run.slice(1)) % 2);

const limits: fc.Arbitrary<PoolLimits> = fc.record({
  residents: fc.integer({ min: 1, max: 4 }),
  turnMs: fc.integer({ min: 1, max: 30 }),
  patienceMs: fc.integer({ min: 1, max: 60 }),
  yieldMs: fc.integer({ min: 1, max: 30 }),
  beatLimitMs: fc.integer({ min: 30, max: 80 }),
});
/** of each run */
const bounds = fc.array(fc.constantFrom(undefined, undefined, 1, 1.5, 2, 4), { minLength: 5, maxLength: 5 });
const run = fc.constantFrom(...runs);
const subset = fc.subarray(devices, { minLength: 1 });
/** No run is restored here, nor ended by whoever has the pool, nor does any compute beside another. */
type Heard = Exclude<PoolInput, { type: "restore" | "end" | "uses" | "shares" | "worked" }>;
type Step = { readonly afterMs: number } & (
  | { readonly do: "join"; readonly run: string; readonly devices: string[]; readonly memoryMiB: number | undefined }
  | { readonly do: "request"; readonly run: string; readonly devices: string[] }
  | { readonly do: "beat" | "release" | "stale-release" | "gone"; readonly run: string }
  | { readonly do: "tick" }
);
const afterMs = fc.oneof({ weight: 4, arbitrary: fc.constant(0) }, { weight: 1, arbitrary: fc.nat(25) });
const memoryMiB = fc.constantFrom(undefined, undefined, 20, 45, 60, 90);
const steps: fc.Arbitrary<Step[]> = fc.array(
  fc.oneof(
    {
      weight: 3,
      arbitrary: fc.record({ do: fc.constant("join" as const), run, devices: subset, memoryMiB, afterMs }),
    },
    { weight: 7, arbitrary: fc.record({ do: fc.constant("request" as const), run, devices: subset, afterMs }) },
    { weight: 6, arbitrary: fc.record({ do: fc.constantFrom("beat" as const, "release" as const), run, afterMs }) },
    {
      weight: 2,
      arbitrary: fc.record({ do: fc.constantFrom("gone" as const, "stale-release" as const), run, afterMs }),
    },
    { weight: 2, arbitrary: fc.record({ do: fc.constant("tick" as const), afterMs }) },
  ),
  { maxLength: 80 },
);

type Known = {
  readonly run: string;
  readonly devices: readonly string[];
  readonly memoryMiB: number | undefined;
  isResident: boolean;
  isEnding: boolean;
  /** as a resident, and how long of it a request was open and nothing leased */
  thereMs: number;
  waitedMs: number;
  beatMs: number;
  asked: Asked[];
  held: Held[];
};
type Asked = { readonly devices: readonly string[]; readonly sinceMs: number; readonly order: number };
type Held = {
  readonly lease: DeviceLease;
  readonly turnEndsMs: number;
  drainsByMs: number | undefined;
  wasTold: boolean;
};
type Waiter = { readonly known: Known; readonly asked: Asked };

const meet = (a: readonly string[], b: readonly string[]) => a.some((device) => b.includes(device));

class Account {
  readonly pool: DevicePoolState;
  readonly limits: PoolLimits;
  readonly known = new Map<string, Known>();
  readonly everGranted = new Set<string>();
  readonly #bounds: readonly (number | undefined)[];
  nowMs = 0;
  #accountedMs = 0;
  #order = 0;
  #lastToken = 0;

  constructor(drawn: PoolLimits, drawnBounds: readonly (number | undefined)[] = []) {
    this.limits = drawn;
    this.#bounds = drawnBounds;
    this.pool = new DevicePoolState(drawn);
  }

  boundOf(name: string): number | undefined {
    return this.#bounds[runs.indexOf(name)];
  }

  /** Milliseconds of waiting beyond what the bound allows for the time that the run has not waited (PD8). */
  #owedMs({ run: name, isResident, isEnding, thereMs, waitedMs }: Known): number {
    const bound = this.boundOf(name);
    if (bound === undefined || !isResident || isEnding) return Number.NEGATIVE_INFINITY;
    return waitedMs - (bound - 1) * (thereMs - waitedMs);
  }

  #isBeyond(known: Known): boolean {
    return this.#owedMs(known) > 0;
  }

  #isKept({ known, asked }: Waiter): boolean {
    const keepers = [...this.known.values()].filter((each) => this.#isBeyond(each));
    return !this.#isBeyond(known) && keepers.some((each) => meet(asked.devices, each.devices));
  }

  send(input: Heard): void {
    const passedMs = this.nowMs - this.#accountedMs;
    this.#accountedMs = this.nowMs;
    for (const known of this.known.values()) {
      if (!known.isResident) continue;
      known.thereMs += passedMs;
      if (known.asked.length > 0 && known.held.length === 0) known.waitedMs += passedMs;
    }
    const effects = this.pool.handle(input, this.nowMs);
    const isRefused = effects.some(({ type }) => type === "refused");
    expect(isRefused, `refused ${JSON.stringify(input)}`).toBe(!this.#isAllowed(input));
    if (!isRefused) this.#note(input);
    this.#expectEnds(effects);
    this.#expectAdmissions(effects);
    this.#expectGrants(effects);
    for (const effect of effects) if (effect.type === "wanted") this.#judgeWanted(effect);
    this.#check();
  }

  #isAllowed(input: Heard): boolean {
    if (input.type === "tick" || input.type === "gone") return true;
    const known = this.known.get(input.run);
    if (input.type === "join") {
      const { member } = input;
      const fits = member.devices.every(({ id }) => (member.memoryPerDeviceMiB ?? 0) <= memoryOf[id]!);
      return known === undefined && fits;
    }
    if (known === undefined || known.isEnding) return false;
    if (input.type === "beat") return true;
    if (input.type === "release") return known.held.some(({ lease }) => lease.token === input.token); // PD4
    const own = [...known.held.map(({ lease }) => lease), ...known.asked];
    const isFree = known.isResident && !own.some(({ devices: taken }) => meet(taken, input.devices)); // PD3
    return isFree && input.devices.every((device) => known.devices.includes(device));
  }

  #note(input: Heard): void {
    if (input.type === "tick") return;
    const known = this.known.get(input.run) as Known;
    const sinceMs = this.nowMs;
    if (input.type === "join") {
      const names = input.member.devices.map(({ id }) => id);
      const asked = { devices: names, sinceMs, order: ++this.#order };
      const counts = { thereMs: 0, waitedMs: 0 };
      const base = { isResident: false, isEnding: false, ...counts, beatMs: sinceMs, asked: [asked], held: [] };
      this.known.set(input.run, {
        ...base,
        run: input.run,
        devices: names,
        memoryMiB: input.member.memoryPerDeviceMiB,
      });
    } else if (input.type === "gone") this.known.delete(input.run);
    else if (input.type === "beat") known.beatMs = sinceMs;
    else if (input.type === "release") known.held = known.held.filter(({ lease }) => lease.token !== input.token);
    else known.asked.push({ devices: input.devices, sinceMs, order: ++this.#order });
  }

  /** PD6, PD7: those that are late, and nobody else. */
  #expectEnds(effects: readonly PoolEffect[]): void {
    const late = [...this.known.values()].filter(
      ({ isEnding, beatMs, held }) =>
        !isEnding &&
        (this.nowMs - beatMs >= this.limits.beatLimitMs ||
          held.some(({ drainsByMs }) => drainsByMs !== undefined && this.nowMs >= drainsByMs)),
    );
    const ended = effects.flatMap((effect) => (effect.type === "end" ? [effect.run] : []));
    expect(ended.sort(), "PD6, PD7").toEqual(late.map((each) => each.run).sort());
    for (const each of late) Object.assign(each, { isEnding: true, asked: [] });
  }

  #isOverdue({ sinceMs }: Asked): boolean {
    return this.nowMs - sinceMs >= this.limits.patienceMs;
  }

  #inLine(isResident: boolean): Waiter[] {
    const rank = ({ known, asked }: Waiter) =>
      this.#isOverdue(asked) ? Number.POSITIVE_INFINITY : priorityOf(known.run);
    const all = [...this.known.values()]
      .filter((each) => each.isResident === isResident)
      .flatMap((known) => known.asked.map((asked): Waiter => ({ known, asked })))
      .sort((a, b) => (rank(a) === rank(b) ? a.asked.order - b.asked.order : rank(b) - rank(a)));
    const beyond = all.filter(({ known }) => this.#isBeyond(known));
    beyond.sort((a, b) => {
      const differs = this.#owedMs(b.known) - this.#owedMs(a.known);
      return differs === 0 ? a.asked.order - b.asked.order : differs;
    });
    return [...beyond, ...all.filter((each) => !beyond.includes(each))];
  }

  #mayReside(all: readonly Known[]): boolean {
    return devices.every((device) => {
      const here = all.filter((each) => each.devices.includes(device));
      const parts = here.map((each) => each.memoryMiB ?? memoryOf[device]! / this.limits.residents);
      const fits = here.length <= this.limits.residents && parts.reduce((a, b) => a + b, 0) <= memoryOf[device]! + 1e-6;
      const known = here.flatMap((each) => this.boundOf(each.run) ?? []);
      const needed = known.reduce((sum, bound) => sum + 1 / bound, 0);
      const leavesSome = known.length === here.length || here.length < 2 || needed < 1 - 1e-6;
      return fits && needed < 1 + 1e-6 && leavesSome;
    });
  }

  /** PD1. */
  #expectAdmissions(effects: readonly PoolEffect[]): void {
    const there = [...this.known.values()].filter((each) => each.isResident || each.isEnding);
    const kept = new Set<string>();
    const expected: string[] = [];
    for (const { known: each } of this.#inLine(false)) {
      if (each.devices.every((device) => !kept.has(device)) && this.#mayReside([...there, each])) {
        there.push(each);
        expected.push(each.run);
        Object.assign(each, { isResident: true, asked: [] });
      } else for (const device of each.devices) kept.add(device);
    }
    expect(
      effects.flatMap((effect) => (effect.type === "admitted" ? [effect.run] : [])),
      "PD1",
    ).toEqual(expected);
  }

  /** PD2, PD3, PD5. */
  #expectGrants(effects: readonly PoolEffect[]): void {
    const kept = new Set(this.#leased());
    const expected = this.#inLine(true).filter((each) => {
      const { devices: wished } = each.asked;
      const isFree = !this.#isKept(each) && wished.every((device) => !kept.has(device));
      for (const device of wished) kept.add(device);
      return isFree;
    });
    const grants = effects.flatMap((effect) => (effect.type === "granted" ? [effect] : []));
    expect(
      grants.map((effect) => effect.run),
      "PD5",
    ).toEqual(expected.map(({ known }) => known.run));
    for (const [at, { lease }] of grants.entries()) {
      const { known, asked } = expected[at]!;
      expect(lease.token, "PD4").toBeGreaterThan(this.#lastToken);
      this.#lastToken = lease.token;
      expect(lease.devices, "PD3").toEqual(asked.devices);
      const turnEndsMs = this.nowMs + this.limits.turnMs * weightOf(known.run);
      known.asked = known.asked.filter((each) => each !== asked);
      known.held.push({ lease, turnEndsMs, drainsByMs: undefined, wasTold: false });
      this.everGranted.add(known.run);
    }
  }

  #leased(): string[] {
    return [...this.known.values()].flatMap(({ held }) => held.flatMap(({ lease }) => lease.devices));
  }

  /** PD6. */
  #judgeWanted({ run: name, token, drains }: Extract<PoolEffect, { type: "wanted" }>): void {
    const holder = this.known.get(name)!;
    const held = holder.held.find(({ lease }) => lease.token === token)!;
    expect(held.drainsByMs, "told to drain once").toBeUndefined();
    if (!drains) expect(held.wasTold, "told once").toBe(false);
    const waiters = this.#inLine(true).filter(({ asked }) => meet(asked.devices, held.lease.devices));
    expect(
      waiters.some((each) => !this.#isKept(each)),
      "somebody waits, for holders alone",
    ).toBe(true);
    held.wasTold = true;
    if (!drains) return;
    const isHolderBeyond = this.#isBeyond(holder);
    const mayBeTold = ({ known, asked }: Waiter) =>
      this.#isBeyond(known) ? !isHolderBeyond : this.#isOverdue(asked) || priorityOf(known.run) > priorityOf(name);
    expect(this.nowMs >= held.turnEndsMs || waiters.some(mayBeTold), "PD6").toBe(true);
    held.drainsByMs = this.nowMs + this.limits.yieldMs;
  }

  #check(): void {
    const all = [...this.known.values()];
    if (!this.#mayReside(all.filter((each) => each.isResident))) throw new Error("PD1");
    const leased = this.#leased();
    if (new Set(leased).size < leased.length) throw new Error("PD2");
    const current = all.flatMap(({ run: name, held, isEnding }) =>
      held.length > 0 && !isEnding ? [[name, held.map(({ lease }) => lease)]] : [],
    );
    expect([...this.pool.leases], "PD4").toEqual(current);
  }

  do(step: Step): void {
    this.nowMs += step.afterMs;
    if (step.do === "tick") this.send({ type: "tick" });
    else if (step.do === "request") this.send({ type: "request", run: step.run, devices: step.devices });
    else if (step.do === "release" || step.do === "stale-release") {
      const token = this.known.get(step.run)?.held[0]?.lease.token ?? 2;
      this.send({ type: "release", run: step.run, token: step.do === "release" ? token : token - 1 });
    } else if (step.do === "join") {
      const own = step.devices.map((id) => ({ id, memoryMiB: memoryOf[id]! }));
      const [priority, weight] = [priorityOf(step.run), weightOf(step.run)];
      const member = { devices: own, priority, weight, maxSlowdown: this.boundOf(step.run) };
      const withMemory = step.memoryMiB === undefined ? member : { ...member, memoryPerDeviceMiB: step.memoryMiB };
      this.send({ type: "join", run: step.run, member: withMemory });
    } else this.send({ type: step.do, run: step.run });
  }
}

test("whatever happens, devices are shared as they may be, by the plain rules (PD1, PD2, PD3, PD4, PD5, PD6, PD7, PD8)", () => {
  fc.assert(
    fc.property(limits, bounds, steps, (drawn, drawnBounds, all) => {
      const account = new Account(drawn, drawnBounds);
      for (const step of all) account.do(step);
    }),
    { numRuns: 400 },
  );
});

test("nobody starves, though holders never yield and ask again at once (PD3, PD5, PD6)", () => {
  fc.assert(
    fc.property(limits, fc.array(subset, { minLength: 5, maxLength: 5 }), (drawn, wishes) => {
      const account = new Account({ ...drawn, residents: 5 });
      // Before each of the four others may come a turn, or a patience, and a yielding; twice, since sets overlap.
      const turnMs = Math.max(drawn.patienceMs, 2 * drawn.turnMs) + drawn.yieldMs + 2;
      const endsMs = account.nowMs + 2 * runs.length * turnMs;
      while (account.nowMs < endsMs && account.everGranted.size < runs.length) {
        account.nowMs++;
        for (const name of runs) {
          const known = account.known.get(name);
          if (known?.isEnding) account.send({ type: "gone", run: name });
          if (!account.known.has(name)) {
            account.do({ do: "join", run: name, devices, memoryMiB: undefined, afterMs: 0 });
          } else account.send({ type: "beat", run: name });
          const { held, asked, isResident } = account.known.get(name)!;
          if (isResident && held.length === 0 && asked.length === 0)
            account.do({ do: "request", run: name, devices: wishes[runs.indexOf(name)]!, afterMs: 0 });
        }
      }
      for (const name of runs) expect(account.everGranted.has(name), name).toBe(true);
    }),
    { numRuns: 40 },
  );
});
