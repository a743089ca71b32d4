/**
 * The processes of ranks, from a place to ready and from an end to the next start.
 *
 * Owner of: no state but how many have been started again; each rank has its own (`rank-state.ts`).
 */
import { type ErrorRecord, type RankPlacement, toErrorRecord, type WorkerMemory } from "@treadle/contracts";
import { describeChain, waitChain, waitersFor } from "../device-lock/wait-for.ts";
import type { CallBook } from "../runner/call-book.ts";
import type { Exchange } from "../runner/exchange.ts";
import type { LoadOutcome } from "../runner/open-requests.ts";
import type { Emit, RunnerInput } from "../runner/runner-messages.ts";
import type { RankState } from "./rank-state.ts";
import type { RankTable } from "./rank-table.ts";
import { RecoveryClock } from "./recovery.ts";
import type { SupervisorState } from "./supervisor-state.ts";

export type ProcessesPorts = {
  readonly ranks: RankTable;
  readonly supervisor: SupervisorState;
  readonly exchange: Exchange;
  readonly calls: CallBook;
  readonly startTimeoutMs: number;
  readonly emit: Emit;
  /** a number for a call that nobody has had */
  readonly nextSequence: () => number;
  /** it is ready for its calls */
  readonly onUp: (rank: RankState) => void;
  readonly fail: (error: unknown) => void;
};

export class Processes {
  readonly #ports: ProcessesPorts;
  readonly #ranks: RankTable;
  readonly #supervisor: SupervisorState;
  readonly #exchange: Exchange;
  readonly #calls: CallBook;
  readonly #emit: Emit;
  #nowMs = 0;
  #restarts = 0;

  constructor(ports: ProcessesPorts) {
    this.#ports = ports;
    this.#ranks = ports.ranks;
    this.#supervisor = ports.supervisor;
    this.#exchange = ports.exchange;
    this.#calls = ports.calls;
    this.#emit = ports.emit;
  }

  set nowMs(nowMs: number) {
    this.#nowMs = nowMs;
  }

  get restarts(): number {
    return this.#restarts;
  }

  /** Makes the ranks of a layout; those of `staying` go on. */
  layOut(component: string, placements: readonly RankPlacement[], staying: ReadonlySet<RankState>): void {
    for (const rank of this.#ranks.layOut(component, placements, staying)) {
      this.#exchange.addWorker(rank.worker, rank.place.devices);
    }
  }

  start(rank: RankState): void {
    this.#supervisor.starting(rank.worker);
    if (this.#ranks.isThere(rank.place.node)) {
      this.#launch(rank);
      return;
    }
    rank.enter("placing", this.#nowMs);
    this.#seekPlace(rank);
  }

  #launch(rank: RankState): void {
    rank.enter("starting");
    this.#emit({ type: "launch", ...rank.id, place: rank.place });
  }

