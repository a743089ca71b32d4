import type { Completion, FinishReason, Sampling } from "@treadle/contracts";
import { uniform } from "../random.ts";

/**
 * Which sequence sits in which slot of the decoder's batch: a pure state machine, driven with log-probabilities.
 *
 * G1 a prompt occupies one slot from its first token to its last; a slot that is free takes the next waiting prompt.
 * G2 a chosen token depends on the weights, the prompt and (seed, index, number of the token) alone, never on the slot
 *    or on what else is in the batch.
 * G3 after `restart` every unfinished sequence is computed again from its prompt, so a completion has one version.
 * G4 a sequence that stopped, may be extended and may choose more is held in its slot, with all it has read, until
 *    `extend`; what is appended is read, never chosen. An answer for a sequence that has begun again since is ignored.
 */
export class Slots {
  readonly size: number;
  readonly #prompts: readonly Int32Array[];
  readonly #sampling: Sampling;
  readonly #contextLength: number;
  readonly #stops: ReadonlySet<number>;
  readonly #numRead: number;
  readonly #occupants: (Sequence | undefined)[];
  readonly #isExtensible: boolean;
  #held: Held[] = [];
  #waiting = 0;
  #unfinished: number;

  /** The first `numRead` prompts have been read but for their last token, each by the slot of its index. */
  constructor(
    size: number,
    prompts: readonly Int32Array[],
    sampling: Sampling,
    contextLength: number,
    numRead = 0,
    isExtensible = false,
  ) {
    this.#numRead = numRead;
    this.#isExtensible = isExtensible;
    this.size = size;
    this.#prompts = prompts;
    this.#sampling = sampling;
    this.#contextLength = contextLength;
    this.#stops = new Set(sampling.stopTokens);
    this.#unfinished = prompts.length;
    this.#occupants = Array.from({ length: size }, () => this.#nextPrompt());
  }

  get done(): boolean {
    return this.#unfinished === 0;
  }

  /** Nothing can go on before somebody answers for a held sequence. */
  get isHeld(): boolean {
    return !this.done && this.#occupants.every((sequence) => sequence === undefined || sequence.isHeld);
  }

  /** The sequences held since the last call. */
  takeHeld(): Held[] {
    const held = this.#held;
    this.#held = [];
    return held;
  }

