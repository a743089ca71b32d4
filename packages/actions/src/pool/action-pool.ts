/**
 * Actions in one process: submission, queue, decisions, grants, execution, retries, deadlines.
 *
 * Owned here: the records of all unsettled actions and the open trajectories. Managers own units, `decide` chooses,
 * the clock is handed in. A decision runs once per microtask, whatever the number of submissions and completions.
 *
 * PO1 an action settles exactly once; with `action.cancelled` or `action.deadline` at once, even while it still runs.
 * PO2 what an action was granted is released once, when its execution has ended: an aborted execution that still runs
 *    keeps its cores.
 * PO3 every action that can ever fit starts, unless it is cancelled or late first (DC3, FQ2).
 * PO4 after `close` nothing runs, no timer is armed, and every trajectory's end was told to every manager.
 */
import { type Clock, TreadleError } from "@treadle/contracts";
import { systemClock } from "@treadle/transport";
import { type DecideOptions, decide, defaultDecideOptions } from "../decide/decide.ts";
import { FairShares } from "../decide/fair-shares.ts";
import type { Policy } from "../decide/policies.ts";
import type { Busy, ResourceState } from "../decide/resource-state.ts";
import { ActionHistory, type KindReport } from "../formulation/action-history.ts";
import { ActionSpec, longestTimerMs } from "../formulation/action-spec.ts";
import type { Grant, ResourceManager } from "../managers/manager.ts";
import type { ActionContext, ActionHandle, ActionRecord } from "./action-record.ts";
import { ActionStatistics, type KindStatistics } from "./action-statistics.ts";
import { AlikeActions } from "./alike.ts";
import { Charging, heldUnits, unknownSeconds } from "./charging.ts";
import { FairQueue } from "./fair-queue.ts";
import { beyondCapacity, PoolBinding, requestOf, whyNever } from "./pool-binding.ts";
import { cancelled, lateMessage, retryAfterIn } from "./pool-errors.ts";
import type { ActionPoolOptions, TrajectoryOptions } from "./pool-options.ts";
import { probeUnitsOf } from "./probe.ts";
import { ResourceUsage, TenantUsage, type UsageReport } from "./resource-usage.ts";
import { type DecisionView, describeStart, type StartedAction } from "./started-action.ts";

/** Waiting actions that one decision looks at. */
const window = 4096;
const longestBackoffMs = 60_000;
const keptStarts = 32;

export class ActionPool {
  /** what is expected of actions, and learned of them */
  readonly history: ActionHistory;
  readonly #managers: ReadonlyMap<string, ResourceManager>;
  readonly #clock: Clock;
  readonly #decide: DecideOptions;
  readonly #shares: FairShares;
  readonly #charging: Charging;
  readonly #alike: AlikeActions;
  readonly #binding: PoolBinding;
  readonly #queue: FairQueue<ActionRecord>;
  readonly #records = new Map<string, ActionRecord>();
  readonly #running = new Map<string, ActionRecord>();
  readonly #trajectories = new Map<string, TrajectoryOptions>();
  readonly #statistics = new ActionStatistics();
  readonly #usage: ResourceUsage;
  readonly #charged = new TenantUsage();
  readonly #starts: StartedAction[] = [];
  readonly #priorityLevelMs: number;
  readonly #prepare: ActionPoolOptions["prepare"];
  #decisionDue = false;
  #disarmWake: (() => void) | undefined;
  #made = 0;
  #closed = false;

