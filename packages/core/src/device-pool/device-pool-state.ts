/**
 * Which of several runs may use which devices: it admits runs, grants leases of devices to them, and takes leases back. It
 * reads no clock and asks nobody: runs, the ends of their processes, and time come in as inputs.
 *
 * A run is a resident of its devices, with a part of their memory, from its admission until nothing of it is left. What
 * residents take turns at is computing: that needs a lease.
 *
 * - PD1 a device has at most `residents` runs, whose memory adds to at most its own and whose bounds can all be kept (PD8). A
 *   run is admitted to all of its devices together, and keeps its memory on them until nothing of it is left.
 * - PD2 a device is leased to one run at a time, or to two that share it (PD10). A run that is being ended keeps its devices
 *   until nothing of it is left.
 * - PD3 a request gets all of its devices at once or none, and a run has one request or one lease of a device. What it holds it
 *   gives back whatever it waits for (LL2), so nobody waits for ever.
 * - PD4 tokens grow, beyond those of processes that had the pool before; a token is current from its grant until its release or
 *   until its run is ended, and never again.
 * - PD5 a request waits for holders, for runs beyond their bounds (PD8), and for those requests alone that go before it: of a
 *   larger priority, or that came earlier; after `patienceMs` only for those that came earlier. No later one is granted a
 *   device that it waits for.
 * - PD6 a holder in the way of the next request is told so at once, and told to drain when its turn is over, when that request
 *   has a larger priority, or when it has waited for `patienceMs`; a run that has not released `yieldMs` later is ended.
 * - PD7 a run whose beats stay out for `beatLimitMs` is ended. Others go on, whatever becomes of one.
 * - PD8 a resident waits while it has a request, whatever it holds meanwhile: a step goes on when its last rank does. One
 *   that has waited for more than `maxSlowdown` - 1 times as long as it has not is beyond its bound. Its devices are granted
 *   only to runs beyond theirs, those that are so furthest first, and others that hold them drain at once.
 * - PD9 all devices of a restored run count as leased to it until it joins again and says which leases it has. It has these
 *   from then on; one that says what cannot be is ended.
 * - PD10 two runs have a device leased at once only when both say `share: always`, the policy says that the later one gains, and
 *   each has agreed that nothing but the one work that it named computes under its lease. That holds until the other has gone.
 *   What each loses beside the other, by what was measured, counts as waiting for its bound (PD8): beyond that it is alone.
 *
 * So a bound is kept up to what cannot be interrupted: one that has come to its bound waits for as long as a holder takes to
 * drain, and then for nobody within bounds until it is within its own again. Alone it would need 1 / `maxSlowdown` of the
 * time even if it never paused, so bounds can be kept together when these parts add to at most 1, and to less where there
 * are runs without a bound, which have the rest.
 */
import type { DeviceLease, PoolDecision, PoolHolding, PoolMember, PoolMemberView, PoolWait } from "@treadle/contracts";
import { canKeepBounds, crossesAfterMs, owedMs } from "./bounds.ts";
import {
  count,
  devicesOf,
  type Holder,
  heldFrom,
  holdersOf,
  leftMs,
  lostBy,
  type Member,
  memberFrom,
  overlap,
  type Request,
  type Stage,
  shownMs,
  type Waiter,
} from "./pool-members.ts";
import type { PoolEffect, PoolInput, PoolLimits } from "./pool-messages.ts";
import { PoolSharing } from "./pool-sharing.ts";
import type { SharingPolicy } from "./sharing-policy.ts";

/** Even shares of memory are fractions, so sums of them are compared with this slack. */
const slackMiB = 1e-6;

export class DevicePoolState {
  readonly #limits: PoolLimits;
  /** memory by device, as who named it first says */
  readonly #devices = new Map<string, number>();
  readonly #members = new Map<string, Member>();
  /** of processes that had the pool before */
  readonly #oldToken: number;
  #lastToken: number;
  #lastOrder = 0;
  readonly #policy: SharingPolicy | undefined;
  readonly #sharing: PoolSharing;
  #out: PoolEffect[] = [];
  #decisions: PoolDecision[] = [];

