/**
 * Decides what a worker's death, silence, or a standstill of the whole run leads to. Pure: the cluster tells it what
 * happened and when, and does what it answers.
 *
 * Owner of: when each worker was last heard of, how often each died, when anything last moved.
 *
 * S1 the first failure is the one that counts: a second one never replaces it.
 * S2 a death within the budget restarts the rank, or its whole group when the ranks hold one state together. Only crashes
 *    are counted, and only until a step that began afterwards has been finished: the loss of a node says nothing about the
 *    worker, and a worker that its runner's door kept out has not begun.
 * S3 silence has a deadline; a standstill is reported after `stallMs` and fails the run after five times as long. While a
 *    worker starts, which has a deadline of its own, nothing stands still. A main thread that computes for longer than
 *    `stallMs` without a pause is reported, and again each time that has doubled.
 */
import { type ErrorRecord, fromErrorRecord, TreadleError } from "@treadle/contracts";

export type SupervisionLimits = {
  readonly maxRestarts: number;
  readonly restartWindowMs: number;
  readonly heartbeatTimeoutMs: number;
  readonly stallMs: number;
};

export type Death = {
  readonly worker: string;
  readonly component: string;
  readonly code: number | null;
  readonly signal: string | null;
  readonly failure?: ErrorRecord | undefined;
  readonly logTail: readonly string[];
};

export type DeathDecision =
  | { readonly type: "restart"; readonly scope: "rank" | "group"; readonly cause: TreadleError }
  | { readonly type: "fail"; readonly cause: TreadleError };

export type TickDecision =
  | { readonly type: "end-worker"; readonly worker: string; readonly cause: ErrorRecord }
  | { readonly type: "report-stall"; readonly stalledMs: number }
  | { readonly type: "report-busy"; readonly worker: string; readonly busyMs: number; readonly stack?: string }
  | { readonly type: "fail-stalled"; readonly stalledMs: number };

const stallFactor = 5;
/** So much longer a report waits for the stack of what is computed. */
const stackGraceMs = 5000;
/** Starts of one worker in a row that never reached the runner; each has taken `startTimeoutMs`. */
const maxUnreached = 5;
/** Ends of one worker by its node, without a whole step in between: that node does not hear what is there. */
const maxEndedByNode = 10;

export class SupervisorState {
  readonly #limits: SupervisionLimits;
  readonly #lastHeardMs = new Map<string, number>();
  readonly #starting = new Set<string>();
  readonly #busy = new Map<string, { busyMs: number; stack: string | undefined; reportAtMs: number }>();
  /** by component, when each crash was that still counts */
  readonly #crashes = new Map<string, readonly number[]>();
  readonly #unreached = new Map<string, number>();
  readonly #endedByNode = new Map<string, number>();
  #lastProgressMs: number;
  #stallReported = false;

  constructor(limits: SupervisionLimits, nowMs: number) {
    this.#limits = limits;
    this.#lastProgressMs = nowMs;
  }

  /** A worker is on its way; `watch` or `unwatch` follows. */
  starting(worker: string): void {
    this.#starting.add(worker);
  }

  /** A worker has started to be watched. */
  watch(worker: string, nowMs: number): void {
    this.#starting.delete(worker);
    this.#unreached.delete(worker);
    this.#lastHeardMs.set(worker, nowMs);
  }

  unwatch(worker: string): void {
    this.#starting.delete(worker);
    this.#lastHeardMs.delete(worker);
    this.#busy.delete(worker);
  }

