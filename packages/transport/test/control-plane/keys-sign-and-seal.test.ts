import { createUser, fromPublic } from "@nats-io/nkeys";
import { expect, test } from "vitest";
import { isSignedBy, publicKeyOf, SigningKey } from "../../src/control-plane/nkey-signature.ts";
import { SealedBox } from "../../src/control-plane/sealed-box.ts";

const bytes = (text: string) => new TextEncoder().encode(text);

test("keys and signatures are those of nkeys, as NATS's own library has them", () => {
  for (let i = 0; i < 20; i++) {
    const theirs = createUser();
    const seed = new TextDecoder().decode(theirs.getSeed());
    const ours = new SigningKey(seed);
    expect(ours.publicKey).toBe(theirs.getPublicKey());
    const text = bytes(`words ${i}`);
    const signature = ours.sign(text);
    expect(signature).toEqual(Buffer.from(theirs.sign(text))); // Ed25519 signs the same words in the same way
    expect(fromPublic(ours.publicKey).verify(text, signature)).toBe(true);
    const key = publicKeyOf(theirs.getPublicKey());
    expect(isSignedBy(key, text, signature.toString("base64"))).toBe(true);
    expect(isSignedBy(key, bytes("other words"), signature.toString("base64"))).toBe(false);
  }
  const seed = new TextDecoder().decode(createUser().getSeed());
  for (const at of [3, 20, 54]) {
    const changed = seed.slice(0, at) + (seed[at] === "A" ? "B" : "A") + seed.slice(at + 1);
    expect(() => new SigningKey(changed)).toThrow(); // its checksum is wrong
  }
});

test("SB1: what is sealed is read by the one it is for, from the one who sealed it, and by nobody else", () => {
  const [asker, member, stranger] = [new SealedBox(), new SealedBox(), new SealedBox()];
  for (const text of ["", "release", "ü".repeat(100_000)]) {
    const box = asker.seal(text, member.publicKey);
    expect(member.open(box, asker.publicKey)).toBe(text);
    expect(() => stranger.open(box, asker.publicKey)).toThrow();
    expect(() => member.open(box, stranger.publicKey)).toThrow();
    expect(() => asker.open(box, member.publicKey)).toThrow(); // sent back to who sealed it
    const raw = Buffer.from(box, "base64");
    for (const at of [0, 11, 12, raw.length - 17, raw.length - 1]) {
      const changed = Buffer.from(raw);
      changed[at] = (changed[at] as number) ^ 1;
      expect(() => member.open(changed.toString("base64"), asker.publicKey)).toThrow();
    }
    for (const length of [0, 1, 12, 27, raw.length - 1])
      expect(() => member.open(raw.subarray(0, length).toString("base64"), asker.publicKey)).toThrow();
  }
  expect(asker.seal("the same", member.publicKey)).not.toBe(asker.seal("the same", member.publicKey));
  const nobody = ["", "A".repeat(43), "x".repeat(1000)];
  for (const key of nobody) expect(() => asker.seal("anything", key), key.slice(0, 5)).toThrow();
});
