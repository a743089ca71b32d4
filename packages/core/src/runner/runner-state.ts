/**
 * Everything that is decided about a run, in one machine: what its channels and devices give to whom, which process is
 * started, ended or told what, which call is sent, sent again or settled, and which step is committed.
 *
 * Live, in the simulation, under drawn faults and from a recording it is this class that decides; what differs is who
 * feeds it and who acts on its effects. An input is handled whole before the next one, and time arrives with it.
 *
 * - RS1 (S1) the first failure is the one that counts.
 * - RS2 a dead process is forgotten everywhere, locks, channels and peers included, before its calls start over.
 * - RS3 ranks that a plan moves change while no call is open: those end in order, and start from their saved state.
 * - RS4 whoever pulls from others when it starts comes after those others.
 * - RS5 a request gets one answer, and so does a call of each rank.
 * - RS6 ranks that hold one state together start over together, in new processes, also when one of them misses a peer.
 * - RS7 equal inputs at equal times have equal effects: what went in is enough to know what was decided.
 * - RS8 where states are saved beside the steps that follow, a step is committed with the first that is whole in saved states
 *   (SS1); a process that dies with what no saved state has ends this composition, to begin again after the last commit.
 */
import { type ReleasableTag, TreadleError } from "@treadle/contracts";
import { Processes } from "../ranks/processes.ts";
import type { RankState } from "../ranks/rank-state.ts";
import { RankTable } from "../ranks/rank-table.ts";
import { type SupervisionLimits, SupervisorState } from "../ranks/supervisor-state.ts";
import type { Standstill } from "../standstill.ts";
import { StepCommits } from "../steps/step-commits.ts";
import { CallBook, outcomeOf, type Settled } from "./call-book.ts";
import { streamOf } from "./channel-book.ts";
import { Exchange } from "./exchange.ts";
import { PlanChanges } from "./plan-changes.ts";
import type { RunnerEffect, RunnerInput } from "./runner-messages.ts";
import { type ShownState, shownState } from "./shown-state.ts";
import { Stillness } from "./stillness.ts";

export type RunnerOptions = {
  readonly supervision: SupervisionLimits & { readonly lockTimeoutMs: number; readonly startTimeoutMs: number };
  /** how long ranks of a lost node wait for it */
  readonly rejoinMs: number;
  /** how long they wait then for room on another one */
  readonly placeWaitMs: number;
  readonly maxStaleness: number;
  /** states are saved beside the steps that follow, and not after each */
  readonly runsAhead?: boolean | undefined;
  /** its devices are shared with other runs, and used under leases of a pool alone */
  readonly isLeased?: boolean | undefined;
};

/** What a process does, which counts only while it is the present one of its rank. */
type ProcessInput = Extract<
  RunnerInput,
  {
    type:
      | "launched"
      | "connected"
      | "ready"
      | "awaits"
      | "replayed"
      | "durable"
      | "resized"
      | "exited"
      | "onloaded"
      | "offloaded"
      | "swap-failed";
  }
>;

/**
 * The news of a peer's death may still be on its way: so long after the first attempt, four times as long after each
 * further one, up to the longest, since waiting longer would keep a step from peers that are back.
 */
const retryDelayMs = 50;
const longestRetryDelayMs = 1500;
/** Together they wait longer than a node that went without a word takes to be found out. */
export const maxAttempts = 16;

export class RunnerState {
  readonly #exchange: Exchange;
  readonly #calls = new CallBook((sequence) => this.#forgotten.push(sequence));
  readonly #ranks: RankTable;
  readonly #supervisor: SupervisorState;
  readonly #processes: Processes;
  readonly #stillness: Stillness;
  readonly #commits: StepCommits;
  readonly #changes: PlanChanges;
  #out: RunnerEffect[] = [];
  /** ranks with calls that are to be sent again */
  readonly #retrying = new Set<RankState>();
  /** calls whose arguments nobody needs after this input */
  readonly #forgotten: number[] = [];
  #nowMs: number;
  #lastSequence = 0;
  #failure: TreadleError | undefined;
  #policyFailure: TreadleError | undefined;
  #isOver = false;

