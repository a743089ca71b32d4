/**
 * What one process says to another alone, by way of servers that others read: sealed with a key that the two make of their
 * public ones (X25519, HKDF with SHA-256, AES-256-GCM, all of Node's own library).
 *
 * SB1 what is sealed can be read, and changed unnoticed, by nobody but the two; and not be sent back to who sealed it.
 */
import {
  createCipheriv,
  createDecipheriv,
  createPublicKey,
  diffieHellman,
  generateKeyPairSync,
  hkdfSync,
  type KeyObject,
  randomBytes,
} from "node:crypto";

const cipher = "aes-256-gcm";
const keyBytes = 32;
const ivBytes = 12;
const tagBytes = 16;
/** Of keys that are made again where they are needed again. */
const mostKept = 1000;

/** A key that lasts as long as this process. */
export class SealedBox {
  /** base64url */
  readonly publicKey: string;
  readonly #private: KeyObject;
  readonly #secrets = new Map<string, Buffer>();

  constructor() {
    const { privateKey, publicKey } = generateKeyPairSync("x25519");
    this.#private = privateKey;
    this.publicKey = publicKey.export({ format: "jwk" }).x as string;
  }

  /** Throws for what is no public key. */
  seal(text: string, to: string): string {
    const iv = randomBytes(ivBytes);
    const sealing = createCipheriv(cipher, this.#key(this.publicKey, to, to), iv);
    return Buffer.concat([iv, sealing.update(text, "utf8"), sealing.final(), sealing.getAuthTag()]).toString("base64");
  }

  /** Throws for what was not sealed by `from` for this process. */
  open(box: string, from: string): string {
    const sealed = Buffer.from(box, "base64");
    const [iv, tag] = [sealed.subarray(0, ivBytes), sealed.subarray(-tagBytes)];
    const key = this.#key(from, this.publicKey, from);
    const opening = createDecipheriv(cipher, key, iv, { authTagLength: tagBytes });
    opening.setAuthTag(tag);
    return Buffer.concat([opening.update(sealed.subarray(ivBytes, -tagBytes)), opening.final()]).toString("utf8");
  }

  /** One for each direction. */
  #key(from: string, to: string, other: string): Buffer {
    return Buffer.from(hkdfSync("sha256", this.#secret(other), "", `treadle box 1|${from}|${to}`, keyBytes));
  }

  #secret(other: string): Buffer {
    const known = this.#secrets.get(other);
    if (known !== undefined) return known;
    const publicKey = createPublicKey({ key: { kty: "OKP", crv: "X25519", x: other }, format: "jwk" });
    const secret = diffieHellman({ privateKey: this.#private, publicKey });
    if (this.#secrets.size >= mostKept) this.#secrets.clear();
    this.#secrets.set(other, secret);
    return secret;
  }
}
