/** How much slower than alone a run may get (PD8), as arithmetic. A run without a bound has none, however slow it is. */

/** Milliseconds of waiting beyond what the bound allows; negative while there are some to spare. */
export function owedMs(maxSlowdown: number | undefined, thereMs: number, waitedMs: number): number {
  if (maxSlowdown === undefined) return Number.NEGATIVE_INFINITY;
  // It waits at most `maxSlowdown` - 1 times as long as it does not.
  return maxSlowdown * waitedMs - (maxSlowdown - 1) * thereMs;
}

/** Milliseconds until a run that owes so much comes to its bound, or back, while it waits for `part` of each; infinite if never. */
export function crossesAfterMs(maxSlowdown: number | undefined, owes: number, part: number): number {
  if (maxSlowdown === undefined) return Number.POSITIVE_INFINITY;
  const grows = maxSlowdown * part - (maxSlowdown - 1);
  const afterMs = -owes / grows;
  return owes > 0 === grows < 0 && grows !== 0 ? afterMs : Number.POSITIVE_INFINITY;
}

/** Whether runs on one device can all be kept within their bounds; sums of fractions are compared with some slack. */
export function canKeepBounds(bounds: readonly (number | undefined)[]): boolean {
  const parts = bounds.reduce((sum: number, bound) => sum + 1 / (bound ?? Number.POSITIVE_INFINITY), 0);
  const most = bounds.length > 1 && bounds.includes(undefined) ? 1 - 1e-9 : 1 + 1e-9;
  return parts <= most;
}