  /** What to feed next, written into `tokens` and `positions` `[size]`; a free slot repeats token 0 at position 0, a held one its last. */
  feed(tokens: Int32Array, positions: Int32Array): void {
    this.#occupants.forEach((sequence, slot) => {
      tokens[slot] = sequence ? tokenAt(sequence, sequence.position) : 0;
      positions[slot] = sequence ? sequence.position : 0;
    });
  }

  /** Chooses a token where a prompt has been read; `logprobs` is `[size, vocabSize]`. Returns what finished. */
  advance(logprobs: Float32Array, policyVersion: number): [index: number, completion: Completion][] {
    const vocabSize = logprobs.length / this.size;
    const finished: [number, Completion][] = [];
    this.#occupants.forEach((sequence, slot) => {
      if (!sequence || sequence.isHeld) return;
      sequence.position++;
      if (sequence.position < lengthOf(sequence)) return;
      const token = this.#choose(logprobs, slot * vocabSize, vocabSize, sequence);
      sequence.chosen.push(token);
      sequence.logprobs.push(logprobs[slot * vocabSize + token]!);
      const reason = this.#finish(sequence, token);
      if (!reason) return;
      if (reason === "stop" && this.#isExtensible && !this.#isFull(sequence)) {
        sequence.isHeld = true;
        const { index, attempt } = sequence;
        this.#held.push({ index, attempt, completion: complete(sequence, reason, policyVersion) });
      } else finished.push([sequence.index, this.#end(slot, sequence, reason, policyVersion)]);
    });
    return finished;
  }

  /** Appends tokens to a held sequence, or ends it: when there are none, or it has no room for them and one more. */
  extend(
    { index, attempt }: Pick<Held, "index" | "attempt">,
    tokens: Int32Array | undefined,
    policyVersion: number,
  ): [index: number, completion: Completion][] {
    const slot = this.#occupants.findIndex((sequence) => sequence?.index === index);
    const sequence = this.#occupants[slot];
    if (!sequence?.isHeld || sequence.attempt !== attempt) return [];
    if (tokens === undefined) return [[index, this.#end(slot, sequence, "stop", policyVersion)]];
    if (lengthOf(sequence) + tokens.length >= this.#contextLength)
      return [[index, this.#end(slot, sequence, "length", policyVersion)]];
    sequence.isHeld = false;
    sequence.numAppended += tokens.length;
    for (const token of tokens) {
      sequence.chosen.push(token);
      sequence.logprobs.push(0);
    }
    return [];
  }

  /** G3. */
  restart(): void {
    for (const sequence of this.#occupants) {
      if (!sequence) continue;
      sequence.position = 0;
      sequence.chosen = [];
      sequence.logprobs = [];
      sequence.numAppended = 0;
      sequence.isHeld = false;
      sequence.attempt++;
    }
  }

  /** Ends everything, waiting prompts included, with what has been chosen so far. */
  abort(policyVersion: number): [index: number, completion: Completion][] {
    const ended: [number, Completion][] = [];
    for (let slot = 0; slot < this.size; slot++) {
      for (let sequence = this.#occupants[slot]; sequence; sequence = this.#nextPrompt()) {
        ended.push([sequence.index, complete(sequence, "abort", policyVersion)]);
      }
      this.#occupants[slot] = undefined;
    }
    this.#unfinished = 0;
    return ended;
  }

  #nextPrompt(): Sequence | undefined {
    const index = this.#waiting;
    const prompt = this.#prompts[index];
    if (!prompt) return undefined;
    this.#waiting++;
    return {
      index,
      prompt,
      position: index < this.#numRead ? prompt.length - 1 : 0,
      chosen: [],
      logprobs: [],
      numAppended: 0,
      isHeld: false,
      attempt: 0,
    };
  }

  #end(slot: number, sequence: Sequence, reason: FinishReason, policyVersion: number): Completion {
    this.#unfinished--;
    this.#occupants[slot] = this.#nextPrompt();
    return complete(sequence, reason, policyVersion);
  }

  #choose(logprobs: Float32Array, start: number, vocabSize: number, sequence: Sequence): number {
    const { temperature, seed } = this.#sampling;
    let best = 0;
    for (let token = 1; token < vocabSize; token++) {
      if (logprobs[start + token]! > logprobs[start + best]!) best = token;
    }
    if (temperature === 0) return best;
    const highest = logprobs[start + best]!;
    let total = 0;
    for (let token = 0; token < vocabSize; token++)
      total += Math.exp((logprobs[start + token]! - highest) / temperature);
    let left = total * uniform(seed, sequence.index, sequence.chosen.length);
    for (let token = 0; token < vocabSize; token++) {
      left -= Math.exp((logprobs[start + token]! - highest) / temperature);
      if (left < 0) return token;
    }
    return best;
  }

  #finish(sequence: Sequence, token: number): FinishReason | undefined {
    if (this.#stops.has(token)) return "stop";
    return this.#isFull(sequence) ? "length" : undefined;
  }

  #isFull(sequence: Sequence): boolean {
    return numChosen(sequence) === this.#sampling.maxTokens || lengthOf(sequence) === this.#contextLength;
  }
}

type Sequence = {
  readonly index: number;
  readonly prompt: Int32Array;
  /** of the token to feed next */
  position: number;
  /** everything after the prompt, what was appended included */
  chosen: number[];
  logprobs: number[];
  numAppended: number;
  isHeld: boolean;
  /** how often it has begun again */
  attempt: number;
};

/** A sequence that stopped, and what it has so far. */
export type Held = { readonly index: number; readonly attempt: number; readonly completion: Completion };

const lengthOf = ({ prompt, chosen }: Sequence): number => prompt.length + chosen.length;
const numChosen = ({ chosen, numAppended }: Sequence): number => chosen.length - numAppended;

function tokenAt({ prompt, chosen }: Sequence, position: number): number {
  return position < prompt.length ? prompt[position]! : chosen[position - prompt.length]!;
}

function complete({ chosen, logprobs }: Sequence, finishReason: FinishReason, policyVersion: number): Completion {
  return { tokens: Int32Array.from(chosen), logprobs: Float32Array.from(logprobs), finishReason, policyVersion };
}
