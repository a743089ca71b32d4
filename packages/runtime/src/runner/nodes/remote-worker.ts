/** A worker process as its runner holds it, on whatever node it runs. */
import type { ErrorCode, ErrorRecord, ExitReport } from "@treadle/contracts";

export type LaunchedWorker = {
  readonly worker: string;
  readonly incarnation: number;
  readonly node: string;
  readonly pid: number | undefined;
  readonly alive: boolean;
  readonly exited: Promise<ExitReport>;
  /** Ends the process at once; `verdict` is reported as the reason. */
  end(verdict?: ErrorRecord): void;
  /** Waits for an orderly end, then ends it. */
  stop(graceMs: number): Promise<ExitReport>;
};

type RemoteWorkerPorts = {
  command(verb: "end", body: { readonly verdict?: ErrorRecord }): void;
  command(verb: "stop", body: { readonly graceMs: number }): void;
  ended(): void;
};

/** A node may be cut off just now; its processes end by themselves then, without anybody who could say so. */
const reportMs = 3000;

/** Ends that cost no restart (S2), and that no process says of itself: that its node is lost, or its runner not reached. */
const uncounted: ReadonlySet<string> = new Set<string>(["node.lost", "runner.unreachable"] satisfies ErrorCode[]);

export class RemoteWorker implements LaunchedWorker {
  readonly worker: string;
  readonly incarnation: number;
  readonly node: string;
  readonly exited: Promise<ExitReport>;
  readonly #ports: RemoteWorkerPorts;
  #settle!: (report: ExitReport) => void;
  #verdict: ErrorRecord | undefined;
  pid: number | undefined;
  alive = true;

  constructor(worker: string, incarnation: number, node: string, ports: RemoteWorkerPorts) {
    this.worker = worker;
    this.incarnation = incarnation;
    this.node = node;
    this.#ports = ports;
    this.exited = new Promise((resolve) => {
      this.#settle = resolve;
    });
  }

  end(verdict?: ErrorRecord): void {
    if (!this.alive) return;
    this.#verdict ??= verdict;
    this.#ports.command("end", verdict === undefined ? {} : { verdict: withoutStack(verdict) });
  }

  async stop(graceMs: number): Promise<ExitReport> {
    if (!this.alive) return this.exited;
    this.#ports.command("stop", { graceMs });
    return this.#exitedWithin(graceMs + reportMs, {
      code: "node.lost",
      message: `node '${this.node}' has not reported the end of '${this.worker}'`,
    });
  }

  /** Its node, which was told to end it, has no such process: its report is on its way, or nobody makes one any more. */
  missing(): void {
    this.#verdict = undefined; // it had ended already, for another reason
    void this.#exitedWithin(reportMs, {
      code: "node.lost",
      message: `worker '${this.worker}' is no more on node '${this.node}', which has not reported its end`,
      details: { node: this.node, endedByNode: true },
    });
  }

  /**
   * As its node says. A process that says of itself what only the runner can tell has crashed all the same; what its node has
   * ended of its own accord has not (ND4).
   */
  reported(node: string, report: ExitReport): void {
    const { failure, endedByNode } = report;
    if (endedByNode !== undefined) {
      const message = `worker '${this.worker}' was ended by node '${node}', ${endedByNode}`;
      this.settle(node, { ...report, failure: { code: "node.lost", message, details: { node, endedByNode: true } } });
      return;
    }
    const isCrash = failure !== undefined && uncounted.has(failure.code);
    this.settle(node, isCrash ? { ...report, failure: { ...failure, code: "worker.died" } } : report);
  }

  /** Without a report until then, it has failed so. */
  async #exitedWithin(limitMs: number, failure: ErrorRecord): Promise<ExitReport> {
    const timer = setTimeout(() => this.settle(this.node, exitOf(this, failure)), limitMs);
    const report = await this.exited;
    clearTimeout(timer);
    return report;
  }

  /** ND1: the first report counts. */
  settle(node: string, report: ExitReport): void {
    if (!this.alive || node !== this.node) return;
    this.alive = false;
    this.#ports.ended();
    const failure = this.#verdict ?? report.failure;
    this.#settle({ ...report, ...(failure === undefined ? {} : { failure }) });
  }
}

function withoutStack({ stack: _, ...record }: ErrorRecord): ErrorRecord {
  return record;
}

/** The end of a process that nobody can report any more. */
export function exitOf(worker: LaunchedWorker, failure: ErrorRecord): ExitReport {
  const { incarnation } = worker;
  return { worker: worker.worker, incarnation, code: null, signal: null, failure, logTail: [] };
}
