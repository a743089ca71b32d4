/**
 * Which tunnels a relay opens for others. Pure.
 *
 * TU6 a tunnel is opened only for a holder of the run's token, once, and for each member no more at the same time than its share.
 */
import { createHmac, timingSafeEqual } from "node:crypto";
import type { Opening } from "./relay-target.ts";

export type OpeningLimits = {
  readonly maxTotal: number;
  readonly maxFrom: number;
  /** ids that are remembered */
  readonly maxSeen: number;
};

/** What `from` asks of `to`. */
type Asked = Omit<Opening, "proof"> & { readonly to: string };

export function proveOpening(token: string, { from, to, tunnel, target }: Asked): string {
  const text = JSON.stringify(["treadle opening 1", from, to, tunnel, target]);
  return createHmac("sha256", token).update(text).digest("hex");
}

export class Openings {
  readonly #token: string;
  readonly #member: string;
  readonly #limits: OpeningLimits;
  readonly #numFrom = new Map<string, number>();
  readonly #seen = new Set<string>();
  #total = 0;

  /** `member`: the one that is asked. */
  constructor(token: string, member: string, limits: OpeningLimits) {
    this.#token = token;
    this.#member = member;
    this.#limits = limits;
  }

  /** Whether it is to be opened; then `ended` follows. */
  admit({ proof, ...asked }: Opening): boolean {
    const expected = proveOpening(this.#token, { ...asked, to: this.#member });
    if (!timingSafeEqual(Buffer.from(proof, "hex"), Buffer.from(expected, "hex"))) return false;
    const { tunnel, from } = asked;
    const num = this.#numFrom.get(from) ?? 0;
    const { maxTotal, maxFrom, maxSeen } = this.#limits;
    if (this.#seen.has(tunnel) || this.#total >= maxTotal || num >= maxFrom) return false;
    this.#seen.add(tunnel);
    if (this.#seen.size > maxSeen) this.#seen.delete(this.#seen.values().next().value as string);
    this.#numFrom.set(from, num + 1);
    this.#total++;
    return true;
  }

  ended(from: string): void {
    const num = (this.#numFrom.get(from) ?? 0) - 1;
    if (num > 0) this.#numFrom.set(from, num);
    else this.#numFrom.delete(from);
    this.#total--;
  }
}
