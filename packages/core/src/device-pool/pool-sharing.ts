/**
 * Which leases runs have of the same device at the same instant: when holders are asked, when a waiter joins them, and when
 * what was agreed is over. `SharingPolicy` decides; `DevicePoolState` says who is next, and owns members and leases.
 */
import type { Computing, PoolDecision, SharingVerdict, Work } from "@treadle/contracts";
import { type Held, type Holder, holdersOf, type Member, overlap, type Waiter } from "./pool-members.ts";
import type { PoolEffect } from "./pool-messages.ts";
import type { SharingPolicy } from "./sharing-policy.ts";

/** Runs that compute on one device at the same instant. */
export const mostAtOnce = 2;

export class PoolSharing {
  readonly #policy: SharingPolicy | undefined;
  readonly #members: ReadonlyMap<string, Member>;
  readonly #memoryMiB: ReadonlyMap<string, number>;
  readonly #say: (effect: PoolEffect) => void;
  readonly #decided: (decision: PoolDecision) => void;

  constructor(
    policy: SharingPolicy | undefined,
    members: ReadonlyMap<string, Member>,
    memoryMiB: ReadonlyMap<string, number>,
    say: (effect: PoolEffect) => void,
    decided: (decision: PoolDecision) => void,
  ) {
    this.#policy = policy;
    this.#members = members;
    this.#memoryMiB = memoryMiB;
    this.#say = say;
    this.#decided = decided;
  }

  /**
   * PD10: whether the waiter gets its devices beside those that have them, which have all agreed. Asks those that have not, where
   * the policy would have it so. `mayJoin`: by the pool's order.
   */
  joins(waiter: Waiter, mayJoin: boolean, nowMs: number): boolean {
    const { request } = waiter;
    const holders = this.#inTheWayOf(waiter);
    if (this.#policy === undefined || !mayJoin || !this.#mayShare(waiter, holders)) {
      request.decided = undefined;
      return false;
    }
    const { version } = this.#policy;
    const others = holders.map(({ held }) => `${held.lease.token} ${held.work}`).join("\n");
    const isSame = request.decided?.others === others;
    const haveAgreed = holders.every(({ held }) => held.sharing === "agreed");
    // What was agreed on is not thought over again, or both would agree and part again for ever.
    const stands = isSame && (request.decided?.version === version || (request.decided?.shares && haveAgreed));
    if (!stands) {
      const verdict = this.#decide(waiter, holders, nowMs);
      request.decided = { others, version, shares: verdict.shares };
      this.#tell(waiter, holders, verdict);
    }
    if (request.decided?.shares !== true) return false;
    for (const { member, held } of holders) {
      if (held.sharing !== "no") continue;
      held.sharing = "asked";
      this.#say({ type: "share", run: member.run, token: held.lease.token });
    }
    return haveAgreed;
  }

