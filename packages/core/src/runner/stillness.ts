/** What is said, and done in the end, while nothing moves (S3), and of what will never move again. */
import { TreadleError } from "@treadle/contracts";
import type { RankTable } from "../ranks/rank-table.ts";
import type { SupervisorState, TickDecision } from "../ranks/supervisor-state.ts";
import { channelWaits, describeMissingCalls, describeStandstill, type Standstill } from "../standstill.ts";
import type { CallBook } from "./call-book.ts";
import type { Exchange } from "./exchange.ts";
import type { Emit } from "./runner-messages.ts";
import { whyUnsent } from "./shown-state.ts";

export type StillnessOptions = {
  readonly calls: CallBook;
  readonly exchange: Exchange;
  readonly supervisor: SupervisorState;
  readonly ranks: RankTable;
  readonly stallMs: number;
  readonly emit: Emit;
  readonly fail: (error: TreadleError) => void;
};

type Stall = Extract<TickDecision, { type: "report-stall" | "fail-stalled" }>;
type Busy = Extract<TickDecision, { type: "report-busy" }>;

/** A wait that only a call of the workflow can end is said after so long without any progress. */
const missingCallMs = 3000;

export class Stillness {
  readonly #options: StillnessOptions;
  /** the missing calls of which the workflow's author has been told */
  #saidMissing: string | undefined;
  /** channels of which it was said that nobody takes what they hold */
  readonly #saidUntaken = new Set<string>();

  constructor(options: StillnessOptions) {
    this.#options = options;
  }

  /** Who waits for whom. */
  get standstill(): Standstill {
    const { calls, exchange, supervisor, ranks } = this.#options;
    const busyMs = (worker: string) => supervisor.busyMs(worker);
    const edges = [...exchange.lockEdges(), ...ranks.messageWaits];
    const open = calls.open.map((each) => ({ ...each, unsent: whyUnsent(ranks, each.worker, each.call) }));
    return describeStandstill(open, exchange.snapshots(), edges, busyMs);
  }

  /**
   * What no open call can end is said soon, and ends the run no sooner than any stall: the workflow, whose own code nobody
   * sees, may read a file or ask a server meanwhile, and make the missing call then.
   */
  lookForMissingCalls(nowMs: number): void {
    const { supervisor, stallMs } = this.#options;
    if (supervisor.quietMs(nowMs) < Math.min(missingCallMs, stallMs)) {
      this.#saidMissing = undefined;
      return;
    }
    const text = this.#missingCalls;
    if (text === undefined || text === this.#saidMissing) return;
    this.#saidMissing = text;
    this.#options.emit({ type: "notice", text });
  }

  /** Nothing has moved for too long; where nothing is asked of anybody, that is no stall. */
  stalled({ type, stalledMs }: Stall, nowMs: number): void {
    const { calls, exchange, supervisor, emit, fail } = this.#options;
    if (calls.isEmpty && channelWaits(exchange.snapshots()).length === 0) {
      supervisor.progress(nowMs);
      return;
    }
    const { waits, text } = this.standstill;
    if (type === "report-stall") {
      for (const { who, on } of waits) emit({ type: "waiting", who, on, seconds: stalledMs / 1000 });
      return;
    }
    const missing = this.#missingCalls;
    const why = missing ?? `${text}; raise supervision.stallMs if that is expected`;
    const message = `nothing moved for ${Math.round(stalledMs / 1000)} s: ${why}`;
    fail(new TreadleError(missing === undefined ? "call.timeout" : "workflow.invalid", message));
  }

  reportBusy({ worker, busyMs, stack }: Busy): void {
    const method = this.#options.calls.open.find((call) => call.worker === worker && !call.replied)?.method;
    const where = method === undefined ? "" : ` in '${method}'`;
    const at = stack === undefined ? "" : `, now at ${stack}`;
    const text = `'${worker}' has computed${where} for ${Math.round(busyMs / 1000)} s without a pause${at}; if that never ends, press Ctrl-C twice; if it is expected, raise supervision.stallMs`;
    this.#options.emit({ type: "notice", text });
  }

  /** Once a channel: a step's stream ends with the step, so what it holds then is taken by nobody. */
  sayUntaken(step: number, stream: string): void {
    for (const { channel, items } of this.#options.exchange.untaken(stream)) {
      if (this.#saidUntaken.has(channel)) continue;
      this.#saidUntaken.add(channel);
      const text = `channel '${channel}' holds '${items}' items of step ${step} that nobody took, and nobody will, since the step has ended; pass '${channel}.source' to a call of the same step, or do not put them`;
      this.#options.emit({ type: "notice", text });
    }
  }

  get #missingCalls(): string | undefined {
    const { calls, exchange } = this.#options;
    return describeMissingCalls(calls.open, exchange.snapshots(), exchange.lockEdges());
  }
}
