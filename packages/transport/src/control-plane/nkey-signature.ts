/**
 * Signatures of nkeys, which are Ed25519, by the library that Node has. The one of NATS, which is JavaScript, takes a
 * hundred times as long: 12 ms for each signature, in which a process does nothing else. It reads and checks keys.
 */
import { createPrivateKey, createPublicKey, type KeyObject, sign, verify } from "node:crypto";
import { fromSeed } from "@nats-io/nkeys";

const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
const rawBytes = 32;
/** A seed begins with its own kind, and then that of its public key. */
const seedHeadBytes = 2;
const userKind = 20 << 3;
/** PKCS #8 of an Ed25519 key, up to the key. */
const pkcs8Head = Buffer.from("302e020100300506032b657004220420", "hex");

/** A key by which this process signs. */
export class SigningKey {
  /** `U…` */
  readonly publicKey: string;
  readonly #key: KeyObject;

  /** `seed`: `SU…`. Throws where its checksum is wrong. */
  constructor(seed: string) {
    fromSeed(new TextEncoder().encode(seed));
    const raw = fromBase32(seed).subarray(seedHeadBytes, seedHeadBytes + rawBytes);
    this.#key = createPrivateKey({ key: Buffer.concat([pkcs8Head, raw]), format: "der", type: "pkcs8" });
    this.publicKey = nkeyOf(createPublicKey(this.#key));
  }

  sign(text: Uint8Array): Buffer {
    return sign(null, text, this.#key);
  }
}

/** Of a public key as nkeys write it: one byte of its kind, the key, and a checksum, in base 32. */
export function publicKeyOf(nkey: string): KeyObject {
  const raw = fromBase32(nkey).subarray(1, 1 + rawBytes);
  return createPublicKey({ key: { kty: "OKP", crv: "Ed25519", x: raw.toString("base64url") }, format: "jwk" });
}

export const isSignedBy = (key: KeyObject, text: Uint8Array, signature: string): boolean =>
  verify(null, text, key, Buffer.from(signature, "base64"));

function nkeyOf(key: KeyObject): string {
  const raw = Buffer.from(key.export({ format: "jwk" }).x as string, "base64url");
  const body = Buffer.concat([Buffer.from([userKind]), raw]);
  const checksum = Buffer.alloc(2);
  checksum.writeUInt16LE(checksumOf(body));
  return toBase32(Buffer.concat([body, checksum]));
}

/** CRC-16/XMODEM. */
function checksumOf(bytes: Uint8Array): number {
  let crc = 0;
  for (const byte of bytes) {
    crc ^= byte << 8;
    for (let bit = 0; bit < 8; bit++) crc = (crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1) & 0xffff;
  }
  return crc;
}

function toBase32(bytes: Uint8Array): string {
  const bits = [...bytes].map((byte) => byte.toString(2).padStart(8, "0")).join("");
  return (bits.match(/.{1,5}/g) ?? []).map((five) => alphabet[Number.parseInt(five.padEnd(5, "0"), 2)]).join("");
}

function fromBase32(text: string): Buffer {
  const bits = [...text].map((letter) => alphabet.indexOf(letter).toString(2).padStart(5, "0")).join("");
  return Buffer.from((bits.match(/.{8}/g) ?? []).map((eight) => Number.parseInt(eight, 2)));
}
