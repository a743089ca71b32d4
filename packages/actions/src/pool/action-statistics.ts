import { KeptByTenant, mostKinds } from "../formulation/kept-by-tenant.ts";

/** Completion times of one kind of action, in seconds: means over `completed`. */
export type KindStatistics = {
  readonly submitted: number;
  readonly completed: number;
  /** those that threw, and of those that completed the ones that a limit cut short or whose command does not exist */
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

type Of = { readonly kind: string; readonly tenant: string };

/** By tenant and kind, of the kinds that each tenant used last. */
export class ActionStatistics {
  readonly #kinds = new KeptByTenant<Sums>(mostKinds);

  count(kind: Of, what: "submitted" | "failed" | "cancelled" | "retried"): void {
    this.#of(kind)[what]++;
  }

  completed(kind: Of, queueingSeconds: number, overheadSeconds: number, executionSeconds: number): void {
    const sums = this.#of(kind);
    const actSeconds = queueingSeconds + overheadSeconds + executionSeconds;
    sums.completed++;
    sums.actSeconds += actSeconds;
    sums.queueingSeconds += queueingSeconds;
    sums.overheadSeconds += overheadSeconds;
    sums.executionSeconds += executionSeconds;
    sums.longestActSeconds = Math.max(sums.longestActSeconds, actSeconds);
  }

  /** Of one tenant, or of all together. */
  report(tenant?: string): Record<string, KindStatistics> {
    const kinds = new Map<string, Sums>();
    for (const [kind, sums] of this.#kinds.entries(tenant)) {
      const all = kinds.get(kind) ?? nothing();
      for (const key of Object.keys(sums) as (keyof Sums)[])
        all[key] = key === "longestActSeconds" ? Math.max(all[key], sums[key]) : all[key] + sums[key];
      kinds.set(kind, all);
    }
    return Object.fromEntries(
      [...kinds].map(([kind, sums]) => {
        const n = Math.max(1, sums.completed);
        return [
          kind,
          {
            ...sums,
            actSeconds: sums.actSeconds / n,
            queueingSeconds: sums.queueingSeconds / n,
            executionSeconds: sums.executionSeconds / n,
            overheadSeconds: sums.overheadSeconds / n,
          },
        ];
      }),
    );
  }

  #of({ kind, tenant }: Of): Sums {
    return this.#kinds.use(tenant, kind, nothing);
  }
}

const nothing = (): Sums => ({
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
});
