/**
 * The way from one plan to another, step by step: what leaves is ready, then ends in order; what stays is told the new
 * size of its group; what is new starts, and whoever pulls from others when it starts comes last.
 */
import type { RankPlacement } from "@treadle/contracts";
import type { RankState } from "../ranks/rank-state.ts";
import type { Layout } from "../ranks/rank-table.ts";

export type PlanChangeInput = {
  readonly layout: Layout;
  readonly moved: readonly string[];
  readonly staying: readonly RankState[];
  readonly leaving: readonly RankState[];
  /** ranks of this component pull from others when they start */
  readonly pulls: (component: string) => boolean;
};

export type PlanStep =
  | { readonly type: "retire" | "resize"; readonly ranks: readonly RankState[] }
  | {
      readonly type: "lay-out";
      readonly components: readonly { readonly component: string; readonly placements: readonly RankPlacement[] }[];
      readonly staying: ReadonlySet<RankState>;
      /** workers that are no more */
      readonly gone: readonly string[];
    }
  | { readonly type: "start"; readonly components: readonly string[]; readonly staying: ReadonlySet<RankState> }
  | { readonly type: "done" };

export class PlanChange {
  readonly #input: PlanChangeInput;
  readonly #staying: ReadonlySet<RankState>;
  readonly #resizing: Set<string>;
  #starting: RankState[] = [];
  #step = 0;

  constructor(input: PlanChangeInput) {
    this.#input = input;
    this.#staying = new Set(input.staying);
    this.#resizing = new Set(input.staying.map(({ worker }) => worker));
  }

  /** What is to be done now; undefined while something must happen first. */
  next(): PlanStep | undefined {
    const { layout, moved, staying, leaving, pulls } = this.#input;
    const staying_ = this.#staying;
    switch (this.#step) {
      // One that is just starting again could not be ended before it is up.
      case 0:
        if (leaving.some(({ phase }) => phase !== "ready")) return undefined;
        this.#step++;
        return { type: "retire", ranks: leaving };
      case 1: {
        if (leaving.some(({ phase }) => phase !== "down")) return undefined;
        this.#step++;
        const components = moved.map((component) => ({ component, placements: layout[component]?.ranks ?? [] }));
        return { type: "lay-out", components, staying: staying_, gone: leaving.map(({ worker }) => worker) };
      }
      case 2:
        if (staying.some(({ phase }) => phase !== "ready")) return undefined;
        this.#step++;
        return { type: "resize", ranks: staying };
      case 3:
        if (this.#resizing.size > 0) return undefined;
        this.#step++;
        return { type: "start", components: moved.filter((name) => !pulls(name)), staying: staying_ };
      case 4:
        if (this.#starting.some(({ phase }) => phase !== "ready")) return undefined;
        this.#step++;
        return { type: "start", components: moved.filter(pulls), staying: staying_ };
      case 5:
        if (this.#starting.some(({ phase }) => phase !== "ready")) return undefined;
        this.#step++;
        return { type: "done" };
      default:
        return undefined;
    }
  }

  /** Or it died, and starts with the new size. */
  resized(worker: string): void {
    this.#resizing.delete(worker);
  }

  started(rank: RankState): void {
    this.#starting.push(rank);
  }
}
