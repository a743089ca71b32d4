/**
 * Several runs on the same devices, on virtual time: `DevicePoolState` decides as it does live, and each run is a whole
 * simulated one, whose lock asks for leases. Runs may be killed, or stop without a word, and are resumed.
 *
 * An account of its own judges PD2 and LL1 at every grant, from what is granted and given back alone.
 */
import { type DeviceLease, type PoolMember, TreadleError } from "@treadle/contracts";
import { DevicePoolState, type PoolEffect, type PoolInput, type PoolLimits } from "@treadle/core";
import { EventQueue } from "../event-queue.ts";
import type { SharedWorld, SimulatedRun } from "../simulated-run.ts";
import type { LeaseEffect } from "../virtual-runner.ts";
import { WholeLease } from "./whole-lease.ts";

export type SharingRun = {
  readonly name: string;
  readonly member: PoolMember;
  readonly steps: number;
  /** A run of so many steps from `firstStep` on. */
  readonly make: (firstStep: number, steps: number, shared: SharedWorld) => SimulatedRun;
};

/** A run's processes are gone, or stop without a word until the pool ends them. */
export type Disaster = { readonly atMs: number; readonly run: string; readonly type: "kill" | "stop" };

export type SharingOptions = {
  readonly runs: readonly SharingRun[];
  readonly limits: PoolLimits;
  readonly disasters?: readonly Disaster[];
  /** from a run to the pool, or back */
  readonly messageMs: number;
  /** a lease lasts until its step is committed, whoever waits */
  readonly keepsForSteps?: boolean;
};

export type SharedRunOutcome = {
  readonly doneMs: number;
  readonly leasedMs: number;
  readonly waitedMs: number;
  readonly leases: number;
  readonly deaths: number;
  /** that were begun and lost, and done again */
  readonly lostSteps: number;
};

export type SharingOutcome = {
  readonly makespanMs: number;
  readonly runs: ReadonlyMap<string, SharedRunOutcome>;
};

type Member = {
  readonly spec: SharingRun;
  /** counts its deaths: what was said to or by an earlier one is not heard */
  life: number;
  run: SimulatedRun | undefined;
  isUp: boolean;
  hasStopped: boolean;
  committed: number;
  /** of one that keeps its devices for whole steps */
  whole: WholeLease | undefined;
  doneMs: number | undefined;
  leasedMs: number;
  waitedMs: number;
  leases: number;
  lostSteps: number;
};

/** From the end of a run's process until none of its processes is left, and until it is resumed. */
const cleanupMs = 500;
const resumeMs = 2000;
/** Of nothing but time passing: then nothing will ever happen. */
const mostIdleTicks = 100_000;

/** Throws what a run at a standstill throws. */
export function shareDevices(options: SharingOptions): SharingOutcome {
  return new SharedDevices(options).execute();
}

class SharedDevices {
  readonly #options: SharingOptions;
  readonly #queue = new EventQueue();
  readonly #pool: DevicePoolState;
  readonly #members = new Map<string, Member>();
  readonly #holders = new Map<string, { readonly run: string; readonly token: number }>();
  #nextTickMs = Number.POSITIVE_INFINITY;
  #idleTicks = 0;

  constructor(options: SharingOptions) {
    this.#options = options;
    this.#pool = new DevicePoolState(options.limits);
    for (const spec of options.runs) {
      const none = { run: undefined, whole: undefined, doneMs: undefined };
      const zero = { life: 0, committed: 0, leasedMs: 0, waitedMs: 0, leases: 0, lostSteps: 0 };
      this.#members.set(spec.name, { spec, ...none, ...zero, isUp: false, hasStopped: false });
    }
  }

