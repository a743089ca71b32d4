/** Times of an axis that fit its width. Pure. */

/** Milliseconds between two ticks that are at least `leastPixels` apart: 1, 2 or 5 of a unit, or whole minutes. */
export function tickStepMs(spanMs: number, pixels: number, leastPixels = 90): number {
  const least = (spanMs / Math.max(1, pixels)) * leastPixels;
  if (least > 30_000) {
    const minutes = [60, 120, 300, 600, 1800, 3600, 7200, 18_000, 36_000, 86_400].map((seconds) => seconds * 1000);
    return minutes.find((step) => step >= least) ?? Math.ceil(least / 86_400_000) * 86_400_000;
  }
  const power = 10 ** Math.floor(Math.log10(Math.max(1e-6, least)));
  return ([1, 2, 5].map((factor) => factor * power).find((step) => step >= least) ?? 10 * power) as number;
}

/** `0.25 s`, `3m 20s`: with as many digits as ticks that far apart need. */
export function tickText(atMs: number, stepMs: number): string {
  if (stepMs >= 1000 && atMs >= 60_000) {
    const seconds = Math.round(atMs / 1000);
    const rest = seconds % 60;
    const minutes = Math.floor(seconds / 60);
    if (minutes >= 60)
      return `${Math.floor(minutes / 60)}h ${String(minutes % 60).padStart(2, "0")}m${stepMs < 60_000 ? ` ${String(rest).padStart(2, "0")}s` : ""}`;
    return stepMs >= 60_000 ? `${minutes} min` : `${minutes}m ${String(rest).padStart(2, "0")}s`;
  }
  const [unitMs, unit] =
    stepMs >= 1000 || atMs >= 1000 ? [1000, "s"] : stepMs >= 1 || atMs >= 1 ? [1, "ms"] : [1e-3, "µs"];
  const digits = Math.min(9, Math.max(0, Math.ceil(-Math.log10(stepMs / unitMs) - 1e-9)));
  return `${(atMs / unitMs).toFixed(digits)} ${unit}`;
}