  constructor(options: RunnerOptions, nowMs: number) {
    this.#nowMs = nowMs;
    this.#supervisor = new SupervisorState(options.supervision, nowMs);
    this.#commits = new StepCommits({
      maxStaleness: options.maxStaleness,
      runsAhead: options.runsAhead === true,
      nowMs,
      emit: (effect) => this.#emit(effect),
      onEnded: (step) => this.#stillness.sayUntaken(step, streamOf(step)),
      isOpen: (call) => this.#calls.isOpen(call),
      isPresent: (input) => this.#ranks.present(input) !== undefined,
    });
    this.#ranks = new RankTable(options);
    this.#exchange = new Exchange({
      lockTimeoutMs: options.supervision.lockTimeoutMs,
      isLeased: options.isLeased === true,
      emit: (effect) => this.#emit(effect),
      onProgress: () => this.#supervisor.progress(this.#nowMs),
      onSwap: (worker, swap, tags) => this.#swap(worker, swap, tags),
      onPolicyFailed: (error) => {
        this.#policyFailure ??= error;
      },
    });
    this.#processes = new Processes({
      ranks: this.#ranks,
      supervisor: this.#supervisor,
      exchange: this.#exchange,
      calls: this.#calls,
      startTimeoutMs: options.supervision.startTimeoutMs,
      emit: (effect) => this.#emit(effect),
      nextSequence: () => ++this.#lastSequence,
      onUp: (rank) => this.#up(rank),
      fail: (error) => this.#fail(error),
    });
    this.#changes = new PlanChanges({
      ranks: this.#ranks,
      processes: this.#processes,
      supervisor: this.#supervisor,
      emit: (effect) => this.#emit(effect),
    });
    this.#stillness = new Stillness({
      calls: this.#calls,
      exchange: this.#exchange,
      supervisor: this.#supervisor,
      ranks: this.#ranks,
      stallMs: options.supervision.stallMs,
      emit: (effect) => this.#emit(effect),
      fail: (error) => this.#fail(error),
    });
  }

  /** Throws only for what a workflow must change at once, such as a channel that is defined twice; nothing has changed then. */
  handle(input: RunnerInput, nowMs: number): readonly RunnerEffect[] {
    this.#nowMs = nowMs;
    this.#exchange.nowMs = nowMs;
    this.#processes.nowMs = nowMs;
    this.#commits.nowMs = nowMs;
    this.#out = [];
    this.#dispatch(input);
    this.#processes.settleLoads();
    if (this.#policyFailure !== undefined) this.#fail(this.#policyFailure); // when what it broke into is whole again
    this.#policyFailure = undefined;
    for (const sequence of this.#forgotten.splice(0)) this.#emit({ type: "forget", sequence });
    return this.#out;
  }

  // What it shows of itself.

  get failure(): TreadleError | undefined {
    return this.#failure;
  }
  get restarts(): number {
    return this.#processes.restarts;
  }
  get hasOpenCalls(): boolean {
    return !this.#calls.isEmpty;
  }
  get channels(): { channel: string; depth: number }[] {
    return this.#exchange.channels.map((channel) => ({ channel, depth: this.#exchange.depth(channel) }));
  }
  get ranks(): readonly Readonly<
    Pick<RankState, "worker" | "component" | "index" | "place" | "phase" | "incarnation">
  >[] {
    return this.#ranks.all;
  }
  rank(worker: string): Readonly<Pick<RankState, "worker" | "place" | "phase" | "incarnation">> | undefined {
    return this.#ranks.get(worker);
  }
  ranksOf(component: string): readonly Readonly<Pick<RankState, "worker" | "index" | "place" | "incarnation">>[] {
    return this.#ranks.of(component);
  }
  consumersOf(channel: string): ReadonlySet<string> {
    return this.#exchange.consumersOf(channel);
  }
  channelSnapshots(): ReturnType<Exchange["snapshots"]> {
    return this.#exchange.snapshots();
  }
  lockSnapshot(): ReturnType<Exchange["lockSnapshot"]> {
    return this.#exchange.lockSnapshot();
  }
  /** The step that must be committed before this one begins; undefined when none is in the way (W2). */
  blockerOf(step: number): number | undefined {
    return this.#commits.blockerOf(step);
  }
  /** The newest saved state of a component. */
  newestState(component: string): string | undefined {
    return this.#commits.newest(component);
  }
  get unsaved(): readonly string[] {
    return this.#commits.unsaved;
  }
  /** The highest number that a call has had, replays included. */
  get lastSequence(): number {
    return this.#lastSequence;
  }
  /** The newest state of every component. */
  get newestStates(): Readonly<Record<string, string>> {
    return this.#commits.newestStates;
  }
  /** What is under way. */
  get shown(): ShownState {
    return shownState(this.#calls, this.#ranks, this.#commits);
  }
  /** Who waits for whom (S3). */
  standstill(): Standstill {
    return this.#stillness.standstill;
  }

  #emit(effect: RunnerEffect): void {
    this.#out.push(effect);
  }

  #dispatch(input: RunnerInput): void {
    if (this.#isOver) {
      this.#tooLate(input);
      return;
    }
    switch (input.type) {
      case "put":
        this.#request(input, () => this.#exchange.put(input));
        return;
      case "take":
        this.#request(input, () => this.#exchange.take(input));
        return;
      case "commit":
        this.#request(input, () => this.#exchange.commit(input));
        return;
      case "acquire":
        this.#request(input, () => this.#exchange.acquire(input.request, input.call, input.from.worker, input.tags));
        return;
      case "release":
        this.#request(input, () => {
          this.#exchange.release(input.call, input.from.worker, input.token);
          this.#emit({ type: "answer", request: input.request, answer: { type: "done" } });
        });
        return;
      case "leased":
      case "lease-wanted":
      case "lease-share":
      case "lease-alone":
        this.#exchange.lease(input);
        return;
      case "lend":
        if (this.#ranks.present(input.from)) this.#exchange.lend(input.call, input.from.worker, input.numAnswered);
        return;
      case "read":
        this.#exchange.read(input.worker, input.segments);
        return;
      case "call":
        this.#call(input);
        return;
      case "returned":
        this.#returned(input);
        return;
      case "threw":
        this.#threw(input);
        return;
      case "beat":
        if (this.#ranks.present(input))
          this.#supervisor.heartbeat(input.worker, input.busyMs, this.#nowMs, input.stack);
        return;
      case "tick":
        this.#tick();
        return;
      case "define-channel":
        this.#exchange.define(input.name, input.capacity, input.pick);
        return;
      case "limit-channels":
        this.#exchange.limit(input.capacity);
        return;
      case "add-component":
        this.#ranks.addComponent(input);
        this.#calls.forgetReplays(input.component); // of one that had this name and ended
        return;
      case "nodes":
        this.#ranks.setNodes(input.present, input.places);
        for (const { id, memoryBytes } of input.places) this.#exchange.addDevice(id, memoryBytes);
        this.#processes.seekPlaces();
        return;
      case "lay-out":
        for (const [component, { ranks }] of Object.entries(input.components))
          this.#processes.layOut(component, ranks, new Set());
        for (const component of Object.keys(input.components))
          for (const rank of this.#ranks.of(component)) this.#processes.start(rank);
        return;
      case "adopt":
        if (this.hasOpenCalls)
          throw new TreadleError("workflow.invalid", "a plan can be changed only while no call is open");
        this.#changes.begin(input.components, this.#nowMs); // RS3
        return;
      case "open":
        this.#exchange.openOwn(input.call, input.end);
        return;
      case "close":
        this.#exchange.closeCall(input.call, input.outcome);
        return;
      case "begin-step":
        this.#commits.begin(input.step);
        return;
      case "begin-work":
        this.#commits.callBegan(input.step);
        return;
      case "end-work":
        this.#commits.callEnded(input.step);
        return;
      case "end-body":
        this.#commits.bodyEnded(input.step);
        return;
      case "committed":
        this.#supervisor.stepFinished(this.#commits.committed(input.step));
        return;
      case "restore":
        this.#commits.restore(input.states);
        return;
      case "fail":
        this.#fail(input.error);
        return;
      case "end":
        this.#end(input.error);
        return;
      default: {
        const rank = this.#ranks.present(input); // RK2
        if (rank) this.#onProcess(rank, input);
      }
    }
  }

  #onProcess(rank: RankState, input: ProcessInput): void {
    switch (input.type) {
      case "launched":
        this.#processes.launched(rank);
        return;
      case "connected":
        this.#processes.connected(rank);
        return;
      case "ready":
        this.#processes.ready(rank, input, input.loads === true);
        return;
      case "awaits":
        rank.awaits = input.messages;
        return;
      case "replayed":
        this.#processes.replayed(rank, input.call, input.failure);
        return;
      case "durable":
        this.#commits.durable(input);
        return;
      case "resized":
        this.#changes.resized(rank.worker);
        this.#changes.goOn(this.#nowMs);
        return;
      case "exited":
        this.#exited(rank, input);
        return;
      case "onloaded":
        rank.memoryBytes = input.memoryBytes;
        this.#exchange.onloaded(rank.worker, input);
        return;
      case "offloaded":
        this.#exchange.offloaded(rank.worker, input.residualBytes);
        return;
      case "swap-failed":
        this.#exchange.swapFailed(rank.worker, input.swap, input.error);
        return;
    }
  }

  /** What a call asks for, unless its process is not the present one. */
  #request(
    input: Extract<RunnerInput, { type: "put" | "take" | "commit" | "acquire" | "release" }>,
    act: () => void,
  ): void {
    const { request, from } = input;
    if (from !== undefined && !this.#ranks.present(from)) {
      const message = `'${from.worker}' asked for something after it had been replaced`;
      this.#emit({ type: "reject", request, error: new TreadleError("call.cancelled", message) });
      return;
    }
    if (from !== undefined) this.#supervisor.heard(from.worker, this.#nowMs);
    try {
      act();
    } catch (error) {
      if (!(error instanceof TreadleError)) throw error;
      this.#emit({ type: "reject", request, error });
    }
  }

  // Calls.

  #call(input: Extract<RunnerInput, { type: "call" }>): void {
    const { sequence, component, method, ranks, ends, step, changes = false } = input;
    const { restart, replays } = this.#ranks.traitsOf(component);
    this.#lastSequence = Math.max(this.#lastSequence, sequence);
    this.#supervisor.progress(this.#nowMs);
    const isGang = restart === "group";
    const group = { sequence, component, method, step, changes, isGang, isReplayed: replays.includes(method) };
    const calls = this.#calls.begin(group, ranks);
    // Ranks that hold one state together also work in step, so they get their devices together.
    const gang = isGang ? `call-${sequence}` : undefined;
    for (const { call, worker } of calls) this.#exchange.openCall({ call, worker, sequence, gang, ends }); // EX1
    for (const { call, worker } of calls) {
      const rank = this.#ranks.get(worker) as RankState;
      rank.pending.set(call, { call, sequence, attempts: 0, sentMs: undefined, retry: undefined });
      if (rank.phase === "ready") this.#send(rank, call);
    }
  }

  #send(rank: RankState, call: string): void {
    const pending = rank.pending.get(call);
    if (!pending) return;
    pending.attempts++;
    pending.sentMs ??= this.#nowMs;
    pending.retry = undefined;
    this.#emit({ type: "send", ...rank.id, call });
  }

  #returned(input: Extract<RunnerInput, { type: "returned" }>): void {
    const rank = this.#ranks.present(input);
    if (rank) this.#supervisor.heard(rank.worker, this.#nowMs);
    if (!rank?.pending.delete(input.call)) return; // RK2, RK3
    rank.returnedMs = this.#nowMs;
    this.#supervisor.progress(this.#nowMs);
    const settled = this.#calls.returned(input.call, input.savedPath);
    if (settled.length === 0) this.#exchange.replied(input.call);
    this.#settle(settled);
  }

  #threw(input: Extract<RunnerInput, { type: "threw" }>): void {
    const rank = this.#ranks.present(input);
    const pending = rank?.pending.get(input.call);
    if (!rank || !pending) return;
    const { error } = input;
    const isOurs = error instanceof TreadleError;
    // RK3: the end of the process comes by its own way and decides.
    if (isOurs && error.code === "link.closed" && error.origin.worker === undefined) return;
    if (isOurs && error.disposition === "retryable" && pending.attempts < maxAttempts) {
      if (this.#calls.isJoint(input.call)) {
        // RS6: its fellow ranks may be done with what it would begin again.
        const message = `'${rank.worker}' could not go on, so its group starts over: ${error.message}`;
        this.#emit({ type: "end-process", ...rank.id, verdict: { code: "worker.died", message } });
        return;
      }
      // A peer died: the call starts over when everybody is back.
      this.#exchange.startOver([{ call: input.call, worker: rank.worker }]);
      const atMs = this.#nowMs + Math.min(retryDelayMs * 4 ** pending.attempts, longestRetryDelayMs);
      pending.retry = { atMs, culprit: error.origin.worker };
      this.#retrying.add(rank);
      this.#wakeAt(atMs);
      return;
    }
    rank.pending.delete(input.call);
    // The process may still keep its later calls back for this one.
    if (pending.attempts > 1) this.#emit({ type: "give-up", ...rank.id, call: input.call });
    this.#settle(this.#calls.threw(input.call, error));
    this.#noteFailure(error);
  }

  #settle(settled: readonly Settled[]): void {
    this.#exchange.closeCalls(settled.map((each) => ({ call: each.call.call, outcome: outcomeOf(each) })));
    for (const {
      call: { call, index },
      group,
      savedPath,
      failure,
    } of settled) {
      if (failure === undefined) {
        const { component, step, sequence } = group;
        if (savedPath !== undefined) this.#commits.saved(component, savedPath, step);
        if (group.changes && index === 0) this.#commits.changed(component, step, sequence);
        this.#emit({ type: "settle", call });
      } else {
        this.#emit({ type: "settle-failed", call, error: failure.error });
      }
    }
    if (settled.length > 0) this.#changes.goOn(this.#nowMs);
  }

  #sendAgain(): void {
    const isBack = (worker: string) => this.#ranks.get(worker)?.phase === "ready";
    for (const rank of this.#retrying) {
      if (!rank.inOrder.some(({ retry }) => retry !== undefined)) this.#retrying.delete(rank);
      for (const { call, retry } of rank.inOrder) {
        if (retry === undefined || retry.atMs > this.#nowMs) continue;
        if (retry.culprit !== undefined && this.#ranks.get(retry.culprit) && !isBack(retry.culprit)) continue;
        if (this.#ranks.all.every((each) => isBack(each.worker))) this.#send(rank, call);
      }
    }
  }

  // Processes.

  #up(rank: RankState): void {
    for (const { call } of rank.inOrder) this.#send(rank, call); // RK1
    this.#sendAgain();
    this.#changes.goOn(this.#nowMs);
  }

  #exited(rank: RankState, report: Extract<RunnerInput, { type: "exited" }>): void {
    if (rank.phase === "draining") this.#processes.discard(rank);
    else {
      const again = this.#processes.died(rank, report, this.#failure !== undefined);
      for (const { worker } of again) this.#changes.resized(worker); // they start with the new size
      if (this.#commits.unsaved.includes(rank.component))
        this.#rollBack(rank.worker, report.failure?.code === "node.lost");
    }
    this.#changes.goOn(this.#nowMs);
  }

  /** RS8. */
  #rollBack(worker: string, nodeLost: boolean): void {
    const steps = this.#commits.uncommitted;
    const what = steps.length > 0 ? `ended since are '${steps.join(", ")}'` : "ended since is none";
    this.#fail(
      new TreadleError(
        "run.rolled-back",
        `'${worker}' died with what calls had changed since the newest saved state; of the steps, ${what}: the run goes on after the last committed one`,
        { origin: { worker }, details: { nodeLost } },
      ),
    );
  }

  #swap(worker: string, swap: "onload" | "offload", tags: readonly ReleasableTag[] | undefined): void {
    const rank = this.#ranks.get(worker);
    if (!rank) return;
    if (swap === "onload") this.#processes.loads(rank);
    this.#emit({ type: swap, ...rank.id, ...(tags && { tags }) });
  }

  // Time.

  #wakeAt(atMs: number): void {
    this.#emit({ type: "wake", atMs });
  }

  #tick(): void {
    // The pool's limits end that wait.
    if (this.#exchange.awaitsLease) this.#supervisor.progress(this.#nowMs);
    this.#stillness.lookForMissingCalls(this.#nowMs);
    this.#exchange.tick();
    this.#processes.seekPlaces();
    this.#processes.endLateStarts();
    this.#sendAgain();
    for (const decision of this.#supervisor.tick(this.#nowMs)) {
      if (decision.type === "end-worker") {
        const rank = this.#ranks.get(decision.worker);
        if (rank) this.#emit({ type: "end-process", ...rank.id, verdict: decision.cause });
      } else if (decision.type === "report-busy") {
        this.#stillness.reportBusy(decision);
      } else this.#stillness.stalled(decision, this.#nowMs);
    }
  }

  // The end.

  /** RS1. */
  #noteFailure(error: unknown): void {
    if (this.#failure) return;
    const failure =
      error instanceof TreadleError ? error : new TreadleError("call.failed", String(error), { cause: error });
    if (failure.disposition === "cancelled") return;
    this.#failure = failure;
    this.#emit({ type: "failed", error: failure });
  }

  #fail(error: unknown): void {
    this.#noteFailure(error);
    this.#rejectCalls(error);
  }

  #end(error: TreadleError): void {
    this.#isOver = true;
    this.#rejectCalls(error);
    this.#exchange.fail(error);
  }

  #rejectCalls(error: unknown): void {
    for (const call of this.#calls.unsettled()) this.#emit({ type: "settle-failed", call, error });
    this.#calls.clear();
    for (const rank of this.#ranks.all) rank.pending.clear();
  }

  /** Nothing that happens after the end counts; whoever asks is told. */
  #tooLate(input: RunnerInput): void {
    const error = this.#failure ?? new TreadleError("run.stopped", "the run has ended");
    if ("request" in input) this.#emit({ type: "reject", request: input.request, error });
  }
}