  execute(): SharingOutcome {
    for (const member of this.#members.values()) this.#queue.at(0, () => this.#join(member));
    for (const disaster of this.#options.disasters ?? [])
      this.#queue.at(disaster.atMs, () => this.#strike(this.#member(disaster.run), disaster.type));
    while (this.#idleTicks < mostIdleTicks && this.#queue.runNext());
    for (const { run, doneMs, spec } of this.#members.values()) {
      if (doneMs !== undefined) continue;
      run?.expectDone();
      throw new TreadleError("problem.invalid", `run '${spec.name}' comes to no end beside the others`);
    }
    const runs = new Map([...this.#members].map(([name, member]) => [name, outcomeOf(member)]));
    return { makespanMs: Math.max(...[...runs.values()].map(({ doneMs }) => doneMs)), runs };
  }

  // Runs.

  #join(member: Member): void {
    const { name, member: traits } = member.spec;
    member.isUp = true;
    member.hasStopped = false;
    this.#toPool(member, { type: "join", run: name, member: traits });
    this.#beat(member);
  }

  #begin(member: Member): void {
    const { spec, committed } = member;
    if (this.#options.keepsForSteps) member.whole = this.#wholeLease(member);
    member.run = spec.make(committed + 1, spec.steps - committed, {
      time: this.#queue,
      onLease: (effect) => this.#leaseAsked(member, effect),
      onCommit: () => {
        member.committed++;
        this.#idleTicks = 0;
        member.whole?.committed();
      },
      onDone: () => {
        member.doneMs = this.#queue.nowMs;
        this.#toPool(member, { type: "gone", run: spec.name });
      },
    });
    member.run.begin();
  }

  #leaseAsked(member: Member, effect: LeaseEffect): void {
    const { whole } = member;
    const run = member.spec.name;
    if (effect.type === "release-lease") {
      if (whole) whole.released(effect.token);
      else this.#toPool(member, { type: "release", run, token: effect.token });
    } else if (whole) whole.asked(effect.devices);
    else this.#toPool(member, { type: "request", run, devices: effect.devices });
  }

  #wholeLease(member: Member): WholeLease {
    const { name: run, member: traits } = member.spec;
    const devices = traits.devices.map(({ id }) => id);
    return new WholeLease({
      run: () => member.run,
      request: () => this.#toPool(member, { type: "request", run, devices }),
      release: (token) => this.#toPool(member, { type: "release", run, token }),
    });
  }

  #strike(member: Member, type: Disaster["type"]): void {
    if (!member.isUp || member.doneMs !== undefined) return;
    member.run?.kill();
    if (type === "stop") member.hasStopped = true;
    else this.#cleanUp(member);
  }

  #cleanUp(member: Member): void {
    member.isUp = false;
    if (member.run) member.lostSteps++;
    this.#queue.after(cleanupMs, () => {
      member.life++;
      member.run = undefined;
      this.#feed({ type: "gone", run: member.spec.name });
      this.#queue.after(resumeMs, () => this.#join(member));
    });
  }

  // Between them and the pool.

  #toPool(member: Member, input: Exclude<PoolInput, { type: "tick" }>): void {
    const { life } = member;
    this.#queue.after(this.#options.messageMs, () => {
      if (member.life === life) this.#feed(input);
    });
  }

  #toRun(member: Member, act: () => void): void {
    const { life } = member;
    this.#queue.after(this.#options.messageMs, () => {
      if (member.life === life && member.isUp && !member.hasStopped && member.doneMs === undefined) act();
    });
  }

  #feed(input: PoolInput): void {
    if (input.type !== "tick" && input.type !== "beat") {
      this.#idleTicks = 0;
      this.#note(input);
    }
    const { nowMs } = this.#queue;
    for (const effect of this.#pool.handle(input, nowMs)) this.#act(effect);
    this.#expectTick();
  }

  #expectTick(): void {
    const nextMs = this.#pool.nextTickMs(this.#queue.nowMs);
    if (nextMs >= this.#nextTickMs || nextMs === Number.POSITIVE_INFINITY) return;
    this.#nextTickMs = nextMs;
    this.#queue.at(nextMs, () => {
      if (this.#nextTickMs > this.#queue.nowMs) return; // an earlier one came in between
      this.#nextTickMs = Number.POSITIVE_INFINITY;
      this.#idleTicks++;
      this.#feed({ type: "tick" });
    });
  }

  /** As long as the run is up and says anything. */
  #beat(member: Member): void {
    const { life } = member;
    this.#queue.after(this.#options.limits.beatLimitMs / 4, () => {
      if (member.life !== life || !member.isUp || member.hasStopped || member.doneMs !== undefined) return;
      this.#feed({ type: "beat", run: member.spec.name });
      this.#beat(member);
    });
  }

  #act(effect: PoolEffect): void {
    const member = this.#member(effect.run);
    this.#idleTicks = 0;
    switch (effect.type) {
      case "admitted":
        this.#toRun(member, () => this.#begin(member));
        return;
      case "granted":
        this.#granted(member, effect.lease);
        return;
      case "wanted":
        this.#toRun(member, () => {
          if (member.whole) member.whole.wanted(effect.token);
          else member.run?.leaseWanted(effect.token, effect.drains);
        });
        return;
      case "end":
        if (!member.isUp || member.doneMs !== undefined) return; // it has ended meanwhile
        member.run?.kill();
        this.#cleanUp(member);
        return;
      case "refused":
        if (member.isUp && !member.hasStopped && member.doneMs === undefined)
          throw new Error(`'${effect.run}' was refused: ${effect.why}`);
    }
  }

  // The account.

  #note(input: PoolInput): void {
    if (input.type === "tick") return;
    const member = this.#member(input.run);
    if (input.type !== "release" && input.type !== "gone") return;
    for (const [device, { run, token }] of this.#holders)
      if (run === input.run && (input.type === "gone" || token === input.token)) this.#holders.delete(device);
    if (input.type === "release") return;
    const seen = this.#pool.view(this.#queue.nowMs).find(({ run }) => run === input.run);
    member.leasedMs += seen?.leasedMs ?? 0;
    member.waitedMs += seen?.waitedMs ?? 0;
    member.leases += seen?.leases ?? 0;
  }

  #granted(member: Member, lease: DeviceLease): void {
    const { name } = member.spec;
    for (const device of lease.devices) {
      const holder = this.#holders.get(device);
      if (holder !== undefined) throw new Error(`PD2: '${device}' is leased to '${name}' while '${holder.run}' has it`);
      this.#holders.set(device, { run: name, token: lease.token });
    }
    this.#toRun(member, () => (member.whole ? member.whole.granted(lease) : member.run?.leased(lease)));
  }

  #member(run: string): Member {
    return this.#members.get(run) as Member;
  }
}

const outcomeOf = ({ doneMs, leasedMs, waitedMs, leases, life, lostSteps }: Member): SharedRunOutcome => ({
  doneMs: doneMs as number,
  ...{ leasedMs, waitedMs, leases, lostSteps },
  deaths: life,
});
