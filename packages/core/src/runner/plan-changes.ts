/** Carries out what a change of plan asks for, step by step, as ranks say what has happened to them (RS3). Pure. */
import { TreadleError } from "@treadle/contracts";
import type { Processes } from "../ranks/processes.ts";
import type { RankTable } from "../ranks/rank-table.ts";
import type { SupervisorState } from "../ranks/supervisor-state.ts";
import { PlanChange } from "./plan-change.ts";
import type { Emit, RunnerInput } from "./runner-messages.ts";

export type PlanChangesOptions = {
  readonly ranks: RankTable;
  readonly processes: Processes;
  readonly supervisor: SupervisorState;
  readonly emit: Emit;
};

export class PlanChanges {
  readonly #options: PlanChangesOptions;
  #current: PlanChange | undefined;

  constructor(options: PlanChangesOptions) {
    this.#options = options;
  }

  /** Throws `workflow.invalid` while another change is under way. No call may be open. */
  begin(components: Extract<RunnerInput, { type: "adopt" }>["components"], nowMs: number): void {
    if (this.#current !== undefined)
      throw new TreadleError("workflow.invalid", "a plan is changed by one change at a time");
    const { ranks } = this.#options;
    const { moved, staying, leaving } = ranks.changes(components);
    const pulls = (name: string) => ranks.traitsOf(name).replays.length > 0;
    this.#current = new PlanChange({ layout: components, moved, staying, leaving, pulls });
    this.goOn(nowMs);
  }

  /** A rank knows the new size of its group, or has died, and starts with it. */
  resized(worker: string): void {
    this.#current?.resized(worker);
  }

  /** As far as it can go now. */
  goOn(nowMs: number): void {
    const change = this.#current;
    if (!change) return;
    const { ranks, processes, supervisor, emit } = this.#options;
    for (;;) {
      const next = change.next();
      if (next === undefined) return;
      switch (next.type) {
        case "retire":
          for (const rank of next.ranks) {
            rank.enter("draining", nowMs);
            supervisor.unwatch(rank.worker);
            emit({ type: "stop-process", ...rank.id });
          }
          break;
        case "lay-out":
          for (const { component, placements } of next.components)
            processes.layOut(component, placements, next.staying);
          for (const worker of next.gone) processes.tellPeers(worker);
          break;
        case "resize":
          for (const rank of next.ranks)
            emit({ type: "resize", ...rank.id, rankDevices: ranks.devicesOf(rank.component) });
          break;
        case "start":
          for (const rank of next.components.flatMap((name) => ranks.of(name))) {
            if (next.staying.has(rank)) continue;
            processes.start(rank);
            change.started(rank);
          }
          break;
        case "done":
          this.#current = undefined;
          emit({ type: "adopted" });
          return;
      }
    }
  }
}
