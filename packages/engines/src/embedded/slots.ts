import type { Completion, FinishReason, Sampling } from "@treadle/contracts";
import { uniform } from "../random.ts";

/**
 * Which sequence sits in which slot of the decoder's batch: a pure state machine, driven with log-probabilities.
 *
 * SL1 a prompt occupies one slot from its first token to its last; a slot that is free takes the next waiting prompt.
 * SL2 a chosen token depends on the weights, the prompt and (seed, key, number of the token) alone, never on the slot
 *    or on what else is in the batch.
 * SL3 after `restart` every unfinished sequence is computed again from its prompt, so a completion has one version.
 * SL4 a sequence that stopped, may be extended and may choose more is held in its slot, with all it has read, until
 *    `extend`; what is appended is read, never chosen. An answer for a sequence that has begun again since is ignored.
 * SL5 of sequences with one prompt, the first in the slots reads it; the others wait, and then copy what was read but for
 *    its last token.
 */
export class Slots {
  readonly size: number;
  readonly #prompts: readonly Int32Array[];
  readonly #keys: readonly number[] | undefined;
  readonly #sampling: Sampling;
  readonly #contextLength: number;
  readonly #stops: ReadonlySet<number>;
  readonly #occupants: (Sequence | undefined)[];
  readonly #isExtensible: boolean;
  #held: Held[] = [];
  #waiting = 0;
  #unfinished: number;

  constructor(
    size: number,
    prompts: readonly Int32Array[],
    sampling: Sampling,
    contextLength: number,
    isExtensible = false,
    keys?: readonly number[],
  ) {
    this.#isExtensible = isExtensible;
    this.size = size;
    this.#prompts = prompts;
    this.#keys = keys;
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

  /**
   * What to do next: copy what others have read, then read what is unread of each sequence, of prompts not more than
   * `maxTokens` at once.
   */
  next(maxTokens: number): { readonly copies: readonly Copy[]; readonly readings: readonly Reading[] } {
    const copies: Copy[] = [];
    const readings: Reading[] = [];
    const firsts = new Map<string, number>();
    let left = maxTokens;
    for (const [slot, sequence] of this.#occupants.entries()) {
      if (!sequence) continue;
      const first = firsts.get(sequence.promptText);
      if (first === undefined) firsts.set(sequence.promptText, slot);
      if (sequence.isHeld) continue;
      if (sequence.position === 0 && first !== undefined && sequence.prompt.length > 1) {
        const count = sequence.prompt.length - 1;
        if (this.#occupants[first]!.position < count) continue;
        copies.push({ from: first, to: slot, count });
        sequence.position = count;
      }
      const length = lengthOf(sequence) - sequence.position;
      const count = Math.min(length, Math.max(left, readings.length === 0 ? 1 : 0));
      if (count === 0) break;
      left -= count;
      const from = sequence.position;
      const tokens = Int32Array.from({ length: count }, (_, i) => tokenAt(sequence, from + i));
      readings.push({ slot, from, tokens, isAll: count === length });
    }
    return { copies, readings };
  }

  /**
   * Chooses a token where everything has been read; `logprobs` is `[readings, vocabSize]`, of what follows each.
   * Returns what finished.
   */
  advance(
    readings: readonly Reading[],
    logprobs: Float32Array,
    policyVersion: number,
  ): [index: number, completion: Completion][] {
    const vocabSize = logprobs.length / readings.length;
    const finished: [number, Completion][] = [];
    readings.forEach(({ slot, tokens, isAll }, row) => {
      const sequence = this.#occupants[slot]!;
      sequence.position += tokens.length;
      if (!isAll) return;
      const { token, logprob } = this.#choose(logprobs, row * vocabSize, vocabSize, sequence);
      sequence.chosen.push(token);
      sequence.logprobs.push(logprob);
      const reason = this.#finish(sequence, token);
      if (!reason) return;
      if (reason === "stop" && this.#isExtensible && !this.#isFull(sequence)) {
        sequence.isHeld = true;
        const { index, attempt } = sequence;
        this.#held.push({ index, attempt, completion: this.#complete(sequence, reason, policyVersion) });
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

  /** SL3. */
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
        ended.push([sequence.index, this.#complete(sequence, "abort", policyVersion)]);
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
      key: this.#keys?.[index] ?? index,
      prompt,
      promptText: prompt.join(),
      position: 0,
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
    return this.#complete(sequence, reason, policyVersion);
  }

  /** A token, and its log-probability in the distribution it is drawn from; greedy ones have the model's own. */
  #choose(
    logprobs: Float32Array,
    start: number,
    vocabSize: number,
    sequence: Sequence,
  ): { readonly token: number; readonly logprob: number } {
    const { temperature, seed } = this.#sampling;
    let best = 0;
    for (let token = 1; token < vocabSize; token++) {
      if (logprobs[start + token]! > logprobs[start + best]!) best = token;
    }
    if (temperature === 0) return { token: best, logprob: logprobs[start + best]! };
    const highest = logprobs[start + best]!;
    let total = 0;
    for (let token = 0; token < vocabSize; token++)
      total += Math.exp((logprobs[start + token]! - highest) / temperature);
    const drawn = (token: number) => {
      const own = logprobs[start + token]!;
      return { token, logprob: temperature === 1 ? own : (own - highest) / temperature - Math.log(total) };
    };
    let left = total * uniform(seed, sequence.key, sequence.chosen.length);
    for (let token = 0; token < vocabSize; token++) {
      left -= Math.exp((logprobs[start + token]! - highest) / temperature);
      if (left < 0) return drawn(token);
    }
    return drawn(best);
  }

  #complete({ chosen, logprobs }: Sequence, finishReason: FinishReason, policyVersion: number): Completion {
    return {
      tokens: Int32Array.from(chosen),
      logprobs: Float32Array.from(logprobs),
      temperature: this.#sampling.temperature,
      finishReason,
      policyVersion,
    };
  }

  #finish(sequence: Sequence, token: number): FinishReason | undefined {
    if (this.#stops.has(token)) return "stop";
    return this.#isFull(sequence) ? "length" : undefined;
  }

  #isFull(sequence: Sequence): boolean {
    return numChosen(sequence) === this.#sampling.maxTokens || lengthOf(sequence) === this.#contextLength;
  }
}

/** Tokens of one sequence, to be read after those before `from`. */
export type Reading = {
  readonly slot: number;
  readonly from: number;
  readonly tokens: Int32Array;
  /** nothing of the sequence is unread then */
  readonly isAll: boolean;
};

/** The first `count` positions of a slot's cache are to be another's too. */
export type Copy = { readonly from: number; readonly to: number; readonly count: number };

type Sequence = {
  readonly index: number;
  readonly key: number;
  readonly prompt: Int32Array;
  readonly promptText: string;
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
