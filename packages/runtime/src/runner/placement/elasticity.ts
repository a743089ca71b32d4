/**
 * Brings a run's plan in line with the nodes that are there, between steps: elastic components grow and shrink, and ranks
 * leave nodes that drain before anything of theirs is lost. What the plan becomes is decided in `adapt-plan.ts`, or,
 * with `placement.mode: auto`, by the planner.
 */
import { TreadleError } from "@treadle/contracts";
import type { PlannedChange } from "./placement-facts.ts";

export type ElasticityPorts = {
  /** grows with every node that comes, goes or begins to drain */
  readonly revision: () => number;
  /** the plan for the nodes that are there; undefined when it is the present one */
  readonly adapt: () => PlannedChange | undefined;
  /** false, and nothing has changed, while calls are open */
  readonly adopt: (planned: PlannedChange) => Promise<boolean>;
  readonly warn: (text: string) => void;
};

export class Elasticity {
  readonly #ports: ElasticityPorts;
  /** the nodes that the present plan was made for; undefined until the first step has begun under one */
  #seen: number | undefined;

  constructor(ports: ElasticityPorts) {
    this.#ports = ports;
  }

  /** The run is placed on the nodes that were there just now. */
  placed(): void {
    this.#seen ??= this.#ports.revision();
  }

  /** The change that is due, if one may be. */
  between(): (() => Promise<void>) | undefined {
    const revision = this.#ports.revision();
    if (this.#seen === undefined || this.#seen === revision) return undefined;
    return async () => {
      try {
        const planned = this.#ports.adapt();
        if (planned === undefined || (await this.#ports.adopt(planned))) this.#seen = revision;
      } catch (error) {
        if (!(error instanceof TreadleError) || !error.code.startsWith("placement.")) throw error;
        this.#seen = revision;
        this.#ports.warn(`the plan stays as it is: ${error.message}`);
      }
    };
  }
}
