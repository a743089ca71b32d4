/**
 * Which of several runs may use which devices: it admits runs, grants leases of devices to them, and takes leases back. It
 * reads no clock and asks nobody: runs, the ends of their processes, and time come in as inputs.
 *
 * A run is a resident of its devices, with a part of their memory, from its admission until nothing of it is left. What
 * residents take turns at is computing: that needs a lease.
 *
 * - PD1 a device has at most `residents` runs, whose memory adds to at most its own. A run is admitted to all of its devices
 *   together, and keeps its memory on them until nothing of it is left.
 * - PD2 a device is leased to one run at a time. A run that is being ended keeps its devices until nothing of it is left.
 * - PD3 a run has one request or one lease, and a request gets all of its devices at once or none: nobody who holds waits.
 * - PD4 tokens grow; a token is current from its grant until its release or until its run is ended, and never again.
 * - PD5 a request waits for holders, and for those requests alone that go before it: of a larger priority, or that came
 *   earlier; after `patienceMs` only for those that came earlier. No later one is granted a device that it waits for.
 * - PD6 a holder in the way of the next request is told so at once, and told to drain when its turn is over, when that request
 *   has a larger priority, or when it has waited for `patienceMs`; a run that has not released `yieldMs` later is ended.
 * - PD7 a run whose beats stay out for `beatLimitMs` is ended. Others go on, whatever becomes of one.
 */
import type { DeviceLease, PoolMember } from "@treadle/contracts";
import type { PoolEffect, PoolInput, PoolLimits } from "./pool-messages.ts";

/** Even shares of memory are fractions, so sums of them are compared with this slack. */
const slackMiB = 1e-6;

type Waiting = { readonly devices: readonly string[]; readonly sinceMs: number; readonly order: number };
type Held = { readonly lease: DeviceLease; readonly turnEndsMs: number; isWanted: boolean; drainsByMs: number };
type Stage = "queued" | "resident" | "ending";
type Member = {
  readonly run: string;
  readonly traits: PoolMember;
  readonly devices: readonly string[];
  stage: Stage;
  beatMs: number;
  /** for admission while it is queued, for a lease when it is a resident */
  waiting: Waiting | undefined;
  held: Held | undefined;
};
type Waiter = Member & { readonly waiting: Waiting };

export class DevicePoolState {
  readonly #limits: PoolLimits;
  /** memory by device, as who named it first says */
  readonly #devices = new Map<string, number>();
  readonly #members = new Map<string, Member>();
  #lastToken = 0;
  #lastOrder = 0;
  #out: PoolEffect[] = [];

  constructor(limits: PoolLimits) {
    this.#limits = limits;
  }

  /** `nowMs` never goes back. */
  handle(input: PoolInput, nowMs: number): readonly PoolEffect[] {
    this.#out = [];
    this.#take(input, nowMs);
    this.#endLate(nowMs);
    this.#admit(nowMs);
    this.#askToYield(this.#grant(nowMs), nowMs);
    return this.#out;
  }

  /** PD4: those that are current, by run. */
  get leases(): ReadonlyMap<string, DeviceLease> {
    const held = [...this.#members.values()].filter(({ stage, held }) => stage === "resident" && held !== undefined);
    return new Map(held.map(({ run, held }) => [run, (held as Held).lease]));
  }

  /** Runs that wait to be admitted, the next one first. */
  queue(nowMs: number): readonly string[] {
    return this.#inOrder("queued", nowMs).map(({ run }) => run);
  }

  /** When a `tick` may change something next; infinite when only another input can. */
  nextTickMs(nowMs: number): number {
    const { beatLimitMs, patienceMs } = this.#limits;
    const times = [...this.#members.values()].flatMap(({ stage, beatMs, waiting, held }) =>
      stage === "ending"
        ? []
        : [
            beatMs + beatLimitMs,
            ...(waiting ? [waiting.sinceMs + patienceMs] : []),
            ...(held ? [held.turnEndsMs, held.drainsByMs] : []),
          ],
    );
    return Math.min(Number.POSITIVE_INFINITY, ...times.filter((time) => time > nowMs));
  }

  #take(input: PoolInput, nowMs: number): void {
    if (input.type === "tick") return;
    if (input.type === "join") {
      this.#join(input.run, input.member, nowMs);
      return;
    }
    const member = this.#members.get(input.run);
    if (input.type === "gone") this.#members.delete(input.run);
    else if (member === undefined) this.#refuse(input.run, "the run is not in the pool");
    else if (member.stage === "ending") this.#refuse(input.run, "the run is being ended");
    else if (input.type === "beat") member.beatMs = nowMs;
    else if (input.type === "release") this.#release(member, input.token);
    else this.#request(member, input.devices, nowMs);
  }

