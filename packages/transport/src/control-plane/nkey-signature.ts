/** Signatures of nkeys, which are Ed25519, checked by the library that Node has: the one of NATS takes seventy times as long. */
import { createPublicKey, type KeyObject, verify } from "node:crypto";

const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
const rawBytes = 32;

/** Of a public key as nkeys write it: one byte of its kind, the key, and a checksum, in base 32. */
export function publicKeyOf(nkey: string): KeyObject {
  let bits = "";
  for (const letter of nkey) bits += alphabet.indexOf(letter).toString(2).padStart(5, "0");
  const raw = Buffer.from(
    Array.from({ length: rawBytes }, (_, i) => Number.parseInt(bits.slice(8 * (i + 1), 8 * (i + 2)), 2)),
  );
  return createPublicKey({ key: { kty: "OKP", crv: "Ed25519", x: raw.toString("base64url") }, format: "jwk" });
}

export const isSignedBy = (key: KeyObject, text: Uint8Array, signature: string): boolean =>
  verify(null, text, key, Buffer.from(signature, "base64"));