  constructor(options: ActionPoolOptions) {
    this.#managers = new Map(options.managers.map((m) => [m.resource, m]));
    this.#clock = options.clock ?? systemClock;
    this.#decide = { ...defaultDecideOptions, ...options.decide };
    this.history = options.history ?? new ActionHistory();
    const nowMs = this.#clock.now();
    const capacities = [...this.#managers].map(([resource, manager]) => {
      let all = 0;
      for (const { free } of manager.pools(nowMs).values()) all += free;
      return [resource, manager.mostHeld ?? all] as const;
    });
    this.#shares = new FairShares(new Map(capacities), options.tenantWeights);
    this.#charging = new Charging(this.#managers, this.#shares);
    this.#alike = new AlikeActions(this.#managers, this.history);
    const statesMemory = (trajectory: string): boolean => this.#trajectories.get(trajectory)?.memoryBytes !== undefined;
    this.#binding = new PoolBinding(this.#managers, this.#alike, this.#charging, statesMemory);
    this.#queue = new FairQueue(this.#shares);
    this.#priorityLevelMs = options.priorityLevelMs ?? 60_000;
    this.#prepare = options.prepare;
    this.#usage = new ResourceUsage(this.#managers.keys(), nowMs);
  }

  /**
   * Optional: an action may name a trajectory that was never opened. Opening twice keeps the first options. Throws
   * `action.impossible` when it reserves more than there ever is.
   */
  openTrajectory(trajectory: string, options: TrajectoryOptions = {}): void {
    if (this.#trajectories.has(trajectory)) return;
    for (const manager of this.#managers.values())
      manager.openTrajectory?.(trajectory, options.memoryBytes, options.node);
    this.#trajectories.set(trajectory, options);
  }

  /** The node that a trajectory is on from now on, where resources have any; throws `sandbox.failed` when none has room. */
  place(trajectory: string): string | undefined {
    const placing = [...this.#managers.values()].filter((manager) => manager.place !== undefined);
    const [node] = placing.map((manager) => manager.place!(trajectory));
    this.#charging.reserves(trajectory, this.#trajectories.get(trajectory)?.tenant ?? "default", this.#clock.now());
    if (node === undefined && placing.length > 0)
      throw new TreadleError(
        "sandbox.failed",
        `no host has room for what trajectory '${trajectory}' reserves: all are away or full; try again later, or reserve less`,
      );
    return node;
  }

  /** A manager has more than before, or less: what waits for more than there is fails with `action.impossible`. */
  changed(): void {
    const now = this.#clock.now();
    this.#binding.changed();
    for (const [resource, manager] of this.#managers)
      if (manager.place !== undefined && manager.mostHeld !== undefined)
        this.#shares.resize(resource, manager.mostHeld, now);
    for (const record of [...this.#records.values()]) {
      if (record.state === "running") continue;
      const why = beyondCapacity(this.#managers, record.spec.cost) ?? whyNever(this.#managers, record);
      if (why !== undefined) this.#stop(record, why);
    }
    this.#wake();
  }

  /** Cancels its actions, or fails them with `why`, waits until none runs, and gives back what it held. */
  async closeTrajectory(trajectory: string, why?: TreadleError): Promise<void> {
    const own = [...this.#records.values(), ...this.#running.values()].filter((r) => r.spec.trajectory === trajectory);
    for (const record of own) this.#stop(record, why ?? cancelled(record.id, `trajectory '${trajectory}' was closed`));
    await Promise.all(own.map((r) => r.running));
    const options = this.#trajectories.get(trajectory);
    this.#trajectories.delete(trajectory);
    for (const manager of this.#managers.values()) manager.endTrajectory(trajectory);
    this.#charging.gaveBack(trajectory, this.#clock.now());
    await options?.onClose?.();
    this.#wake();
  }

  /**
   * Queues an action. Throws `action.invalid` or `action.impossible`; all later failures are the result's.
   * `execute` runs when its units are granted and should end soon after `signal` aborts.
   */
  submit<Result>(spec: unknown, execute: (context: ActionContext) => Promise<Result>): ActionHandle<Result> {
    const record = this.#recordOf(spec, execute);
    const result = new Promise<Result>((resolve, reject) => {
      Object.assign(record.settle, { resolve, reject });
    });
    // A caller that only cancels need not listen.
    result.catch(() => {});
    const { deadlineMs } = record.spec;
    record.share = this.#charging.shareOf(record.spec);
    record.demand = this.#charging.demandOf(record.spec, record.share, this.history.expect(record.spec).oneUnitSeconds);
    if (deadlineMs !== undefined) {
      const late = (): void => this.#stop(record, new TreadleError("action.deadline", lateMessage(record, deadlineMs)));
      record.disarm.push(this.#clock.after(deadlineMs, late));
    }
    this.#records.set(record.id, record);
    this.#queue.add(record, this.#clock.now());
    this.#statistics.count(record.spec, "submitted");
    this.#wake();
    const seconds = (from: number | undefined, to: number | undefined): number | undefined =>
      from === undefined || to === undefined ? undefined : (to - from) / 1000;
    return {
      id: record.id,
      result,
      get queueingSeconds() {
        return seconds(record.submittedMs, record.grantedMs);
      },
      get overheadSeconds() {
        return seconds(record.grantedMs, record.startedMs);
      },
      get executionSeconds() {
        return seconds(record.startedMs, record.endedMs);
      },
      get allocation() {
        return record.allocation;
      },
      cancel: (reason = "its caller asked for it") => this.#stop(record, cancelled(record.id, reason)),
    };
  }

  get numWaiting(): number {
    return this.#queue.size;
  }

  get numRunning(): number {
    return this.#running.size;
  }

  /** By kind of action; of one tenant, or of all together. */
  statistics(tenant?: string): Record<string, KindStatistics> {
    return this.#statistics.report(tenant);
  }

  /** By kind: what is expected of it, and how well that was met; of one tenant, or of all together. */
  expectations(tenant?: string): ReadonlyMap<string, KindReport> {
    return this.history.report(tenant);
  }

  /** What a tenant was served so far: seconds of all of its dominant resource, by its weight. */
  serviceOf(tenant: string): number {
    return this.#shares.serviceOf(tenant, this.#clock.now());
  }

  /** Unit-seconds that each tenant was granted, by resource. */
  charged(): ReadonlyMap<string, Readonly<Record<string, number>>> {
    return this.#charged.report(this.#clock.now());
  }

  /** By resource; `units` is what is held or free, in all pools together. */
  usage(): Record<string, UsageReport & { readonly units: number }> {
    const now = this.#clock.now();
    const free = this.#freeUnits(now);
    const reports = Object.entries(this.#usage.report(now)).map(([resource, report]) => {
      return [resource, { ...report, units: report.held + free[resource]! }] as const;
    });
    return Object.fromEntries(reports);
  }

  /** The last grants, newest first, each with the reason for its size. */
  recentStarts(): (StartedAction & { readonly secondsAgo: number })[] {
    const now = this.#clock.now();
    return this.#starts.toReversed().map((start) => ({ ...start, secondsAgo: (now - start.atMs) / 1000 }));
  }

  /** What each tenant has waiting and running. */
  tenants(): Record<string, { readonly waiting: number; readonly running: number }> {
    const counts = new Map<string, { waiting: number; running: number }>(); // a tenant may be called '__proto__'
    for (const { tenant, state } of this.#records.values()) {
      const count = counts.get(tenant) ?? { waiting: 0, running: 0 };
      count[state === "running" ? "running" : "waiting"]++;
      counts.set(tenant, count);
    }
    return Object.fromEntries(counts);
  }

  get policy(): Policy {
    return this.#decide.policy;
  }

  /** Cancels everything, waits until nothing runs, and closes every trajectory (PO4). */
  async close(): Promise<void> {
    this.#closed = true;
    for (const record of [...this.#records.values()]) this.#stop(record, cancelled(record.id, "the pool was closed"));
    await Promise.all([...this.#running.values()].map((r) => r.running));
    await Promise.all([...this.#trajectories.keys()].map((t) => this.closeTrajectory(t)));
    this.#disarmWake?.();
  }

  #recordOf(input: unknown, execute: (context: ActionContext) => Promise<unknown>): ActionRecord {
    if (this.#closed) throw cancelled("?", "the pool was closed");
    const parsed = ActionSpec.safeParse(input);
    if (!parsed.success) {
      const problems = parsed.error.issues.map((i) => `${i.path.join(".") || "action"}: ${i.message}`);
      throw new TreadleError("action.invalid", problems.join("; "), { details: { problems } });
    }
    const spec = this.history.complete({ ...parsed.data, cost: this.#wholeWhereNotDivided(parsed.data.cost) });
    const id = spec.id ?? `${spec.kind}/${this.#made++}`;
    // Managers know it by that name until nothing of it runs (PO2).
    if (this.#records.has(id) || this.#running.has(id))
      throw new TreadleError(
        "action.invalid",
        `id: '${id}' is in use; an id is free again when its action has ended, which takes a moment after a cancel`,
      );
    const beyond = beyondCapacity(this.#managers, spec.cost);
    if (beyond !== undefined) throw beyond;
    const { trajectory, tenant } = spec;
    if (trajectory !== undefined) this.openTrajectory(trajectory, { tenant });
    const never = whyNever(this.#managers, { id, spec });
    if (never !== undefined) throw never;
    const now = this.#clock.now();
    return {
      id,
      spec,
      execute,
      tenant,
      rank: now - spec.priority * this.#priorityLevelMs,
      share: 0,
      demand: 0,
      submittedMs: now,
      abort: new AbortController(),
      settle: { resolve: () => {}, reject: () => {} },
      state: "waiting",
      attempt: 0,
      probeUnits: probeUnitsOf(spec, this.history, this.#managers, this.#decide.policy),
      alike: this.#alike.join(spec),
      formulated: undefined,
      bound: undefined,
      grantedMs: undefined,
      startedMs: undefined,
      endedMs: undefined,
      expectedSeconds: undefined,
      allocation: undefined,
      holds: [],
      disarm: [],
      running: undefined,
    };
  }

  #wholeWhereNotDivided(cost: ActionSpec["cost"]): ActionSpec["cost"] {
    const amounts = Object.entries(cost).map(([resource, amount]) => {
      const isWhole = typeof amount !== "number" || this.#managers.get(resource)?.grantsWholeUnits !== true;
      return [resource, isWhole ? amount : Math.ceil(amount)] as const;
    });
    return Object.fromEntries(amounts);
  }

  #wake(): void {
    if (this.#decisionDue) return;
    this.#decisionDue = true;
    queueMicrotask(() => {
      this.#decisionDue = false;
      this.#runDecisions();
    });
  }

  /** Decides until nobody else can start: what starts changes which node is the emptiest. */
  #runDecisions(): void {
    this.#disarmWake?.();
    this.#disarmWake = undefined;
    let nextMs = Number.POSITIVE_INFINITY;
    let now = this.#clock.now();
    for (let started = true; started && this.#queue.size > 0; ) {
      let againInSeconds: number | undefined;
      now = this.#clock.now();
      ({ started, againInSeconds } = this.#startSome(now));
      nextMs = (againInSeconds ?? Number.POSITIVE_INFINITY) * 1000;
    }
    if (this.#queue.size === 0) return;
    // As of the decision: what has become free since would be no change any more, and nobody would look again.
    for (const [resource, manager] of this.#managers)
      nextMs = Math.min(nextMs, manager.nextChangeMs(now, this.#binding.wanted.get(resource)) ?? nextMs);
    // Quotas free units by time alone, and patience ends with it (PL4); everything else wakes the pool itself.
    if (Number.isFinite(nextMs))
      this.#disarmWake = this.#clock.after(
        Math.min(longestTimerMs, Math.max(1, Math.ceil(nextMs))),
        () => this.#wake(),
        true,
      );
  }

  #startSome(now: number): { started: boolean; againInSeconds?: number | undefined } {
    const { waiting, impossible, settled } = this.#binding.see(this.#queue.order(window, now), now);
    for (const [record, why] of impossible) this.#stop(record, why);
    for (const trajectory of settled)
      this.#charging.reserves(trajectory, this.#trajectories.get(trajectory)?.tenant ?? "default", now);
    if (waiting.length === 0) return { started: false };
    const states = this.#resourceStates(now);
    const { selected, candidates, againInSeconds } = decide(waiting, states, this.#decide);
    const view: DecisionView = {
      policy: this.#decide.policy,
      waiting: waiting.length,
      candidates,
      started: selected.length,
      free: this.#freeUnits(now),
    };
    const most = (allocation: Readonly<Record<string, number>>): number => Math.max(0, ...Object.values(allocation));
    let started = false;
    // Largest first: managers that cut intervals rely on it (MG2).
    for (const { id, allocation, seconds } of [...selected].sort((a, b) => most(b.allocation) - most(a.allocation)))
      started = this.#start(this.#records.get(id)!, allocation, seconds, view, now) || started;
    return { started, againInSeconds };
  }

  /** By resource, in all its pools. */
  #freeUnits(now: number): Record<string, number> {
    const units = [...this.#managers].map(([resource, manager]) => {
      let free = 0;
      for (const pool of manager.pools(now).values()) free += pool.free;
      return [resource, free] as const;
    });
    return Object.fromEntries(units);
  }

  #resourceStates(now: number): Map<string, ResourceState> {
    const busy = new Map<string, Busy[]>();
    for (const record of this.#running.values()) {
      const elapsed = (now - (record.grantedMs ?? now)) / 1000;
      // Late already, or unknown: as long again as it has taken so far.
      const expected = record.expectedSeconds ?? this.history.expect(record.spec).oneUnitSeconds ?? unknownSeconds;
      const endsInSeconds = expected > elapsed ? expected - elapsed : Math.max(elapsed, 0.001);
      for (const { pool, units, fixed } of record.holds) {
        const list = busy.get(pool);
        if (list === undefined) busy.set(pool, [{ units, endsInSeconds, fixed }]);
        else list.push({ units, endsInSeconds, fixed });
      }
    }
    const states = new Map<string, ResourceState>();
    for (const manager of this.#managers.values())
      for (const [pool, state] of manager.pools(now)) states.set(pool, { ...state, busy: busy.get(pool) ?? [] });
    return states;
  }

  #start(
    record: ActionRecord,
    allocation: Readonly<Record<string, number>>,
    seconds: number | undefined,
    view: DecisionView,
    now: number,
  ): boolean {
    const grants: Record<string, Grant> = {};
    for (const [resource, manager] of this.#managers) {
      for (const [pool, units] of Object.entries(allocation)) {
        if (!manager.pools(now).has(pool)) continue;
        const grant = manager.acquire(pool, requestOf(record, units), units, now);
        if (grant === undefined) {
          for (const held of Object.keys(grants)) this.#managers.get(held)!.release(record.id, now);
          return false;
        }
        grants[resource] = grant;
      }
    }
    this.#queue.remove(record, now);
    record.state = "running";
    record.allocation = grants;
    record.holds = Object.values(grants).map(({ resource, pool, units }) => {
      return { pool, units, fixed: record.formulated?.elastic?.resource !== resource };
    });
    record.grantedMs = now;
    record.startedMs = undefined;
    record.endedMs = undefined;
    record.expectedSeconds = seconds;
    const units = Object.fromEntries(Object.values(grants).map((grant) => [grant.resource, grant.units]));
    for (const grant of Object.values(grants)) this.#held(record, grant, 1, now);
    this.#charging.began(record, Object.values(grants), seconds, now);
    const start = describeStart(record, view, units, now);
    this.#starts.push(start);
    if (this.#starts.length > keptStarts) this.#starts.shift();
    this.#running.set(record.id, record);
    record.running = this.#run(record, grants, start.why);
    return true;
  }

  #held({ tenant }: ActionRecord, grant: Grant, change: 1 | -1, nowMs: number): void {
    const units = change * heldUnits(grant);
    this.#usage.change(grant.resource, units, nowMs);
    this.#charged.change(tenant, grant.resource, units, nowMs);
  }

  async #run(record: ActionRecord, allocation: Record<string, Grant>, why: string): Promise<void> {
    let isCut = false;
    let isRefused = false;
    const context: ActionContext = {
      id: record.id,
      allocation,
      why,
      signal: record.abort.signal,
      attempt: record.attempt,
      begin: () => {
        record.startedMs = this.#clock.now();
      },
      wasCut: () => {
        isCut = true;
      },
      wasRefused: () => {
        isCut = true;
        isRefused = true;
      },
      throttled: (resource, retryAfterMs) => this.#managers.get(resource)?.throttled?.(this.#clock.now(), retryAfterMs),
    };
    let outcome: { ok: true; value: unknown } | { ok: false; error: unknown };
    try {
      for (const grant of Object.values(allocation)) await this.#prepare?.(grant, context);
      // What was cancelled meanwhile does not begin: it would wait for a signal that has been.
      context.signal.throwIfAborted();
      record.startedMs = this.#clock.now();
      outcome = { ok: true, value: await record.execute(context) };
    } catch (error) {
      outcome = { ok: false, error };
    }
    record.endedMs = this.#clock.now();
    this.#running.delete(record.id);
    for (const [resource, grant] of Object.entries(allocation)) {
      this.#managers.get(resource)!.release(record.id, record.endedMs);
      this.#held(record, grant, -1, record.endedMs);
    }
    this.#charging.ended(record, Object.values(allocation), record.endedMs);
    this.#wake();
    if (record.state === "settled") return;
    if (outcome.ok) this.#succeed(record, allocation, outcome.value, isCut, isRefused);
    else this.#retryOrFail(record, outcome.error);
  }

  #succeed(
    record: ActionRecord,
    allocation: Record<string, Grant>,
    value: unknown,
    isCut: boolean,
    isRefused: boolean,
  ): void {
    const { spec, submittedMs, grantedMs, startedMs, endedMs } = record;
    const executionSeconds = (endedMs! - startedMs!) / 1000;
    const units = spec.key === undefined ? 1 : (allocation[spec.key]?.units ?? 1);
    if (isCut && !isRefused) this.#statistics.count(spec, "failed");
    if (!isCut) {
      this.history.observe(spec, units, executionSeconds);
      this.#alike.learned(spec);
    }
    this.#statistics.completed(
      spec,
      (grantedMs! - submittedMs) / 1000,
      (startedMs! - grantedMs!) / 1000,
      executionSeconds,
    );
    if (!isRefused) for (const resource of Object.keys(allocation)) this.#managers.get(resource)!.succeeded?.();
    this.#forget(record);
    record.settle.resolve(value);
  }

  #retryOrFail(record: ActionRecord, error: unknown): void {
    const { spec } = record;
    if (error instanceof TreadleError && error.disposition === "retryable" && record.attempt < spec.retries.limit) {
      this.#statistics.count(spec, "retried");
      const backoffMs = Math.min(longestBackoffMs, spec.retries.backoffMs * 2 ** record.attempt++);
      const waitMs = Math.max(backoffMs, retryAfterIn(error));
      record.state = "backoff";
      const again = (): void => {
        if (record.state !== "backoff") return;
        record.state = "waiting";
        // Its rank is its old one: a retry keeps its place.
        this.#queue.add(record, this.#clock.now());
        this.#wake();
      };
      record.disarm.push(this.#clock.after(waitMs, again, true));
      return;
    }
    this.#statistics.count(spec, "failed");
    this.#forget(record);
    record.settle.reject(
      error instanceof TreadleError
        ? error
        : new TreadleError(
            "action.failed",
            `action '${record.id}' failed: ${error instanceof Error ? error.message : String(error)}`,
            { cause: error },
          ),
    );
  }

  /** Settles an action at once with an error; what runs is aborted and keeps its units until it has ended (PO1, PO2). */
  #stop(record: ActionRecord, error: TreadleError): void {
    if (record.state === "settled") return;
    this.#queue.remove(record, this.#clock.now());
    this.#statistics.count(record.spec, error.code === "action.cancelled" ? "cancelled" : "failed");
    this.#forget(record);
    record.settle.reject(error);
    record.abort.abort(error);
    this.#wake();
  }

  #forget(record: ActionRecord): void {
    record.state = "settled";
    for (const disarm of record.disarm) disarm();
    this.#records.delete(record.id);
    this.#alike.leave(record.alike);
  }
}
