/**
 * Decides whether a run goes on after its last committed step when a death cost what no saved state has (RS8). Pure.
 *
 * RB1 as with restarts of workers (S2), the loss of a node is not counted, and a step that was committed since a death forgives
 *    it: a run ends only by crashes that keep it from getting anywhere.
 */
import type { SupervisionLimits } from "../ranks/supervisor-state.ts";

export type RollBack = {
  /** the worker died because its node is gone */
  readonly nodeLost: boolean;
  /** steps were committed since the run began, or was rolled back before */
  readonly hasCommitted: boolean;
};

export class RollBacks {
  readonly #limits: Pick<SupervisionLimits, "maxRestarts" | "restartWindowMs">;
  #crashes: readonly number[] = [];

  constructor(limits: Pick<SupervisionLimits, "maxRestarts" | "restartWindowMs">) {
    this.#limits = limits;
  }

  /** Whether the run goes on. */
  next({ nodeLost, hasCommitted }: RollBack, nowMs: number): boolean {
    if (hasCommitted) this.#crashes = []; // RB1
    if (nodeLost) return true; // RB1
    this.#crashes = [...this.#crashes.filter((atMs) => nowMs - atMs < this.#limits.restartWindowMs), nowMs];
    return this.#crashes.length <= this.#limits.maxRestarts;
  }
}
