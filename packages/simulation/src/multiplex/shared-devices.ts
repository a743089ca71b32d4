/**
 * Several runs on the same devices, on virtual time: `DevicePoolState` decides as it does live, and each run is a whole
 * simulated one, whose lock asks for leases. Runs may be killed, or stop without a word, and are resumed. Where they compute beside
 * each other, `CoRunner` decides, as it does live, and a table says how much they slow each other down.
 *
 * An account of its own judges PD2, PD10 and LL1 at every grant, from what is granted and given back alone.
 */
import { type DeviceLease, type PoolMember, type PoolReply, TreadleError } from "@treadle/contracts";
import {
  DevicePoolState,
  type LeaseEffect,
  leaseInput,
  leaseRequest,
  type PoolEffect,
  type PoolInput,
  type PoolLimits,
  type SharingPolicy,
} from "@treadle/core";
import { CoRunner, type CoRunnerOptions } from "@treadle/multiplexer";
import { EventQueue } from "../event-queue.ts";
import type { Computed } from "../simulated-process.ts";
import type { SharedWorld, SimulatedRun } from "../simulated-run.ts";
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
  /** how many times as long a component of a run takes beside one of another; where it is given runs may compute beside each other */
  readonly besides?: SlowBeside | undefined;
  /** how that is decided: by `CoRunner`, or by a policy that takes its place */
  readonly coRunner?: CoRunnerOptions;
  readonly policy?: SharingPolicy;
};

export type SlowBeside = (component: string, beside: string) => number;

export type SharedRunOutcome = {
  readonly doneMs: number;
  readonly leasedMs: number;
  readonly waitedMs: number;
  /** of its computing, to others beside it */
  readonly slowedMs: number;
  readonly leases: number;
  readonly deaths: number;
  /** that were begun and lost, and done again */
  readonly lostSteps: number;
};

export type SharingOutcome = {
  readonly makespanMs: number;
  readonly runs: ReadonlyMap<string, SharedRunOutcome>;
  /** what was learnt of works beside each other */
  readonly learnt: CoRunner | undefined;
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
  slowedMs: number;
  leases: number;
  lostSteps: number;
  /** by token, what its devices are, and who computes beside it there */
  readonly beside: Map<number, { readonly devices: readonly string[]; works: readonly string[] }>;
};