  launched(rank: RankState): void {
    rank.recovery?.mark("placed", this.#nowMs);
    // From here on its own process has the time that starts have.
    rank.sinceMs ??= this.#nowMs;
    this.#emit({ type: "wake", atMs: rank.sinceMs + this.#ports.startTimeoutMs });
  }

  connected(rank: RankState): void {
    rank.recovery?.mark("reached", this.#nowMs);
    if (rank.phase === "starting") rank.enter("setting-up", rank.sinceMs);
  }

  seekPlaces(): void {
    for (const rank of this.#ranks.all) if (rank.phase === "placing") this.#seekPlace(rank);
  }

  #seekPlace(rank: RankState): void {
    const seek = this.#ranks.seek(rank, this.#nowMs);
    if (seek.type === "here") {
      this.#launch(rank);
      return;
    }
    if (seek.type === "lost") {
      this.#ports.fail(seek.error);
      return;
    }
    if (seek.type === "wait") {
      this.#emit({ type: "wake", atMs: seek.untilMs });
      return;
    }
    const from = rank.place;
    rank.place = { node: seek.to.node, devices: [...seek.to.devices] };
    this.#exchange.addWorker(rank.worker, seek.to.devices);
    this.#emit({ type: "moved", worker: rank.worker, from, to: seek.to });
    this.#launch(rank);
  }

  /** A process is set up: it loads, where its class does, with its fellow ranks that come up. */
  ready(rank: RankState, { memoryBytes, tags }: WorkerMemory, loads: boolean): void {
    if (rank.phase === "starting") rank.enter("setting-up", rank.sinceMs);
    if (rank.phase !== "setting-up") return;
    rank.recovery?.mark("ready", this.#nowMs);
    rank.memoryBytes = memoryBytes;
    this.#exchange.reportMemory(rank.worker, loads && memoryBytes === 0 ? undefined : memoryBytes, tags);
    if (!loads) {
      this.#prepared(rank);
      return;
    }
    rank.enter("loading"); // the wait for its devices has a limit of its own
    this.#loadTogether(rank.component);
  }

  /** RK4: once the last one of a group that comes up is set up. */
  #loadTogether(component: string): void {
    const ranks = this.#ranks.of(component);
    if (ranks.some(({ phase }) => phase === "placing" || phase === "starting" || phase === "setting-up")) return;
    const loading = ranks.filter(({ phase, loadCall }) => phase === "loading" && loadCall === undefined);
    if (loading.length === 0) return;
    const sequence = this.#ports.nextSequence();
    for (const rank of loading) rank.loadCall = `${sequence}/${rank.index}`;
    this.#exchange.load(
      sequence,
      loading.map(({ worker, loadCall }) => ({ worker, call: loadCall as string })),
    );
  }

  /** Its devices are its own, and its `load` runs. */
  loads(rank: RankState): void {
    if (rank.phase !== "loading") return;
    rank.sinceMs = this.#nowMs;
    this.#emit({ type: "wake", atMs: this.#nowMs + this.#ports.startTimeoutMs });
  }

  /** Those whose load is over, or was refused. */
  settleLoads(): void {
    for (let loads = this.#exchange.takeLoads(); loads.length > 0; loads = this.#exchange.takeLoads())
      for (const each of loads) this.#settleLoad(each);
  }

  #settleLoad({ call, error }: LoadOutcome): void {
    const rank = this.#ranks.all.find(({ loadCall }) => loadCall === call);
    if (!rank) return;
    this.#endLoad(rank);
    if (error === undefined) this.#prepared(rank);
    else this.#emit({ type: "end-process", ...rank.id, verdict: toErrorRecord(error) });
  }

  #endLoad(rank: RankState): void {
    if (rank.loadCall === undefined) return;
    this.#exchange.closeCall(rank.loadCall, { ok: true });
    rank.loadCall = undefined;
  }

  /** Set up, loaded, and with its saved state: it gets its replayed calls before any work. */
  #prepared(rank: RankState): void {
    const { replays } = this.#ranks.traitsOf(rank.component);
    const due = rank.incarnation === 0 ? [] : replays;
    rank.replays = due.flatMap((method) => {
      const of = this.#calls.replayOf(rank.component, method);
      return of === undefined ? [] : [{ call: `${this.#ports.nextSequence()}/${rank.index}`, of }];
    });
    if (rank.replays.length === 0) {
      this.#up(rank);
      return;
    }
    rank.enter("replaying", rank.sinceMs ?? this.#nowMs);
    this.#replay(rank);
  }