  #join(run: string, traits: PoolMember, nowMs: number): void {
    if (this.#members.has(run)) {
      this.#refuse(run, `a run called '${run}' is in the pool; give each a name of its own`);
      return;
    }
    for (const { id, memoryMiB } of traits.devices) {
      const ownMiB = this.#devices.get(id) ?? memoryMiB;
      const missing = (traits.memoryPerDeviceMiB ?? 0) - ownMiB;
      if (missing <= 0) continue;
      const has = `device '${id}' has ${Math.round(ownMiB)} MiB, '${Math.ceil(missing)}' less than pool.memoryPerDeviceMiB`;
      this.#refuse(run, `${has} of run '${run}' asks for (${traits.memoryPerDeviceMiB}); lower it`);
      return;
    }
    for (const { id, memoryMiB } of traits.devices) if (!this.#devices.has(id)) this.#devices.set(id, memoryMiB);
    const devices = traits.devices.map(({ id }) => id);
    const waiting = { devices, sinceMs: nowMs, order: ++this.#lastOrder };
    this.#members.set(run, { run, traits, devices, stage: "queued", beatMs: nowMs, waiting, held: undefined });
  }

  /** PD3. */
  #request(member: Member, devices: readonly string[], nowMs: number): void {
    const { run, held, stage, waiting } = member;
    const unknown = devices.find((device) => !member.devices.includes(device));
    if (stage === "queued") this.#refuse(run, "it waits to be admitted");
    else if (held)
      this.#refuse(run, `it holds lease '${held.lease.token}': release that, then ask for all that is needed`);
    else if (waiting) this.#refuse(run, "it waits for a lease already");
    else if (unknown !== undefined)
      this.#refuse(run, `device '${unknown}' is not among those that it joined with: ${member.devices.join(", ")}`);
    else member.waiting = { devices, sinceMs: nowMs, order: ++this.#lastOrder };
  }

  #release(member: Member, token: number): void {
    if (member.held?.lease.token === token) member.held = undefined;
    else this.#refuse(member.run, `token '${token}' is not current`); // PD4
  }

