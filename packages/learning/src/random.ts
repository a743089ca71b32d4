/**
 * Seeded randomness that can be split.
 *
 * A stream is identified by a key: the seed and the path of labels that led to it. `split(label)` derives the child from
 * the key alone, never from how many numbers were drawn, so `seed → "train" → step` names the same stream in a fresh
 * process as in one that has run for days. That is what lets a resumed run continue exactly.
 *
 * The generator is xoshiro128** (Blackman and Vigna, "Scrambled Linear Pseudorandom Number Generators",
 * arXiv:1805.01407): period 2^128 - 1, 32-bit operations only. Keys are mixed with the 32-bit finaliser of MurmurHash3.
 * Streams of different keys are independent for practical purposes (128-bit keys), not by construction. Not for
 * cryptography.
 */
export interface Random {
  /** Uniform in [0, 2^32). */
  uint32(): number;
  /** Uniform in [0, 1) with 53 random bits. */
  float(): number;
  /** Uniform integer in [0, bound), without modulo bias; `bound` is in [1, 2^32]. */
  integer(bound: number): number;
  /** A shuffled copy (Fisher–Yates). */
  shuffle<T>(items: readonly T[]): T[];
  /** The stream named `label` below this one; neither depends on nor changes the numbers drawn from this one. */
  split(label: string | number): Random;
}

type Key = readonly [number, number, number, number];

const rootKey: Key = [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344];

/** The stream of `seed`. Equal seeds give equal streams on every machine. */
export function createRandom(seed: number | string): Random {
  return streamOf(absorb(rootKey, seed));
}

/** The bare generator: advances `state` (four words, not all zero) and returns the next word. */
export function xoshiro128(state: Uint32Array): number {
  const [s0, s1, s2, s3] = state as unknown as Key;
  const result = Math.imul(rotateLeft(Math.imul(s1, 5), 7), 9) >>> 0;
  const t2 = s2 ^ s0;
  const t3 = s3 ^ s1;
  state[0] = s0 ^ t3;
  state[1] = s1 ^ t2;
  state[2] = t2 ^ (s1 << 9);
  state[3] = rotateLeft(t3, 11);
  return result;
}

/** A 32-bit hash of a string, the same in every process: what splits by content are decided with. */
export function hashString(text: string): number {
  return absorb(rootKey, text)[0];
}

function streamOf(key: Key): Random {
  const state = Uint32Array.from(key);
  const uint32 = () => xoshiro128(state);
  const integer = (bound: number) => {
    if (!Number.isInteger(bound) || bound < 1 || bound > 2 ** 32) {
      throw new RangeError(`bound is '${bound}': allowed is an integer from 1 to 2^32`);
    }
    // Words at or above the largest multiple of `bound` are drawn again; the rest are equally likely modulo `bound`.
    const limit = 2 ** 32 - (2 ** 32 % bound);
    let word = uint32();
    while (word >= limit) word = uint32();
    return word % bound;
  };
  return {
    uint32,
    integer,
    float: () => ((uint32() >>> 5) * 2 ** 26 + (uint32() >>> 6)) / 2 ** 53,
    shuffle: (items) => {
      const copy = [...items];
      for (let last = copy.length - 1; last > 0; last--) {
        const other = integer(last + 1);
        [copy[last], copy[other]] = [copy[other]!, copy[last]!];
      }
      return copy;
    },
    split: (label) => streamOf(absorb(key, label)),
  };
}

/** Mixes a label into a key. The type is mixed in first, so the number 1 and the string "1" name different streams. */
function absorb(key: Key, label: string | number): Key {
  if (typeof label === "number") {
    if (!Number.isSafeInteger(label))
      throw new RangeError(`label is '${label}': allowed is a string or a safe integer`);
    const high = Math.floor(label / 2 ** 32);
    return stir(stir(stir(key, 1), label >>> 0), high >>> 0);
  }
  let mixed = stir(stir(key, 2), label.length);
  for (let index = 0; index < label.length; index++) mixed = stir(mixed, label.charCodeAt(index));
  return mixed;
}

function stir(key: Key, word: number): Key {
  const a = finalise(key[0] ^ finalise(word + 0x9e3779b9));
  const b = finalise(key[1] + a);
  const c = finalise(key[2] ^ b);
  const d = finalise(key[3] + c);
  // All zero is the one state xoshiro cannot leave.
  return (a | b | c | d) === 0 ? rootKey : [(a + d) >>> 0, b, c, d];
}

function finalise(value: number): number {
  let hash = value >>> 0;
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b);
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
  return (hash ^ (hash >>> 16)) >>> 0;
}

function rotateLeft(value: number, bits: number): number {
  return (value << bits) | (value >>> (32 - bits));
}
