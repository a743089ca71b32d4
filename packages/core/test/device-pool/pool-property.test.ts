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
const run = fc.constantFrom(...runs);
const subset = fc.subarray(devices, { minLength: 1 });
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
  beatMs: number;
  asked: { devices: readonly string[]; sinceMs: number; order: number } | undefined;
  held: { lease: DeviceLease; turnEndsMs: number; drainsByMs: number | undefined; wasTold: boolean } | undefined;
};

class Account {
  readonly pool: DevicePoolState;
  readonly limits: PoolLimits;
  readonly known = new Map<string, Known>();
  readonly everGranted = new Set<string>();
  nowMs = 0;
  #order = 0;
  #lastToken = 0;

  constructor(drawn: PoolLimits) {
    this.limits = drawn;
    this.pool = new DevicePoolState(drawn);
  }

  send(input: PoolInput): void {
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

  #isAllowed(input: PoolInput): boolean {
    if (input.type === "tick" || input.type === "gone") return true;
    const known = this.known.get(input.run);
    if (input.type === "join") {
      const { member } = input;
      const fits = member.devices.every(({ id }) => (member.memoryPerDeviceMiB ?? 0) <= memoryOf[id]!);
      return known === undefined && fits;
    }
    if (known === undefined || known.isEnding) return false;
    if (input.type === "beat") return true;
    if (input.type === "release") return known.held?.lease.token === input.token; // PD4
    const isFree = known.isResident && known.held === undefined && known.asked === undefined; // PD3
    return isFree && input.devices.every((device) => known.devices.includes(device));
  }

  #note(input: PoolInput): void {
    if (input.type === "tick") return;
    const known = this.known.get(input.run) as Known;
    const sinceMs = this.nowMs;
    if (input.type === "join") {
      const names = input.member.devices.map(({ id }) => id);
      const asked = { devices: names, sinceMs, order: ++this.#order };
      const base = { isResident: false, isEnding: false, beatMs: sinceMs, asked, held: undefined };
      this.known.set(input.run, {
        ...base,
        run: input.run,
        devices: names,
        memoryMiB: input.member.memoryPerDeviceMiB,
      });
    } else if (input.type === "gone") this.known.delete(input.run);
    else if (input.type === "beat") known.beatMs = sinceMs;
    else if (input.type === "release") known.held = undefined;
    else known.asked = { devices: input.devices, sinceMs, order: ++this.#order };
  }

  /** PD6, PD7: those that are late, and nobody else. */
  #expectEnds(effects: readonly PoolEffect[]): void {
    const late = [...this.known.values()].filter(
      ({ isEnding, beatMs, held }) =>
        !isEnding &&
        (this.nowMs - beatMs >= this.limits.beatLimitMs ||
          (held?.drainsByMs !== undefined && this.nowMs >= held.drainsByMs)),
    );
    const ended = effects.flatMap((effect) => (effect.type === "end" ? [effect.run] : []));
    expect(ended.sort(), "PD6, PD7").toEqual(late.map((each) => each.run).sort());
    for (const each of late) Object.assign(each, { isEnding: true, asked: undefined });
  }

