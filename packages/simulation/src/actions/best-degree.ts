export type BestDegree = { readonly dop: number; readonly act: number };

/** Of the degrees up to `most`, the one with the least mean completion time, chosen in hindsight. */
export function bestDegree(degrees: readonly number[], most: number, act: (dop: number) => number): BestDegree {
  return degrees
    .filter((dop) => dop <= most)
    .map((dop) => ({ dop, act: act(dop) }))
    .reduce((best, one) => (one.act < best.act ? one : best));
}
