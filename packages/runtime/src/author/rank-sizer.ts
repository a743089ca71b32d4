import type { z } from "zod";

/** What a decision on the ranks of a group goes by. */
export type RankSizing = {
  /** devices of each rank that there is */
  readonly current: readonly number[];
  /** that they may have together */
  readonly devices: number;
  /** of the run */
  readonly stepsLeft: number;
  /** what a change of the plan has cost, or is taken to */
  readonly changeSeconds: number;
  readonly canPlace: (degrees: readonly number[]) => boolean;
};

/** Decides between steps how many devices each rank of a group spans, by what its ranks report (`this.sizing.report`). */
export type RankSizer = {
  /** of the equal ranks that a run begins with */
  readonly devicesPerRank: number;
  /** of a report */
  readonly report: z.ZodType;
  /** what the ranks have reported of a step that is over */
  stepEnded(reports: readonly unknown[]): void;
  /**
   * Looks whether other sizes are better, and pauses now and then, as it may take a while. Answers what is to be said of it;
   * `degrees`: the group is to have these. Undefined: it is too early to tell.
   */
  look(sizing: RankSizing): Generator<undefined, RankSizes | undefined>;
};

export type RankSizes = { readonly degrees?: readonly number[] | undefined; readonly why: string };