  #isOverdue({ asked }: Known): boolean {
    return asked !== undefined && this.nowMs - asked.sinceMs >= this.limits.patienceMs;
  }

  #inLine(isResident: boolean): Known[] {
    const rank = (each: Known) => (this.#isOverdue(each) ? Number.POSITIVE_INFINITY : priorityOf(each.run));
    return [...this.known.values()]
      .filter((each) => each.isResident === isResident && each.asked !== undefined)
      .sort((a, b) => (rank(a) === rank(b) ? a.asked!.order - b.asked!.order : rank(b) - rank(a)));
  }

  #mayReside(all: readonly Known[]): boolean {
    return devices.every((device) => {
      const here = all.filter((each) => each.devices.includes(device));
      const parts = here.map((each) => each.memoryMiB ?? memoryOf[device]! / this.limits.residents);
      return here.length <= this.limits.residents && parts.reduce((a, b) => a + b, 0) <= memoryOf[device]! + 1e-6;
    });
  }

  /** PD1. */
  #expectAdmissions(effects: readonly PoolEffect[]): void {
    const there = [...this.known.values()].filter((each) => each.isResident || each.isEnding);
    const kept = new Set<string>();
    const expected: string[] = [];
    for (const each of this.#inLine(false)) {
      if (each.devices.every((device) => !kept.has(device)) && this.#mayReside([...there, each])) {
        there.push(each);
        expected.push(each.run);
        Object.assign(each, { isResident: true, asked: undefined });
      } else for (const device of each.devices) kept.add(device);
    }
    expect(
      effects.flatMap((effect) => (effect.type === "admitted" ? [effect.run] : [])),
      "PD1",
    ).toEqual(expected);
  }

  /** PD2, PD3, PD5. */
  #expectGrants(effects: readonly PoolEffect[]): void {
    const kept = new Set([...this.known.values()].flatMap(({ held }) => held?.lease.devices ?? []));
    const expected = this.#inLine(true).filter(({ asked }) => {
      const isFree = asked!.devices.every((device) => !kept.has(device));
      for (const device of asked!.devices) kept.add(device);
      return isFree;
    });
    const grants = effects.flatMap((effect) => (effect.type === "granted" ? [effect] : []));
    expect(
      grants.map((effect) => effect.run),
      "PD5",
    ).toEqual(expected.map((each) => each.run));
    for (const [at, { lease }] of grants.entries()) {
      const each = expected[at]!;
      expect(lease.token, "PD4").toBeGreaterThan(this.#lastToken);
      this.#lastToken = lease.token;
      expect(lease.devices, "PD3").toEqual(each.asked!.devices);
      const turnEndsMs = this.nowMs + this.limits.turnMs * weightOf(each.run);
      Object.assign(each, { asked: undefined, held: { lease, turnEndsMs, drainsByMs: undefined, wasTold: false } });
      this.everGranted.add(each.run);
    }
  }

  /** PD6. */
  #judgeWanted({ run: name, token, drains }: Extract<PoolEffect, { type: "wanted" }>): void {
    const { held } = this.known.get(name)!;
    expect(held!.lease.token).toBe(token);
    expect(held!.drainsByMs, "told to drain once").toBeUndefined();
    if (!drains) expect(held!.wasTold, "told once").toBe(false);
    const waiters = this.#inLine(true).filter(({ asked }) =>
      asked!.devices.some((device) => held!.lease.devices.includes(device)),
    );
    expect(waiters.length, "somebody waits").toBeGreaterThan(0);
    held!.wasTold = true;
    if (!drains) return;
    const mayBeTold = (each: Known) => this.#isOverdue(each) || priorityOf(each.run) > priorityOf(name);
    expect(this.nowMs >= held!.turnEndsMs || waiters.some(mayBeTold), "PD6").toBe(true);
    held!.drainsByMs = this.nowMs + this.limits.yieldMs;
  }

  #check(): void {
    const all = [...this.known.values()];
    if (!this.#mayReside(all.filter((each) => each.isResident))) throw new Error("PD1");
    const leased = all.flatMap(({ held }) => held?.lease.devices ?? []);
    if (new Set(leased).size < leased.length) throw new Error("PD2");
    const current = all.flatMap((each) => (each.held && !each.isEnding ? [[each.run, each.held.lease]] : []));
    expect([...this.pool.leases], "PD4").toEqual(current);
  }

  do(step: Step): void {
    this.nowMs += step.afterMs;
    if (step.do === "tick") this.send({ type: "tick" });
    else if (step.do === "request") this.send({ type: "request", run: step.run, devices: step.devices });
    else if (step.do === "release" || step.do === "stale-release") {
      const token = this.known.get(step.run)?.held?.lease.token ?? 2;
      this.send({ type: "release", run: step.run, token: step.do === "release" ? token : token - 1 });
    } else if (step.do === "join") {
      const own = step.devices.map((id) => ({ id, memoryMiB: memoryOf[id]! }));
      const member = { devices: own, priority: priorityOf(step.run), weight: weightOf(step.run) };
      const withMemory = step.memoryMiB === undefined ? member : { ...member, memoryPerDeviceMiB: step.memoryMiB };
      this.send({ type: "join", run: step.run, member: withMemory });
    } else this.send({ type: step.do, run: step.run });
  }
}

test("whatever happens, devices are shared as they may be, by the plain rules (PD1, PD2, PD3, PD4, PD5, PD6, PD7)", () => {
  fc.assert(
    fc.property(limits, steps, (drawn, all) => {
      const account = new Account(drawn);
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
          if (isResident && !held && !asked)
            account.do({ do: "request", run: name, devices: wishes[runs.indexOf(name)]!, afterMs: 0 });
        }
      }
      for (const name of runs) expect(account.everGranted.has(name), name).toBe(true);
    }),
    { numRuns: 40 },
  );
});
