/**
 * Which tunnels a relay opens for others. Pure.
 *
 * TU6 a tunnel is opened only for a holder of the run's token, who asked for it under these very subjects, once, and for each
 *    member no more at the same time than its share.
 * TU7 whether it is open says only a holder of the token; what others answer is passed over.
 */
import { createHmac, timingSafeEqual } from "node:crypto";
import type { Opening } from "./relay-target.ts";

export type OpeningLimits = {
  readonly maxTotal: number;
  readonly maxFrom: number;
  /** ids that are remembered */
  readonly maxSeen: number;
};

/** What `from` asks of `to`. `subject`: below which they talk, which names prefix and run. */
type Asked = Omit<Opening, "proof"> & { readonly to: string; readonly subject: string };

export function proveOpening(token: string, { subject, from, to, tunnel, target }: Asked): string {
  const text = JSON.stringify(["treadle opening 2", subject, from, to, tunnel, target]);
  return createHmac("sha256", token).update(text).digest("hex");
}

/** TU7. `word`: what became of the tunnel. */
export function signAnswer(token: string, tunnel: string, word: string): string {
  return `${answerProof(token, tunnel, word)} ${word}`;
}

/** TU7. Undefined for what does not come from a holder of the token. */
export function readAnswer(token: string, tunnel: string, answer: string): string | undefined {
  const at = answer.indexOf(" ");
  const [proof, word] = [Buffer.from(answer.slice(0, Math.max(0, at))), answer.slice(at + 1)];
  const expected = Buffer.from(answerProof(token, tunnel, word));
  return proof.length === expected.length && timingSafeEqual(proof, expected) ? word : undefined;
}

const answerProof = (token: string, tunnel: string, word: string): string =>
  createHmac("sha256", token)
    .update(JSON.stringify(["treadle opened 1", tunnel, word]))
    .digest("hex");

type OpeningsOf = { readonly token: string } & Pick<Asked, "subject"> & { readonly member: string };

export class Openings {
  readonly #token: string;
  readonly #subject: string;
  readonly #member: string;
  readonly #limits: OpeningLimits;
  readonly #numFrom = new Map<string, number>();
  readonly #seen = new Set<string>();
  #total = 0;

  /** `member`: the one that is asked. */
  constructor({ token, subject, member }: OpeningsOf, limits: OpeningLimits) {
    this.#token = token;
    this.#subject = subject;
    this.#member = member;
    this.#limits = limits;
  }

  /** Whether it is to be opened; then `ended` follows. */
  admit({ proof, ...asked }: Opening): boolean {
    const expected = proveOpening(this.#token, { ...asked, subject: this.#subject, to: this.#member });
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
