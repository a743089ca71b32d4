import { allocateRollout } from "../allocate.ts";
import type { Interference } from "../interference.ts";

export type DegreeListsInput = {
  readonly gpus: number;
  /** seconds per token by degree of model parallelism */
  readonly tokenTime: Readonly<Record<string, number>>;
  readonly F: Interference;
  readonly maxBatch: number;
  readonly robust: number;
  /** tokens of each episode, as predicted at the start */
  readonly predictions: readonly number[];
};

/** Degrees that fit, the least first. */
export const degreesThatFit = ({ gpus, tokenTime }: Pick<DegreeListsInput, "gpus" | "tokenTime">): number[] =>
  Object.keys(tokenTime)
    .map(Number)
    .filter((degree) => degree <= gpus)
    .sort((a, b) => a - b);

/** As many workers of one degree as there is room for. */
export const equalDegrees = (gpus: number, degree: number): number[] =>
  new Array<number>(Math.floor(gpus / degree)).fill(degree);

/**
 * What `allocate` proposes, each list once. The paper's model has a group as slow as it is at first until its longest ends, and
 * so takes narrow workers; what is right depends on how lengths are spread, so lists for several shares of company are proposed.
 */
export function allocatedDegrees(input: DegreeListsInput): (readonly number[])[] {
  const lists = companyShares.map((company) => allocateRollout({ ...input, company }) ?? []);
  return withoutRepeats(lists.filter(({ length }) => length > 0));
}

export const withoutRepeats = (lists: readonly (readonly number[])[]): (readonly number[])[] => [
  ...new Map(lists.map((degrees) => [`${degrees}`, degrees])).values(),
];

const companyShares = [undefined, 1, 1 / 2, 1 / 4, 1 / 8, 1 / 16];