  /** `oldToken`: at least as large as all that were granted before. Without a policy no device is shared (PD10). */
  constructor(limits: PoolLimits, oldToken = 0, policy?: SharingPolicy) {
    this.#limits = limits;
    this.#policy = policy;
    const say = (effect: PoolEffect) => this.#out.push(effect);
    const decided = (decision: PoolDecision) => this.#decisions.push(decision);
    this.#sharing = new PoolSharing(policy, this.#members, this.#devices, say, decided);
    this.#oldToken = oldToken;
    this.#lastToken = oldToken;
  }

  /** `nowMs` never goes back. */
  handle(input: PoolInput, nowMs: number): readonly PoolEffect[] {
    this.#out = [];
    this.#decisions = [];
    this.#take(input, nowMs);
    this.#endLate(nowMs);
    this.#admit(nowMs);
    this.#askToYield(this.#grant(nowMs), nowMs);
    this.#sharing.settle();
    for (const member of this.#members.values()) count(member, this.#sharing.lossOf(member), nowMs);
    return this.#out;
  }

  /** What the last input led to, with the reasons: for whoever looks, since runs learn of it by effects. */
  get decisions(): readonly PoolDecision[] {
    return this.#decisions;
  }

  /** What keeps devices from other runs, also of a run that is being ended, with what computes there. */
  get holdings(): readonly PoolHolding[] {
    return holdersOf(this.#members.values()).map(({ member: { run }, held: { lease, work } }) => {
      const { token, devices } = lease;
      return { run, token, devices: [...devices], ...(work === undefined ? {} : { work }) };
    });
  }

  /** PD4: those that are current, by run. */
  get leases(): ReadonlyMap<string, readonly DeviceLease[]> {
    const holding = [...this.#members.values()].filter(
      ({ stage, held, isUnheard }) => stage === "resident" && held.length > 0 && !isUnheard,
    );
    return new Map(holding.map(({ run, held }) => [run, held.map(({ lease }) => lease)]));
  }

  /** Runs that wait to be admitted, the next one first. */
  queue(nowMs: number): readonly string[] {
    return this.#inOrder("queued", nowMs).map(({ member }) => member.run);
  }

  /** Who holds what, who waits for whom, and for how long, in the order in which they joined. */
  view(nowMs: number): readonly PoolMemberView[] {
    const line = this.#inOrder("resident", nowMs);
    return [...this.#members.values()].map((member) => {
      const { run, stage, held, requests, traits, admittedMs, joinedMs, leases } = member;
      const waitedMs = shownMs(member.waited, nowMs);
      const lostMs = lostBy(member, nowMs);
      const usedMs = nowMs - admittedMs - waitedMs - lostMs;
      const [request] = requests;
      const since = Math.min(...held.map(({ sinceMs }) => sinceMs));
      const drains = held.some(({ drainsByMs }) => Number.isFinite(drainsByMs));
      const devices = held.flatMap(({ lease }) => lease.devices);
      return {
        ...{ run, stage, leases, waitedMs, lostMs, maxSlowdown: traits.maxSlowdown },
        leasedMs: shownMs(member.leased, nowMs),
        queuedMs: (stage === "queued" ? nowMs : admittedMs) - joinedMs,
        holds: held.length === 0 ? undefined : { devices, forMs: nowMs - since, drains },
        waits: request && { forMs: nowMs - request.sinceMs, on: this.#waitOf({ member, request }, line, nowMs) },
        slowdown: stage !== "queued" && usedMs > 0 ? (nowMs - admittedMs) / usedMs : undefined,
      };
    });
  }