  /** PD6, PD7. */
  #endLate(nowMs: number): void {
    const { beatLimitMs, yieldMs } = this.#limits;
    for (const member of this.#members.values()) {
      const { beatMs, held, run, stage } = member;
      if (stage === "ending") continue;
      if (nowMs - beatMs >= beatLimitMs)
        this.#end(member, `run '${run}' gave no sign of life for ${nowMs - beatMs} ms`);
      else if (held && nowMs >= held.drainsByMs)
        this.#end(member, `run '${run}' was told to yield its devices, and has not within ${yieldMs} ms`);
    }
  }

  /** PD2: it keeps its memory and its devices until it is gone. */
  #end(member: Member, why: string): void {
    member.stage = "ending";
    member.waiting = undefined;
    this.#out.push({ type: "end", run: member.run, why });
  }

  /** PD1. */
  #admit(nowMs: number): void {
    const claimed = new Set<string>();
    for (const member of this.#inOrder("queued", nowMs)) {
      const { devices, run } = member;
      if (devices.every((device) => !claimed.has(device) && this.#hasRoom(device, member))) {
        member.stage = "resident";
        (member as Member).waiting = undefined;
        const memoryMiB = Object.fromEntries(devices.map((device) => [device, this.#memoryOf(member, device)]));
        this.#out.push({ type: "admitted", run, memoryMiB });
      } else for (const device of devices) claimed.add(device);
    }
  }

  #hasRoom(device: string, member: Member): boolean {
    const there = [...this.#members.values()].filter(
      ({ stage, devices }) => stage !== "queued" && devices.includes(device),
    );
    const sumMiB = [...there, member].reduce((sum, each) => sum + this.#memoryOf(each, device), 0);
    return there.length < this.#limits.residents && sumMiB <= (this.#devices.get(device) as number) + slackMiB;
  }

  #memoryOf({ traits }: Member, device: string): number {
    return traits.memoryPerDeviceMiB ?? (this.#devices.get(device) as number) / this.#limits.residents;
  }

  /** Grants what can be, in order (PD5); what cannot claims its devices, and is returned unless they are claimed before it. */
  #grant(nowMs: number): Waiter[] {
    const claimed = new Set<string>();
    for (const { held } of this.#members.values()) for (const device of held?.lease.devices ?? []) claimed.add(device);
    const asked = new Set<string>();
    const blocked: Waiter[] = [];
    for (const member of this.#inOrder("resident", nowMs)) {
      const { devices } = member.waiting;
      const isNext = devices.every((device) => !asked.has(device));
      if (isNext && devices.every((device) => !claimed.has(device))) {
        const lease = { token: ++this.#lastToken, devices: [...devices] };
        const turnEndsMs = nowMs + this.#limits.turnMs * member.traits.weight;
        const held = { lease, turnEndsMs, isWanted: false, drainsByMs: Number.POSITIVE_INFINITY };
        Object.assign(member, { waiting: undefined, held });
        for (const device of devices) claimed.add(device);
        this.#out.push({ type: "granted", run: member.run, lease });
        continue;
      }
      for (const device of devices) asked.add(device);
      if (isNext) blocked.push(member);
    }
    return blocked;
  }

  /** PD6: nobody drains in vain, for a request that another holder keeps waiting. */
  #askToYield(blocked: readonly Waiter[], nowMs: number): void {
    for (const waiter of blocked) {
      const inTheWay = [...this.#members.values()].filter(({ held }) =>
        held?.lease.devices.some((device) => waiter.waiting.devices.includes(device)),
      );
      const isLeaving = ({ stage, held }: Member) =>
        stage === "ending" || held?.drainsByMs !== Number.POSITIVE_INFINITY;
      const drains = inTheWay.every((holder) => isLeaving(holder) || this.#mustYield(holder, waiter, nowMs));
      for (const holder of inTheWay) {
        const { held, run, stage } = holder;
        if (held === undefined || stage === "ending" || (held.isWanted && (!drains || isLeaving(holder)))) continue;
        held.isWanted = true;
        if (drains) held.drainsByMs = nowMs + this.#limits.yieldMs;
        this.#out.push({ type: "wanted", run, token: held.lease.token, drains });
      }
    }
  }

  #mustYield({ held, traits }: Member, waiter: Waiter, nowMs: number): boolean {
    return (
      (held !== undefined && nowMs >= held.turnEndsMs) ||
      waiter.traits.priority > traits.priority ||
      this.#isOverdue(waiter, nowMs)
    );
  }

  /** PD5: those that have waited long enough by their coming, then by priority; at the same, whichever came first. */
  #inOrder(stage: Stage, nowMs: number): Waiter[] {
    const all = [...this.#members.values()].filter(
      (member): member is Waiter => member.stage === stage && member.waiting !== undefined,
    );
    all.sort((a, b) => a.waiting.order - b.waiting.order);
    const overdue = all.filter((waiter) => this.#isOverdue(waiter, nowMs));
    const rest = all.filter((waiter) => !overdue.includes(waiter));
    return [...overdue, ...rest.sort((a, b) => b.traits.priority - a.traits.priority)];
  }

  #isOverdue({ waiting }: Waiter, nowMs: number): boolean {
    return nowMs - waiting.sinceMs >= this.#limits.patienceMs;
  }

  #refuse(run: string, why: string): void {
    this.#out.push({ type: "refused", run, why });
  }
}
