import type { GroupTokens } from "./longest-run.ts";

/** One degree of model parallelism; options are sorted by descending degree. */
export type DegreeOption = { readonly degree: number; readonly tokenTime: number };

export type Allocated = {
  readonly makespan: number;
  readonly degrees: readonly number[];
  readonly sizes: readonly number[];
  readonly probes: number;
  readonly evaluations: number;
};

export type Allocation = {
  readonly sorted: Float64Array;
  readonly options: readonly DegreeOption[];
  readonly gpus: number;
  readonly tokensOf: GroupTokens;
  readonly order: "sorted" | "any";
};