type Holding = { readonly device: string; readonly run: string; readonly lease: DeviceLease };

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
  readonly #coRunner: CoRunner | undefined;
  #holders: Holding[] = [];
  #nextTickMs = Number.POSITIVE_INFINITY;
  #idleTicks = 0;

  constructor(options: SharingOptions) {
    this.#options = options;
    const { besides, policy } = options;
    this.#coRunner = besides && !policy ? new CoRunner(options.coRunner) : undefined;
    this.#pool = new DevicePoolState(options.limits, 0, besides && (policy ?? this.#coRunner));
    for (const spec of options.runs) {
      const none = { run: undefined, whole: undefined, doneMs: undefined };
      const zero = { life: 0, committed: 0, leasedMs: 0, waitedMs: 0, slowedMs: 0, leases: 0, lostSteps: 0 };
      this.#members.set(spec.name, { spec, ...none, ...zero, isUp: false, hasStopped: false, beside: new Map() });
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
    const makespanMs = Math.max(...[...runs.values()].map(({ doneMs }) => doneMs));
    return { makespanMs, runs, learnt: this.#coRunner };
  }

  // Runs.

  #join(member: Member): void {
    const { name, member: traits } = member.spec;
    member.isUp = true;
    member.hasStopped = false;
    const share = this.#options.besides ? "always" : "idle";
    this.#toPool(member, { type: "join", run: name, member: { share, ...traits } });
    this.#beat(member);
  }

  #begin(member: Member): void {
    const { spec, committed } = member;
    if (this.#options.keepsForSteps) member.whole = this.#wholeLease(member);
    member.run = spec.make(committed + 1, spec.steps - committed, {
      time: this.#queue,
      onLease: (effect) => this.#leaseAsked(member, effect),
      onWorked: (component, devices, done) => this.#worked(member, component, devices, done),
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
    if (whole && effect.type === "ask-lease") whole.asked(effect.devices);
    else if (whole && effect.type === "release-lease") whole.released(effect.token);
    else if (!whole) {
      const run = member.spec.name;
      const request = leaseRequest(effect, (component) => workOf(run, component));
      if (request.type !== "join") this.#toPool(member, { ...request, run });
    }
  }

  #worked(member: Member, component: string, devices: readonly string[], { paceMs, ...done }: Computed): void {
    if (this.#options.besides === undefined) return;
    const held = [...member.beside.values()].filter((each) => each.devices.some((id) => devices.includes(id)));
    const beside = [...new Set(held.flatMap(({ works }) => works))];
    member.slowedMs += done.ms - paceMs;
    const run = member.spec.name;
    const sample = { work: workOf(run, component), devices: [...devices], beside, ...done };
    this.#toPool(member, { type: "worked", run, ...sample, passes: paceMs, tokens: 0, cpuMs: 0, queuedMs: 0 });
  }

  #said(member: Member, reply: PoolReply): void {
    const input = leaseInput(reply);
    if (member.whole && reply.type === "wanted") member.whole.wanted(reply.token);
    else if (!member.whole && input) member.run?.lease(input);
  }

  /** The table says what happens; nobody who decides has seen it. */
  #besideChanged(member: Member, token: number, works: readonly string[]): void {
    const held = member.beside.get(token);
    if (held === undefined) return;
    this.#said(member, { type: "beside", token, works: [...works] });
    this.#slow(member, held.devices, works);
    held.works = works;
  }

  #slow(member: Member, devices: readonly string[], works: readonly string[]): void {
    const others = works.map(componentOf);
    member.run?.slow(devices, (component) =>
      Math.max(1, ...others.map((other) => this.#options.besides?.(component, other) ?? 1)),
    );
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
      case "beside":
        this.#toRun(member, () => this.#besideChanged(member, effect.token, effect.works));
        return;
      case "wanted":
      case "share":
        this.#toRun(member, () => this.#said(member, effect));
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
    const isOver = (each: Holding) =>
      each.run === input.run && (input.type === "gone" || each.lease.token === input.token);
    this.#holders = this.#holders.filter((each) => !isOver(each));
    if (input.type === "release") member.beside.delete(input.token);
    else member.beside.clear();
    if (input.type === "release") return;
    const seen = this.#pool.view(this.#queue.nowMs).find(({ run }) => run === input.run);
    member.leasedMs += seen?.leasedMs ?? 0;
    member.waitedMs += seen?.waitedMs ?? 0;
    member.leases += seen?.leases ?? 0;
  }

  #granted(member: Member, lease: DeviceLease): void {
    const { name } = member.spec;
    for (const device of lease.devices) {
      const there = this.#holders.filter((each) => each.device === device && each.run !== name);
      const [other] = there;
      if (other && lease.only === undefined)
        throw new Error(`PD2: '${device}' is leased to '${name}' while '${other.run}' has it`);
      if (there.length > 1) throw new Error(`PD10: '${device}' is leased to '${name}' beside ${there.length} others`);
      this.#holders.push({ device, run: name, lease });
    }
    this.#toRun(member, () => {
      member.beside.set(lease.token, { devices: lease.devices, works: [] });
      this.#slow(member, lease.devices, []);
      if (member.whole) member.whole.granted(lease);
      else this.#said(member, { type: "granted", lease });
    });
  }

  #member(run: string): Member {
    return this.#members.get(run) as Member;
  }
}

/** As other runs know it. */
const workOf = (run: string, component: string): string => `${run}/${component}`;
export const componentOf = (work: string): string => work.slice(work.lastIndexOf("/") + 1);

const outcomeOf = ({ doneMs, leasedMs, waitedMs, slowedMs, leases, life, lostSteps }: Member): SharedRunOutcome => ({
  doneMs: doneMs as number,
  ...{ leasedMs, waitedMs, slowedMs, leases, lostSteps },
  deaths: life,
});
