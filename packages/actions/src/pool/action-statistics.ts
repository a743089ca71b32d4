/** Completion times of one kind of action, in seconds: means over `completed`. */
export type KindStatistics = {
  readonly submitted: number;
  readonly completed: number;
  readonly failed: number;
  readonly cancelled: number;
  readonly retried: number;
  /** action completion time: queueing, overhead and execution together */
  readonly actSeconds: number;
  readonly queueingSeconds: number;
  readonly executionSeconds: number;
  /** preparation after the units were granted, such as restoring a service */
  readonly overheadSeconds: number;
  readonly longestActSeconds: number;
};

type Sums = { -readonly [key in keyof KindStatistics]: number };

export class ActionStatistics {
  readonly #kinds = new Map<string, Sums>();

  count(kind: string, what: "submitted" | "failed" | "cancelled" | "retried"): void {
    this.#of(kind)[what]++;
  }

  completed(kind: string, queueingSeconds: number, overheadSeconds: number, executionSeconds: number): void {
    const sums = this.#of(kind);
    const actSeconds = queueingSeconds + overheadSeconds + executionSeconds;
    sums.completed++;
    sums.actSeconds += actSeconds;
    sums.queueingSeconds += queueingSeconds;
    sums.overheadSeconds += overheadSeconds;
    sums.executionSeconds += executionSeconds;
    sums.longestActSeconds = Math.max(sums.longestActSeconds, actSeconds);
  }

  report(): Record<string, KindStatistics> {
    return Object.fromEntries(
      [...this.#kinds].map(([kind, sums]) => {
        const n = Math.max(1, sums.completed);
        return [
          kind,
          {
            ...sums,
            actSeconds: sums.actSeconds / n,
            queueingSeconds: sums.queueingSeconds / n,
            overheadSeconds: sums.overheadSeconds / n,
            executionSeconds: sums.executionSeconds / n,
          },
        ];
      }),
    );
  }

  #of(kind: string): Sums {
    let sums = this.#kinds.get(kind);
    if (sums === undefined) {
      sums = {
        submitted: 0,
        completed: 0,
        failed: 0,
        cancelled: 0,
        retried: 0,
        actSeconds: 0,
        queueingSeconds: 0,
        executionSeconds: 0,
        overheadSeconds: 0,
        longestActSeconds: 0,
      };
      this.#kinds.set(kind, sums);
    }
    return sums;
  }
}
