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
import { TreadleError } from "@treadle/contracts";
import { z } from "zod";
import { readJson } from "./bounded-json.ts";

/** The public key of a sealed box, as processes say it of themselves. */
export const SealKey = z.string().regex(/^[A-Za-z0-9_-]{43}$/);
const SealedAnswer = z.object({ box: z.base64() });

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

  /** Throws `control-plane.untrusted` for what is no public key. */
  seal(text: string, to: string): string {
    const iv = randomBytes(ivBytes);
    const key = attempt(() => this.#key(this.publicKey, to, to));
    if (key === undefined) throw untrusted("a member has announced itself without a key by which it is written to");
    const sealing = createCipheriv(cipher, key, iv);
    return Buffer.concat([iv, sealing.update(text, "utf8"), sealing.final(), sealing.getAuthTag()]).toString("base64");
  }

  /** Throws `control-plane.untrusted` for what was not sealed by `from` for this process. */
  open(box: string, from: string): string {
    const opened = attempt(() => this.#open(Buffer.from(box, "base64"), from));
    if (opened === undefined) throw untrusted("a message was sealed for another process, or changed on its way");
    return opened;
  }

  sealAnswer(text: string, to: string): string {
    return JSON.stringify({ box: this.seal(text, to) } satisfies z.infer<typeof SealedAnswer>);
  }

  /** Throws `control-plane.untrusted`, with what an answer says that is not sealed. */
  openAnswer(answer: string, from: string): string {
    const sealed = readJson(SealedAnswer, answer);
    if (sealed === undefined) throw untrusted(`the answer was not meant for this process alone: ${refusal(answer)}`);
    return this.open(sealed.box, from);
  }

  #open(sealed: Buffer, from: string): string {
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

/** The library throws on what is no key and what was not sealed for it. */
export function attempt<T>(act: () => T): T | undefined {
  try {
    return act();
  } catch {
    return undefined;
  }
}

const Refusal = z.object({ error: z.object({ message: z.string() }) });
const refusal = (answer: string): string =>
  readJson(Refusal, answer)?.error.message.slice(0, 500) ?? "it cannot be read";

export const untrusted = (what: string): TreadleError => new TreadleError("control-plane.untrusted", what);
