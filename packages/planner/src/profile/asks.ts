import { median, type ObservedCall } from "@treadle/contracts";

type Ask = { readonly items: number; readonly ms: number };

/**
 * What one take of items that are there costs, or a put that finds room, at each end of a channel: known from all observed
 * calls together, because a call that takes its whole batch at once may wait for it in every step of a layout. Pure.
 */
export class Asks {
  readonly #byEnd = new Map<string, Ask[]>();

  constructor(calls: Iterable<ObservedCall>) {
    for (const [end, ask] of asksIn(calls)) this.#byEnd.set(end, [...(this.#byEnd.get(end) ?? []), ask]);
  }

  /** Milliseconds of one ask at each end that these calls use. */
  ofCalls(calls: readonly ObservedCall[]): number[] {
    const asked = new Map<string, number>();
    for (const [end, { items }] of asksIn(calls)) asked.set(end, Math.max(items, asked.get(end) ?? 0));
    return [...asked].map(([end, items]) => this.#of(end, items));
  }

  /**
   * More items cost no less, and no more each: that bounds from above what they cost, by any other ask. What is more than twice the
   * least bound has waited.
   */
  #of(end: string, items: number): number {
    const bounds = (this.#byEnd.get(end) ?? []).map((ask) => ask.ms * Math.max(1, items / ask.items));
    const least = bounds.reduce((a, b) => Math.min(a, b), Number.POSITIVE_INFINITY);
    return median(bounds.filter((ms) => ms <= 2 * least));
  }
}

function* asksIn(calls: Iterable<ObservedCall>): Generator<[end: string, ask: Ask]> {
  for (const { component, channels } of calls)
    for (const { channel, role, askMs, items, times } of channels)
      if (askMs !== undefined && items > 0)
        yield [`${component} ${role} ${channel}`, { items: items / times, ms: askMs }];
}