  /** When a `tick` may change something next; infinite when only another input can. */
  nextTickMs(nowMs: number): number {
    const { beatLimitMs, patienceMs } = this.#limits;
    const times = [...this.#members.values()].flatMap((member) => {
      const { stage, beatMs, requests, held } = member;
      if (stage === "ending") return [];
      return [
        beatMs + beatLimitMs,
        this.#crossesBoundMs(member, nowMs),
        ...requests.map(({ sinceMs }) => sinceMs + patienceMs),
        ...held.flatMap(({ turnEndsMs, drainsByMs }) => [turnEndsMs, drainsByMs]),
      ];
    });
    return Math.min(Number.POSITIVE_INFINITY, ...times.filter((time) => time > nowMs));
  }

  #take(input: PoolInput, nowMs: number): void {
    if (input.type === "tick") return;
    const member = this.#members.get(input.run);
    if (input.type === "restore") {
      if (member === undefined) this.#restore(input, nowMs);
      return;
    }
    if (input.type === "join") {
      const { run, leases = [] } = input;
      if (member?.isUnheard && member.stage === "resident") this.#joinAgain(member, leases, nowMs);
      else if (leases.length > 0 && member === undefined) {
        const why = `run '${run}' has leases of a pool that is gone, and this one has no record of it`;
        this.#out.push({ type: "end", run, why }); // PD9
      } else this.#join(run, input.member, nowMs);
      return;
    }
    if (input.type === "gone") {
      this.#members.delete(input.run);
      this.#policy?.gone(input.run);
    } else if (input.type === "end") this.#endAsked(input, member);
    else if (member === undefined) this.#refuse(input.run, "the run is not in the pool");
    else if (member.stage === "ending") this.#refuse(input.run, "the run is being ended");
    else if (input.type === "beat") this.#beat(member, input.done, nowMs);
    else if (member.isUnheard) this.#refuse(input.run, "it has to join again first");
    else if (input.type === "release") this.#release(member, input.token);
    else if (input.type === "worked") this.#worked(member, input, nowMs);
    else if (input.type === "request") this.#request(member, input, nowMs);
    else this.#computes(member, input, nowMs);
  }

  #worked(member: Member, { type: _, run, ...sample }: Extract<PoolInput, { type: "worked" }>, nowMs: number): void {
    const isOwn = sample.devices.every((device) => member.devices.includes(device));
    if (member.stage !== "resident" || !isOwn)
      this.#refuse(run, "it has computed on devices that it did not join with");
    else this.#policy?.worked(run, sample, this.#sharing.memoryOf(member, sample.devices), nowMs);
  }

  /** PD10: which work computes under a lease, and, for `shares`, no other from here on. One that is over says nothing. */
  #computes(member: Member, input: Extract<PoolInput, { type: "uses" | "shares" }>, nowMs: number): void {
    const held = member.held.find(({ lease }) => lease.token === input.token);
    if (held === undefined) return;
    const { work } = input;
    if (work !== null && work !== held.work) Object.assign(held, { work, workSinceMs: nowMs });
    if (input.type === "shares") {
      // One that could not say so is asked again when it says what computes.
      if (work !== null) held.sharing = "agreed";
      else held.work = undefined;
    } else if (held.sharing === "asked") held.sharing = "no";
  }

  #beat(member: Member, done: number | undefined, nowMs: number): void {
    if (member.isUnheard) return; // it has still to join again (PD9)
    member.beatMs = nowMs;
    if (done === undefined) return;
    member.done = { share: done, atMs: nowMs };
    member.firstDone ??= member.done;
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
    this.#members.set(run, {
      ...this.#newMember(run, traits, nowMs),
      requests: [
        {
          devices: devicesOf(traits),
          work: undefined,
          sinceMs: nowMs,
          order: ++this.#lastOrder,
          decided: undefined,
          told: "",
        },
      ],
    });
  }

  #newMember(run: string, traits: PoolMember, nowMs: number): Member {
    for (const { id, memoryMiB } of traits.devices) if (!this.#devices.has(id)) this.#devices.set(id, memoryMiB);
    return memberFrom(run, traits, nowMs);
  }

  /** PD9: it has a lease of all of its devices, of no token. */
  #restore({ run, member, memoryMiB }: Extract<PoolInput, { type: "restore" }>, nowMs: number): void {
    const held = heldFrom({ token: this.#oldToken, devices: devicesOf(member) }, nowMs, Number.POSITIVE_INFINITY);
    const restored = { stage: "resident", isUnheard: true, memoryMiB, held: [held] } as const;
    this.#members.set(run, { ...this.#newMember(run, member, nowMs), ...restored });
  }

  /** PD9. */
  #joinAgain(member: Member, leases: readonly DeviceLease[], nowMs: number): void {
    const devices = leases.flatMap((lease) => lease.devices);
    const isOwn = devices.every((device) => member.devices.includes(device)) && !hasTwice(devices);
    const isOld = leases.every(({ token }) => token <= this.#oldToken) && !hasTwice(leases.map(({ token }) => token));
    const others = holdersOf(this.#members.values()).filter((holder) => !holder.member.isUnheard);
    const cannotBe = ({ held }: Holder) =>
      leases.some(
        ({ only, devices: own }) =>
          overlap(held.lease.devices, own) && (only === undefined || held.sharing !== "agreed"), // PD10
      );
    if (!isOwn || !isOld || others.some(cannotBe)) {
      this.#end(member, `run '${member.run}' says that it has leases of '${devices.join(", ")}', which cannot be`);
      return;
    }
    const turnEndsMs = nowMs + this.#limits.turnMs * member.traits.weight;
    const held = leases.map((lease) => heldFrom(lease, nowMs, turnEndsMs, lease.only));
    Object.assign(member, { isUnheard: false, beatMs: nowMs, held });
    this.#out.push({ type: "admitted", run: member.run, memoryMiB: member.memoryMiB ?? {} });
  }

  /** PD3. */
  #request(member: Member, { devices, work }: Extract<PoolInput, { type: "request" }>, nowMs: number): void {
    const { run, held, stage, requests } = member;
    const unknown = devices.find((device) => !member.devices.includes(device));
    const lease = held.find((each) => overlap(each.lease.devices, devices))?.lease;
    if (stage === "queued") this.#refuse(run, "it waits to be admitted");
    else if (lease) this.#refuse(run, `it holds lease '${lease.token}': release that, then ask for all that is needed`);
    else if (requests.some((each) => overlap(each.devices, devices)))
      this.#refuse(run, "it waits for a lease of these already");
    else if (unknown !== undefined)
      this.#refuse(run, `device '${unknown}' is not among those that it joined with: ${member.devices.join(", ")}`);
    else {
      const order = ++this.#lastOrder;
      member.requests = [...requests, { devices, work, sinceMs: nowMs, order, decided: undefined, told: "" }];
    }
  }

  #release(member: Member, token: number): void {
    const kept = member.held.filter(({ lease }) => lease.token !== token);
    if (kept.length < member.held.length) member.held = kept;
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
      else if (held.some(({ drainsByMs }) => nowMs >= drainsByMs))
        this.#end(member, `run '${run}' was told to yield its devices, and has not within ${yieldMs} ms`);
    }
  }

  #endAsked({ run, why }: Extract<PoolInput, { type: "end" }>, member: Member | undefined): void {
    if (member === undefined) this.#out.push({ type: "end", run, why });
    else if (member.stage !== "ending") this.#end(member, why);
  }

  /** PD2: it keeps its memory and its devices until it is gone. */
  #end(member: Member, why: string): void {
    member.stage = "ending";
    member.requests = [];
    this.#out.push({ type: "end", run: member.run, why });
    this.#decisions.push({ type: "ended", run: member.run, devices: [...member.devices], others: [], why });
  }

  /** PD1. */
  #admit(nowMs: number): void {
    const claimed = new Set<string>();
    for (const { member } of this.#inOrder("queued", nowMs)) {
      const { devices, run } = member;
      if (devices.every((device) => !claimed.has(device) && this.#hasRoom(device, member))) {
        const memoryMiB = Object.fromEntries(devices.map((device) => [device, this.#memoryOf(member, device)]));
        Object.assign(member, { stage: "resident", admittedMs: nowMs, requests: [], memoryMiB });
        this.#out.push({ type: "admitted", run, memoryMiB });
      } else for (const device of devices) claimed.add(device);
    }
  }

  /** `gone`: as it will be without these. */
  #hasRoom(device: string, member: Member, gone: ReadonlySet<Member> = new Set()): boolean {
    const there = [...this.#members.values()].filter(
      (each) => each.stage !== "queued" && each.devices.includes(device) && !gone.has(each),
    );
    const all = [...there, member];
    const sumMiB = all.reduce((sum, each) => sum + this.#memoryOf(each, device), 0);
    const isAlone = all.length === 1 || !all.some(({ traits }) => traits.share === "never");
    const fits =
      isAlone && all.length <= this.#limits.residents && sumMiB <= (this.#devices.get(device) as number) + slackMiB;
    return fits && canKeepBounds(all.map(({ traits }) => traits.maxSlowdown));
  }

  /** When enough of those that are there have ended, if they go on as they have so far. */
  #roomInMs(member: Member, there: readonly Member[], nowMs: number): number | undefined {
    const leaving = there.map((each) => ({ each, inMs: leftMs(each, nowMs) })).sort((a, b) => a.inMs - b.inMs);
    const gone = new Set<Member>();
    for (const { each, inMs } of leaving) {
      gone.add(each);
      if (member.devices.every((device) => this.#hasRoom(device, member, gone)))
        return Number.isFinite(inMs) ? inMs : undefined;
    }
    return undefined;
  }

  #memoryOf({ traits, memoryMiB }: Member, device: string): number {
    const granted = memoryMiB?.[device] ?? traits.memoryPerDeviceMiB;
    return granted ?? (this.#devices.get(device) as number) / this.#limits.residents;
  }

  /**
   * Grants what can be, in order (PD5). What cannot claims its devices, and is returned where holders alone are in its way.
   */
  #grant(nowMs: number): Waiter[] {
    const claimed = new Set<string>();
    for (const { held } of holdersOf(this.#members.values()))
      for (const device of held.lease.devices) claimed.add(device);
    const asked = new Set<string>();
    const blocked: Waiter[] = [];
    const beyond = [...this.#members.values()].filter((member) => this.#isBeyondBound(member, nowMs));
    const kept = new Set(beyond.flatMap(({ devices }) => devices)); // PD8
    for (const waiter of this.#inOrder("resident", nowMs)) {
      const { member, request } = waiter;
      const { devices } = request;
      const isKept = !beyond.includes(member) && devices.some((device) => kept.has(device));
      const isNext = !isKept && devices.every((device) => !asked.has(device));
      const isFree = devices.every((device) => !claimed.has(device));
      const joins = this.#sharing.joins(waiter, isNext && !isFree && !beyond.includes(member), nowMs);
      if (isNext && (isFree || joins)) {
        for (const device of devices) claimed.add(device);
        this.#give(waiter, joins, nowMs);
        continue;
      }
      for (const device of devices) asked.add(device);
      if (isNext) blocked.push(waiter);
    }
    return blocked;
  }

  #give({ member, request }: Waiter, joins: boolean, nowMs: number): void {
    const only = joins ? { only: request.work } : {};
    const lease = { token: ++this.#lastToken, devices: [...request.devices], ...only };
    const held = heldFrom(lease, nowMs, nowMs + this.#limits.turnMs * member.traits.weight, request.work);
    member.requests = member.requests.filter((each) => each !== request);
    member.held = [...member.held, held];
    member.leases++;
    this.#out.push({ type: "granted", run: member.run, lease });
  }

  /** PD6: nobody drains in vain, for a request that another holder keeps waiting. */
  #askToYield(blocked: readonly Waiter[], nowMs: number): void {
    for (const holder of this.#sharing.besideBeyond((member) => this.#isBeyondBound(member, nowMs)))
      this.#tellToYield(holder, { why: "a run that computes beside it is beyond its maxSlowdown" }, nowMs);
    for (const waiter of blocked) {
      const all = holdersOf(this.#members.values());
      const inTheWay = all.filter(({ held }) => overlap(held.lease.devices, waiter.request.devices));
      const reasons = inTheWay.map((holder) => this.#whyYields(holder, waiter, nowMs));
      const drains = inTheWay.every((holder, i) => isLeaving(holder) || reasons[i] !== undefined);
      for (const [i, holder] of inTheWay.entries()) {
        const order = drains ? { why: reasons[i] ?? "it is leaving", to: waiter.member.run } : undefined;
        this.#tellToYield(holder, order, nowMs);
      }
    }
  }

  /** `order`: it drains, for a reason; without it, somebody waits. */
  #tellToYield(holder: Holder, order: { readonly why: string; readonly to?: string } | undefined, nowMs: number): void {
    const { held, member } = holder;
    const { run, stage, isUnheard } = member;
    const drains = order !== undefined;
    if (stage === "ending" || isUnheard) return;
    if (held.isWanted && (!drains || isLeaving(holder))) return;
    held.isWanted = true;
    if (drains) held.drainsByMs = nowMs + this.#limits.yieldMs;
    this.#out.push({ type: "wanted", run, token: held.lease.token, drains });
    if (order === undefined) return;
    const others = order.to === undefined ? [] : [order.to];
    this.#decisions.push({ type: "yields", run, devices: [...held.lease.devices], others, why: order.why });
  }

  /** Undefined while it need not. */
  #whyYields({ member, held }: Holder, waiter: Waiter, nowMs: number): string | undefined {
    if (nowMs >= held.turnEndsMs) return "its turn is over";
    if (this.#isBeyondBound(waiter.member, nowMs))
      return this.#isBeyondBound(member, nowMs) ? undefined : "who waits is beyond its maxSlowdown";
    if (waiter.member.traits.priority > member.traits.priority) return "who waits has a larger priority";
    return this.#isOverdue(waiter.request, nowMs) ? "who waits has done so for longer than the patience" : undefined;
  }

  /** PD8. */
  #isBeyondBound(member: Member, nowMs: number): boolean {
    return this.#owedMs(member, nowMs) > 0;
  }

  #owedMs(member: Member, nowMs: number): number {
    if (member.stage !== "resident") return Number.NEGATIVE_INFINITY;
    const waitedMs = shownMs(member.delayed, nowMs) + lostBy(member, nowMs);
    return owedMs(member.traits.maxSlowdown, nowMs - member.admittedMs, waitedMs);
  }

  /** When a resident comes to its bound while it waits, or back while it does not; a little later, whatever the rounding. */
  #crossesBoundMs(member: Member, nowMs: number): number {
    const part = member.delayed.sinceMs === undefined ? member.losing.part : 1;
    return nowMs + 1 + crossesAfterMs(member.traits.maxSlowdown, this.#owedMs(member, nowMs), part);
  }

  /**
   * PD5, PD8: those beyond their bounds, the furthest first; those that have waited long enough by their coming, then by
   * priority; at the same, whichever came first.
   */
  #inOrder(stage: Stage, nowMs: number): Waiter[] {
    const members = [...this.#members.values()].filter((member) => member.stage === stage);
    const all = members.flatMap((member) => member.requests.map((request): Waiter => ({ member, request })));
    all.sort((a, b) => a.request.order - b.request.order);
    const beyond = all.filter(({ member }) => this.#isBeyondBound(member, nowMs));
    const within = all.filter((waiter) => !beyond.includes(waiter));
    const overdue = within.filter(({ request }) => this.#isOverdue(request, nowMs));
    const rest = within.filter((waiter) => !overdue.includes(waiter));
    beyond.sort((a, b) => this.#owedMs(b.member, nowMs) - this.#owedMs(a.member, nowMs));
    return [...beyond, ...overdue, ...rest.sort((a, b) => b.member.traits.priority - a.member.traits.priority)];
  }

  #isOverdue({ sinceMs }: Request, nowMs: number): boolean {
    return nowMs - sinceMs >= this.#limits.patienceMs;
  }

  /** PD1, PD5, PD8. */
  #waitOf(waiter: Waiter, line: readonly Waiter[], nowMs: number): PoolWait {
    const { member, request } = waiter;
    const others = [...this.#members.values()].filter((each) => each !== member);
    const on = (devices: readonly string[]) => overlap(devices, request.devices);
    const names = (all: readonly Member[]) => [...new Set(all.map(({ run }) => run))];
    if (member.stage === "queued") {
      const there = others.filter((each) => each.stage !== "queued" && on(each.devices));
      const queue = this.#inOrder("queued", nowMs).filter((each) => on(each.request.devices));
      const place = queue.findIndex((each) => each.member === member) + 1;
      return { type: "room", runs: names(there), place, inMs: this.#roomInMs(member, there, nowMs) };
    }
    const isWithin = !this.#isBeyondBound(member, nowMs);
    const keepers = others.filter((each) => isWithin && this.#isBeyondBound(each, nowMs) && on(each.devices));
    if (keepers.length > 0) return { type: "bounds", runs: names(keepers) };
    const holders = others.filter(({ held }) => held.some(({ lease }) => on(lease.devices)));
    if (holders.length > 0) return { type: "devices", runs: names(holders) };
    const before = line.slice(
      0,
      line.findIndex((each) => each.request === request),
    );
    return { type: "turn", runs: names(before.filter((each) => on(each.request.devices)).map((each) => each.member)) };
  }

  #refuse(run: string, why: string): void {
    this.#out.push({ type: "refused", run, why });
  }
}

const isLeaving = ({ member, held }: Holder): boolean =>
  member.stage === "ending" || member.isUnheard || held.drainsByMs !== Number.POSITIVE_INFINITY;

const hasTwice = (all: readonly unknown[]): boolean => new Set(all).size < all.length;
