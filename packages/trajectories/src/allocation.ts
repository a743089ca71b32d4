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
  /** how much k trajectories beside each other slow one another (Heddle §5.2's F) */
  readonly factor: (k: number) => number;
  readonly order: "sorted" | "any";
};