  /** Whatever a worker says shows that it lives. */
  heard(worker: string, nowMs: number): void {
    if (this.#lastHeardMs.has(worker)) this.#lastHeardMs.set(worker, nowMs);
  }

  /** `busyMs`: how long the main thread has been computing without a pause. That is progress, up to the limit below. */
  heartbeat(worker: string, busyMs: number, nowMs: number, stack?: string): void {
    if (!this.#lastHeardMs.has(worker)) return;
    this.heard(worker, nowMs);
    const before = this.#busy.get(worker);
    const isSame = before !== undefined && before.busyMs <= busyMs;
    this.#busy.set(worker, { busyMs, stack, reportAtMs: isSame ? before.reportAtMs : this.#limits.stallMs });
    if (busyMs > 500) this.progress(nowMs);
  }

  /** Anything moved: a call began or ended, an item passed, a lock changed hands. */
  progress(nowMs: number): void {
    this.#lastProgressMs = nowMs;
    this.#stallReported = false;
  }

  /** When a worker that is watched was last heard of. */
  lastHeardMs(worker: string): number | undefined {
    return this.#lastHeardMs.get(worker);
  }

  /** How long a worker's main thread has been busy, for reports. */
  busyMs(worker: string): number {
    return this.#busy.get(worker)?.busyMs ?? 0;
  }

  /** How long nothing has moved. */
  quietMs(nowMs: number): number {
    return nowMs - this.#lastProgressMs;
  }

  died(death: Death, restart: "rank" | "group", nowMs: number): DeathDecision {
    this.unwatch(death.worker);
    this.progress(nowMs);
    const cause = describeDeath(death);
    // What the user must change, or what would only happen again, does not get better by trying again.
    if (cause.disposition !== "retryable") return { type: "fail", cause };
    const gaveUp = this.#count(death, cause, nowMs);
    if (gaveUp !== undefined) {
      const { origin } = cause;
      return { type: "fail", cause: new TreadleError("worker.gave-up", gaveUp, { cause, origin }) };
    }
    return { type: "restart", scope: restart, cause };
  }

  /** A step that began at `startedMs` has been finished: what died before then has been overcome. */
  stepFinished(startedMs: number): void {
    this.#endedByNode.clear();
    for (const [component, crashes] of this.#crashes) {
      const left = crashes.filter((atMs) => atMs > startedMs);
      if (left.length > 0) this.#crashes.set(component, left);
      else this.#crashes.delete(component);
    }
  }

  /** Why no more is tried, if so. */
  #count({ worker, component, failure }: Death, cause: TreadleError, nowMs: number): string | undefined {
    const { restartWindowMs, maxRestarts } = this.#limits;
    if (failure?.code === "node.lost") {
      if (failure.details?.["endedByNode"] !== true) return undefined;
      const times = (this.#endedByNode.get(worker) ?? 0) + 1;
      this.#endedByNode.set(worker, times);
      const isTooOften = times > maxEndedByNode;
      return isTooOften ? `'${times}' times in a row, without a whole step in between: ${cause.message}` : undefined;
    }
    if (failure?.code === "runner.unreachable") {
      const times = (this.#unreached.get(worker) ?? 0) + 1;
      this.#unreached.set(worker, times);
      return times > maxUnreached ? `'${times}' starts in a row did not reach the runner: ${cause.message}` : undefined;
    }
    const recent = (this.#crashes.get(component) ?? []).filter((atMs) => atMs > nowMs - restartWindowMs);
    const crashes = [...recent, nowMs];
    this.#crashes.set(component, crashes);
    if (crashes.length <= maxRestarts) return undefined;
    return `'${component}' died '${crashes.length}' times within ${Math.round(restartWindowMs / 1000)} s without a whole step in between, more than supervision.maxRestarts allows (${maxRestarts}), the last time since ${cause.message}`;
  }

  tick(nowMs: number): TickDecision[] {
    const decisions: TickDecision[] = [];
    for (const [worker, heardMs] of this.#lastHeardMs) {
      const silentMs = nowMs - heardMs;
      if (silentMs <= this.#limits.heartbeatTimeoutMs) continue;
      this.#lastHeardMs.set(worker, nowMs); // ended once, not at every tick until it is reaped
      decisions.push({
        type: "end-worker",
        worker,
        cause: {
          code: "worker.unresponsive",
          message: `worker '${worker}' sent no heartbeat for '${Math.round(silentMs)}' ms, more than supervision.heartbeatTimeoutMs allows (${this.#limits.heartbeatTimeoutMs}); it is stopped or starved of processor time`,
        },
      });
    }
    for (const [worker, busy] of this.#busy) {
      const { busyMs, stack, reportAtMs } = busy;
      if (busyMs <= reportAtMs || (stack === undefined && busyMs <= reportAtMs + stackGraceMs)) continue;
      busy.reportAtMs = 2 * busyMs;
      decisions.push({ type: "report-busy", worker, busyMs, ...(stack === undefined ? {} : { stack }) });
    }
    if (this.#starting.size > 0) this.progress(nowMs);
    const stalledMs = nowMs - this.#lastProgressMs;
    if (stalledMs > this.#limits.stallMs * stallFactor) decisions.push({ type: "fail-stalled", stalledMs });
    else if (stalledMs > this.#limits.stallMs && !this.#stallReported) {
      this.#stallReported = true;
      decisions.push({ type: "report-stall", stalledMs });
    }
    return decisions;
  }
}

/** S1: what died, how, and what it said itself. */
function describeDeath(death: Death): TreadleError {
  const origin = { worker: death.worker, logTail: death.logTail };
  const how = death.signal ? `was ended by ${death.signal}` : `ended with exit code ${death.code ?? "unknown"}`;
  if (death.failure) {
    return fromErrorRecord({ ...death.failure, origin: { ...death.failure.origin, ...origin } });
  }
  return new TreadleError("worker.died", `worker '${death.worker}' ${how} without being asked to`, { origin });
}
