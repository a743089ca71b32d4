/**
 * Decides which connections may wait for the end of their handshake, so that whoever opens connections without the run's
 * token keeps nobody else out. Pure: the endpoint tells it what came and went, and closes what it answers.
 *
 * HO1 at most `maxTotal` wait, and at most `maxPerSource` of one source.
 * HO2 the newest is always let in: the oldest of the source that has most gives way, first of those that were refused, then of
 *    those that have not shown that they hold the token.
 * HO3 a hello shows that once: who sends again what it has heard waits with those that have said nothing.
 */
import { isIP } from "node:net";

export type HalfOpenLimits = {
  readonly maxTotal: number;
  readonly maxPerSource: number;
  /** hellos that are remembered; one that is forgotten counts once more */
  readonly maxSeen: number;
};

/** First to give way first. */
const standings = ["refused", "silent", "vouched"] as const;
type Waiting = { readonly source: string; standing: (typeof standings)[number] };

export class HalfOpen<Connection> {
  readonly #limits: HalfOpenLimits;
  /** oldest first */
  readonly #waiting = new Map<Connection, Waiting>();
  readonly #numOf = new Map<string, number>();
  /** nonces of hellos, oldest first */
  readonly #seen = new Set<string>();

  constructor(limits: HalfOpenLimits) {
    this.#limits = limits;
  }

  get size(): number {
    return this.#waiting.size;
  }

  /** Lets a connection wait; answers with the one that has to give way, if any. */
  admit(connection: Connection, source: string): Connection | undefined {
    const numOwn = this.#numOf.get(source) ?? 0;
    let evicted: Connection | undefined;
    if (numOwn >= this.#limits.maxPerSource) evicted = this.#evict(source);
    else if (this.size >= this.#limits.maxTotal) evicted = this.#evict(this.#largest());
    this.#waiting.set(connection, { source, standing: "silent" });
    this.#numOf.set(source, (this.#numOf.get(source) ?? 0) + 1);
    return evicted;
  }

  /** HO3: it has sent a hello that a holder of the token has said, with this nonce. */
  vouched(connection: Connection, nonce: string): void {
    const state = this.#waiting.get(connection);
    if (state === undefined || this.#seen.has(nonce)) return;
    state.standing = "vouched";
    this.#seen.add(nonce);
    if (this.#seen.size > this.#limits.maxSeen) this.#seen.delete(this.#seen.values().next().value as string);
  }

  /** It is only there still to hear why. */
  refused(connection: Connection): void {
    const state = this.#waiting.get(connection);
    if (state !== undefined) state.standing = "refused";
  }

  /** Its handshake is over, or it has ended. */
  settle(connection: Connection): void {
    const state = this.#waiting.get(connection);
    if (state === undefined) return;
    this.#waiting.delete(connection);
    const left = (this.#numOf.get(state.source) as number) - 1;
    if (left > 0) this.#numOf.set(state.source, left);
    else this.#numOf.delete(state.source);
  }

  /** HO2. */
  #evict(source: string): Connection {
    const first = new Map<Waiting["standing"], Connection>();
    for (const [connection, state] of this.#waiting) {
      if (state.source === source && !first.has(state.standing)) first.set(state.standing, connection);
    }
    const standing = standings.find((each) => first.has(each)) as Waiting["standing"];
    const evicted = first.get(standing) as Connection;
    this.settle(evicted);
    return evicted;
  }

  #largest(): string {
    const most = Math.max(...this.#numOf.values());
    return [...this.#numOf].find(([, size]) => size === most)?.[0] as string;
  }
}

/** Who counts as one: an address of version 4; of version 6 all that share the first half, which one host is given. */
export function sourceOf(address: string | undefined): string {
  if (address === undefined) return "this machine";
  const version4 = address.replace(/^::ffff:(?=\d+\.)/i, "");
  if (isIP(version4) !== 6) return version4;
  const [head = "", tail] = (address.split("%")[0] as string).split("::");
  const words = (text: string | undefined) => (text ? text.split(":") : []);
  const numZeros = tail === undefined ? 0 : Math.max(0, 8 - words(head).length - words(tail).length);
  const all = [...words(head), ...Array<string>(numZeros).fill("0"), ...words(tail)];
  return `${all.slice(0, 4).join(":")}::/64`;
}
