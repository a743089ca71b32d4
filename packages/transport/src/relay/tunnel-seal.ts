/**
 * What keeps a relay's tunnels to the run: their bytes pass a server that others use, some of whose keys may listen there and
 * speak. Holders of the run's token make the same keys, one for each direction of each tunnel.
 *
 * TU5 what a tunnel carries can neither be read nor changed without the run's token; what does not come from a holder of it is
 *    passed over, and so is what comes a second time. A message that is missing is noticed at the next (TU1).
 */
import { createCipheriv, createDecipheriv, createHmac, randomBytes } from "node:crypto";

const cipher = "aes-256-gcm";
const ivBytes = 12;
const tagBytes = 16;
const numberBytes = 8;
/** By which a sealed message is longer. */
export const sealBytes = ivBytes + tagBytes + numberBytes;

export type Side = "a" | "b";

/** One side of a tunnel. `tunnel`: no other one ever has its id. */
export class TunnelSeal {
  readonly #own: Buffer;
  readonly #others: Buffer;
  #sent = 0n;
  #received = 0n;

  constructor(token: string, tunnel: string, side: Side) {
    const keyOf = (from: Side) => createHmac("sha256", token).update(`treadle tunnel 1|${tunnel}|${from}`).digest();
    this.#own = keyOf(side);
    this.#others = keyOf(side === "a" ? "b" : "a");
  }

  seal(message: Uint8Array): Buffer {
    const iv = randomBytes(ivBytes);
    const sealing = createCipheriv(cipher, this.#own, iv);
    const number = Buffer.alloc(numberBytes);
    number.writeBigUInt64BE(++this.#sent);
    return Buffer.concat([iv, sealing.update(number), sealing.update(message), sealing.final(), sealing.getAuthTag()]);
  }

  /** Undefined for what counts for nothing; `lost` when one before it has not come. */
  open(sealed: Uint8Array): Uint8Array | "lost" | undefined {
    const plain = this.#decipher(sealed);
    if (plain === undefined) return undefined;
    const number = plain.readBigUInt64BE();
    if (number <= this.#received) return undefined;
    if (number !== this.#received + 1n) return "lost";
    this.#received = number;
    return plain.subarray(numberBytes);
  }

  #decipher(sealed: Uint8Array): Buffer | undefined {
    if (sealed.length < sealBytes) return undefined;
    const opening = createDecipheriv(cipher, this.#others, sealed.subarray(0, ivBytes), { authTagLength: tagBytes });
    opening.setAuthTag(sealed.subarray(-tagBytes));
    try {
      return Buffer.concat([opening.update(sealed.subarray(ivBytes, -tagBytes)), opening.final()]);
    } catch {
      return undefined;
    }
  }
}