  /** PD10: which part of each millisecond the run loses to those beside it. */
  lossOf(member: Member): number {
    const slowest = Math.max(1, ...member.held.map((held) => this.#slowdownOf({ member, held })));
    return 1 - 1 / slowest;
  }

  /** Those that compute beside a run that is beyond its bound, and are not themselves (PD8). */
  besideBeyond(isBeyond: (member: Member) => boolean): Holder[] {
    const all = holdersOf(this.#members.values());
    const beyond = all.filter(({ member }) => isBeyond(member));
    return all.filter(
      ({ member, held }) =>
        !isBeyond(member) &&
        beyond.some((each) => each.member !== member && overlap(each.held.lease.devices, held.lease.devices)),
    );
  }

  /** Says who computes beside whom, where that has changed; what nobody uses any more is agreed no longer. */
  settle(): void {
    const all = holdersOf(this.#members.values());
    for (const { member, held } of all) {
      if (member.stage === "ending" || member.isUnheard) continue;
      const works = this.#beside({ member, held }, all);
      const isAwaited = [...this.#members.values()].some((other) => other !== member && awaits(other, held));
      const isOver = held.sharing === "agreed" && works.length === 0 && !isAwaited;
      if (isOver) held.sharing = "no";
      const told = works.join("\n");
      if (told === held.told && !isOver) continue;
      held.told = told;
      this.#say({ type: "beside", run: member.run, token: held.lease.token, works });
    }
  }

  /** Of the same question, the same answer is told once, however often it is thought over. */
  #tell({ member, request }: Waiter, holders: readonly Holder[], { shares, why }: SharingVerdict): void {
    const told = `${shares}\n${request.decided?.others}`;
    if (request.told === told) return;
    request.told = told;
    this.#decided({
      ...{ type: shares ? "beside" : "after", run: member.run, devices: [...request.devices], why },
      others: [...new Set(holders.map((holder) => holder.member.run))],
    });
  }

  #decide({ member, request }: Waiter, holders: readonly Holder[], nowMs: number): SharingVerdict {
    const members = [...this.#members.values()].filter(({ stage }) => stage === "resident");
    const waiting = members.flatMap((each) =>
      each.requests.filter((other) => other !== request).map((other) => this.#computing(each, other, other.sinceMs)),
    );
    const running = holdersOf(members).map(({ member: each, held }) => {
      const { lease, work, workSinceMs } = held;
      return { held, computing: this.#computing(each, { ...lease, work }, workSinceMs) };
    });
    const inTheWay = new Set(holders.map(({ held }) => held));
    const question = {
      waiter: this.#computing(member, request, request.sinceMs),
      holders: running.filter(({ held }) => inTheWay.has(held)).map((each) => each.computing),
      running: running.map((each) => each.computing),
      waiting,
    };
    return (this.#policy as SharingPolicy).sharesNow(question, nowMs);
  }

  /** The run's part of devices' memory, of the one where it is smallest. */
  memoryOf({ memoryMiB }: Member, devices: readonly string[]): number {
    const parts = devices.map((id) => (memoryMiB?.[id] ?? 0) / (this.#memoryMiB.get(id) as number));
    return Math.min(1, ...parts);
  }

  #computing(
    member: Member,
    { devices, work }: { readonly devices: readonly string[]; readonly work: Held["work"] },
    sinceMs: number,
  ): Computing {
    const { run, traits } = member;
    const memory = this.memoryOf(member, devices);
    return { ...{ run, work, devices, sinceMs, memory }, maxSlowdown: traits.maxSlowdown };
  }

  /** By what their runs allow, whoever gains. */
  #mayShare({ member, request }: Waiter, holders: readonly Holder[]): boolean {
    if (request.work === undefined || member.traits.share !== "always" || holders.length === 0) return false;
    const isReady = ({ member: { stage, isUnheard, traits }, held }: Holder) =>
      stage === "resident" && !isUnheard && traits.share === "always" && held.work !== undefined;
    return holders.every(isReady) && request.devices.every((device) => numOn(device, holders) < mostAtOnce);
  }

  #inTheWayOf({ member, request }: Waiter): Holder[] {
    const all = holdersOf(this.#members.values()).filter((each) => each.member !== member);
    return all.filter(({ held }) => overlap(held.lease.devices, request.devices));
  }

  #slowdownOf(holder: Holder): number {
    const { work } = holder.held;
    const works = this.#beside(holder, holdersOf(this.#members.values()));
    return work === undefined || works.length === 0
      ? 1
      : (this.#policy?.slowdown(work, works, this.memoryOf(holder.member, holder.held.lease.devices)) ?? 1);
  }

  #beside({ member, held }: Holder, all: readonly Holder[]): Work[] {
    const there = all.filter(
      (each) =>
        each.member !== member && !each.member.isUnheard && overlap(each.held.lease.devices, held.lease.devices),
    );
    return [...new Set(there.flatMap((each) => each.held.work ?? []))].sort();
  }
}

const numOn = (device: string, holders: readonly Holder[]): number =>
  holders.filter(({ held }) => held.lease.devices.includes(device)).length;

/** It may join the lease's run soon, or has done so before it was restored (PD9). */
const awaits = ({ requests, held, isUnheard }: Member, { lease }: Held): boolean =>
  requests.some(({ decided, devices }) => decided?.shares && overlap(devices, lease.devices)) ||
  (isUnheard && held.some((each) => overlap(each.lease.devices, lease.devices)));