  #replay(rank: RankState): void {
    const [next] = rank.replays;
    if (!next) {
      this.#up(rank);
      return;
    }
    const sequence = Number(next.call.slice(0, next.call.indexOf("/")));
    this.#exchange.openCall({ call: next.call, worker: rank.worker, sequence, ends: [] });
    this.#emit({ type: "replay", ...rank.id, call: next.call, sequence, of: next.of });
  }

  /** A replayed call is over; the next one follows, or its process ends with the reason. */
  replayed(rank: RankState, call: string, failure: ErrorRecord | undefined): void {
    if (rank.phase !== "replaying" || rank.replays[0]?.call !== call) return;
    this.#exchange.closeCall(call, { ok: true });
    rank.replays = rank.replays.slice(1);
    if (failure !== undefined) this.#emit({ type: "end-process", ...rank.id, verdict: failure });
    else this.#replay(rank);
  }

  #up(rank: RankState): void {
    rank.enter("ready", this.#nowMs);
    this.#supervisor.watch(rank.worker, this.#nowMs);
    rank.recovery?.mark("up", this.#nowMs);
    const isFirst = rank.incarnation === rank.firstIncarnation;
    this.#emit({ type: "up", ...rank.id, isFirst, recovery: rank.recovery?.seconds() });
    this.#ports.onUp(rank);
  }

  /** Its process has ended. Answers with the ranks that start again for it: none, where the run has failed or fails by it. */
  died(
    rank: RankState,
    { code, signal, failure, logTail }: Extract<RunnerInput, { type: "exited" }>,
    hasFailed: boolean,
  ): readonly RankState[] {
    const heardMs = this.#supervisor.lastHeardMs(rank.worker);
    this.#supervisor.unwatch(rank.worker);
    if (hasFailed) return []; // nothing starts any more
    const { restart } = this.#ranks.traitsOf(rank.component);
    const death = { worker: rank.worker, component: rank.component, code, signal, failure, logTail };
    const decision = this.#supervisor.died(death, restart, this.#nowMs);
    this.#emit({ type: "died", ...rank.id, cause: decision.cause, code, signal });
    if (decision.type === "fail") {
      this.#ports.fail(decision.cause);
      return [];
    }
    const again = decision.scope === "group" ? this.#ranks.of(rank.component) : [rank];
    for (const each of again) each.recovery = this.#recoveryOf(each, each === rank ? heardMs : undefined);
    for (const each of again) this.discard(each); // RS2
    for (const each of again) this.tellPeers(each.worker);
    const workers = new Set(again.map(({ worker }) => worker));
    const startingOver = this.#calls.startOver(rank.component, workers);
    for (const { call, worker, sequence } of startingOver) {
      const pending = { call, sequence, attempts: 0, sentMs: undefined, retry: undefined };
      (this.#ranks.get(worker) as RankState).pending.set(call, pending);
    }
    this.#exchange.startOver(startingOver);
    this.#restarts += again.length;
    for (const each of again) this.start(each);
    return again;
  }

  #recoveryOf(rank: RankState, heardMs: number | undefined): RecoveryClock {
    const knownMs = this.#nowMs;
    const untilMs = Math.min(heardMs ?? knownMs, knownMs);
    // Its calls run one after another, so that the oldest began when it was sent, or when the one before it returned.
    const sentMs = Math.min(untilMs, ...[...rank.pending.values()].map((call) => call.sentMs ?? untilMs));
    const lostMs = Math.max(0, untilMs - Math.max(sentMs, rank.returnedMs));
    return new RecoveryClock({ heardMs: untilMs, knownMs, lostMs });
  }

  /** What its process may still say counts no more, and what it held is free (RS2). */
  discard(rank: RankState): void {
    for (const { call } of rank.replays) this.#exchange.closeCall(call, { ok: true });
    rank.replays = [];
    this.#endLoad(rank);
    this.#emit({ type: "discard", ...rank.id });
    rank.incarnation++; // RK2
    rank.awaits = [];
    rank.enter("down");
    this.#supervisor.unwatch(rank.worker);
    this.#exchange.workerDied(rank.worker);
  }

  tellPeers(dead: string): void {
    for (const rank of this.#ranks.all) {
      if (rank.worker !== dead && rank.phase !== "down" && rank.phase !== "placing")
        this.#emit({ type: "peer-died", ...rank.id, dead });
    }
  }

  /** S3: what a start waits for, down to the one that waits for nobody. */
  #whyLate(worker: string): string {
    const chain = waitChain(worker, this.#ranks.messageWaits);
    if (chain.path.length === 0) return "";
    const last = this.#ranks.get(chain.path.at(-1)?.waitsFor ?? "");
    const isComing = last !== undefined && last.phase !== "ready" && last.phase !== "replaying";
    const end = chain.cycle ? "" : isComing ? ", which is still starting" : ", which has started and sends none";
    return `: it waits for ${describeChain(chain)}${end}`;
  }

  /** Ends, with the reason, what has been starting for too long. The time in which a rank that it waits for has no place does not count (RT1). */
  endLateStarts(): void {
    const { startTimeoutMs } = this.#ports;
    const placing = this.#ranks.all.filter(({ phase }) => phase === "placing").map(({ worker }) => worker);
    const held = placing.length === 0 ? new Set() : waitersFor(placing, this.#ranks.messageWaits);
    for (const rank of this.#ranks.all) {
      const { phase, worker } = rank;
      const isComing = phase === "starting" || phase === "setting-up" || phase === "loading" || phase === "replaying";
      if (!isComing || rank.sinceMs === undefined) continue;
      if (held.has(worker)) rank.sinceMs = this.#nowMs;
      if (this.#nowMs - rank.sinceMs < startTimeoutMs) continue;
      rank.sinceMs = undefined; // ended once, not at every tick until it is reaped
      const within = `within supervision.startTimeoutMs (${startTimeoutMs} ms)`;
      const verdict =
        phase === "starting"
          ? {
              code: "runner.unreachable",
              message: `worker '${worker}' did not reach the runner ${within}; see cluster.links, firewalls, and who else connects to this machine`,
            }
          : {
              code: "worker.unresponsive",
              message: `worker '${worker}' was not ${phase === "loading" ? "loaded" : "ready"} ${within}${this.#whyLate(worker)}`,
            };
      this.#emit({ type: "end-process", ...rank.id, verdict });
    }
  }
}
