/**
 * Gives the spans of one rank, or one device, lanes on which they never partly overlap: concurrent calls of one process
 * come apart, nested spans stay together. Spans must come in the order of their ends, which is how tracers record them.
 *
 * A new span ends last, so on a lane it either contains an earlier one or must begin after it has ended. It is enough
 * to keep the outermost spans of each lane. Only the last `maxDepth` of them are kept; a span that reaches further back
 * is taken to contain what was forgotten.
 */
export class Lanes {
  readonly #lanes: { startMs: number; endMs: number }[][] = [];

  /** The lane of a span: 0 unless something else is under way there. */
  assign(startMs: number, durationMs: number): number {
    const endMs = startMs + durationMs;
    for (let lane = 0; ; lane++) {
      let outermost = this.#lanes[lane];
      if (outermost === undefined) {
        outermost = [];
        this.#lanes[lane] = outermost;
      }
      let kept = outermost.length;
      while (kept > 0 && outermost[kept - 1]!.startMs >= startMs - tolerance) kept--;
      if (kept > 0 && outermost[kept - 1]!.endMs > startMs + tolerance) continue;
      outermost.length = kept;
      outermost.push({ startMs, endMs });
      if (outermost.length > maxDepth) outermost.splice(0, maxDepth / 2);
      return lane;
    }
  }
}

const maxDepth = 4096;
/** milliseconds; spans that touch within the clock's resolution do not overlap */
const tolerance = 0.0005;
