/**
 * What changes in a pool, as entries of its history: stages of runs, what each holds, whom each waits for, and decisions. Others
 * show it the pool after each input, and keep what it says.
 */
import type { PoolEntry, PoolHolding, PoolMemberView } from "@treadle/contracts";
import type { DevicePoolState } from "./device-pool-state.ts";

/** An entry without its time. */
type Change = PoolEntry extends infer Entry ? (Entry extends PoolEntry ? Omit<Entry, "atMs"> : never) : never;

export class PoolHistory {
  readonly #stages = new Map<string, PoolMemberView["stage"]>();
  readonly #holdings = new Map<number, PoolHolding>();
  /** whom a run waits for, as it was said */
  readonly #waits = new Map<string, string>();

  /** Since it was asked last. `atMs`: what entries are dated with, whatever clock the pool goes by. */
  changes(state: DevicePoolState, nowMs: number, atMs: number): PoolEntry[] {
    const { view, holdings } = { view: state.view(nowMs), holdings: state.holdings };
    const changes: Change[] = [
      ...this.#stageChanges(view),
      ...state.decisions.map((decision) => ({ type: "decided", decision }) as const),
      ...this.#holdingChanges(holdings),
      ...this.#waitChanges(view),
    ];
    return changes.map((change) => ({ ...change, atMs }) as PoolEntry);
  }

  /** From now on everything is a change: what was said before is not kept. */
  forget(): void {
    for (const known of [this.#stages, this.#holdings, this.#waits]) known.clear();
  }

  #stageChanges(view: readonly PoolMemberView[]): Change[] {
    const there = new Set(view.map(({ run }) => run));
    const gone = [...this.#stages.keys()].filter((run) => !there.has(run));
    for (const run of gone) this.#stages.delete(run);
    const changed = view.filter(({ run, stage }) => this.#stages.get(run) !== stage);
    for (const { run, stage } of changed) this.#stages.set(run, stage);
    return [
      ...gone.map((run) => ({ type: "stage", run, stage: "gone" }) as const),
      ...changed.map(({ run, stage }) => ({ type: "stage", run, stage }) as const),
    ];
  }

  #holdingChanges(holdings: readonly PoolHolding[]): Change[] {
    const there = new Set(holdings.map(({ token }) => token));
    const released = [...this.#holdings.keys()].filter((token) => !there.has(token));
    for (const token of released) this.#holdings.delete(token);
    const changed = holdings.filter(({ token, work }) => {
      const known = this.#holdings.get(token);
      return known === undefined || known.work !== work;
    });
    for (const holding of changed) this.#holdings.set(holding.token, holding);
    return [
      ...released.map((token) => ({ type: "released", token }) as const),
      ...changed.map((holding) => ({ type: "holds", ...holding }) as const),
    ];
  }

  #waitChanges(view: readonly PoolMemberView[]): Change[] {
    const changes: Change[] = [];
    const there = new Set<string>();
    for (const { run, waits } of view) {
      if (waits === undefined) continue;
      there.add(run);
      const { type, runs } = waits.on;
      const said = JSON.stringify([type, runs]);
      if (this.#waits.get(run) === said) continue;
      this.#waits.set(run, said);
      changes.push({ type: "waits", run, on: waits.on });
    }
    for (const run of [...this.#waits.keys()].filter((each) => !there.has(each))) {
      this.#waits.delete(run);
      changes.push({ type: "waits", run, on: null });
    }
    return changes;
  }
}
