import { median, type ObservedCall } from "@treadle/contracts";

type Ask = { readonly items: number; readonly ms: number };

/** Of many asks, this share of the lowest is not believed. */
const chanceShare = 0.02;

/**
 * What one take of items that are there costs, or a put that finds room, at each end of a channel: known from all observed
 * calls together, because a call that takes its whole batch at once may wait for it in every step of a layout. Pure.
 */
export class Asks {
  readonly #byEnd = new Map<string, Ask[]>();
  /** by end and items; steps of a layout ask for as many */
  readonly #known = new Map<string, number>();

  constructor(calls: Iterable<ObservedCall>) {
    for (const [end, ask] of asksIn(calls)) {
      const known = this.#byEnd.get(end);
      if (known) known.push(ask);
      else this.#byEnd.set(end, [ask]);
    }
  }

  /** Milliseconds of one ask at each end that these calls use. */
  ofCalls(calls: readonly ObservedCall[]): number[] {
    const asked = new Map<string, number>();
    for (const [end, { items }] of asksIn(calls)) asked.set(end, Math.max(items, asked.get(end) ?? 0));
    return [...asked].map(([end, items]) => {
      const key = `${end} ${items}`;
      const ms = this.#known.get(key) ?? this.#of(end, items);
      this.#known.set(key, ms);
      return ms;
    });
  }

  /**
   * More items cost no less, and no more each: that bounds from above what they cost, by any other ask. What is more than twice a
   * low bound has waited; the very least of many may be a chance.
   */
  #of(end: string, items: number): number {
    const bounds = (this.#byEnd.get(end) ?? []).map((ask) => ask.ms * Math.max(1, items / ask.items));
    const low = bounds.toSorted((a, b) => a - b)[Math.floor(bounds.length * chanceShare)] ?? 0;
    return bounds.length === 0 ? 0 : median(bounds.filter((ms) => ms <= 2 * low));
  }
}

function* asksIn(calls: Iterable<ObservedCall>): Generator<[end: string, ask: Ask]> {
  for (const { component, channels } of calls)
    for (const { channel, role, askMs, items, times } of channels)
      if (askMs !== undefined && items > 0 && times > 0)
        yield [`${component} ${role} ${channel}`, { items: items / times, ms: askMs }];
}
