import { type Completion, type FinishReason, type Sampling, TreadleError } from "@treadle/contracts";
import type { CompletionPiece, GenerateOptions, JoiningCompletion } from "../engine.ts";
import { priorityOf } from "../model-engine.ts";
import { mix } from "../random.ts";
import type { TokenAnswer, TokenPart, TokenRequest } from "./server-protocol.ts";

/**
 * The completions of one call, as requests to a server: a pure state machine.
 *
 * SQ1 a request depends on the prompt and (seed, key, what has been chosen before) alone. Where draws are by position, its seed does not
 *     depend on what has been chosen: one that goes on elsewhere has the tokens that it would have had.
 * SQ2 after `restart` every unfinished completion begins again at its prompt; answers to older requests are ignored, so a
 *     completion has one version.
 * SQ3 a completion ends at a token of `stopTokens`, at `maxTokens`, or where the context is full. Where a server ends it
 *     earlier, at a token that its model takes for an end, it goes on by another request.
 * SQ4 one that stopped, may be extended and may choose more is held until `extend`; what is appended is never chosen.
 * SQ5 an answer counts only if it can be one to its request: tokens of the vocabulary, no more than asked for, none after a
 *     stop, each with the logarithm of a probability.
 * SQ6 of a completion that goes on, each token that had arrived at a `see` which was confirmed is told once, in order: all but what may be
 *     its last, so that it has not stopped and has room for more wherever it was told of. Of a request that is made once more, all is told
 *     again.
 */
export class Sequences {
  readonly #sampling: Sampling;
  readonly #limits: Limits;
  readonly #stops: ReadonlySet<number>;
  readonly #isExtensible: boolean;
  readonly #sequences: Sequence[] = [];
  readonly #waiting = new Set<Sequence>();
  readonly #priority: (index: number) => number;
  #unfinished = 0;
  #isAborted = false;

  constructor(
    prompts: readonly Int32Array[],
    sampling: Sampling,
    limits: Limits,
    isExtensible = false,
    { keys, order }: Pick<GenerateOptions, "keys" | "order"> = {},
  ) {
    this.#priority = (index) => priorityOf(order, index);
    this.#sampling = sampling;
    this.#limits = limits;
    this.#stops = new Set(sampling.stopTokens);
    this.#isExtensible = isExtensible;
    for (const [index, prompt] of prompts.entries()) this.join({ prompt, key: keys?.[index] ?? index });
  }

  /** Returns its index. One that has begun elsewhere and has room for more goes on as it would have there. */
  join({ prompt, key, begun }: JoiningCompletion): number {
    const index = this.#sequences.length;
    const sequence: Sequence = {
      index,
      key,
      prompt,
      state: "waiting",
      attempt: 0,
      chosen: begun ? Array.from(begun.tokens) : [],
      logprobs: begun ? Array.from(begun.logprobs) : [],
      numAppended: begun?.numAppended ?? 0,
      arrived: nothingOf(0),
      numTold: begun?.tokens.length ?? 0,
      isUntold: false,
      priority: 0,
    };
    this.#wait(sequence);
    this.#sequences.push(sequence);
    this.#unfinished++;
    return index;
  }

  get done(): boolean {
    return this.#unfinished === 0;
  }

  get isAborted(): boolean {
    return this.#isAborted;
  }

  /** Whether an answer to the request would count. */
  isRunning(request: SequenceRequest): boolean {
    return this.#running(request) !== undefined;
  }

  /** The next request, of what has the highest priority, or undefined when nothing waits for a place. */
  take(): SequenceRequest | undefined {
    let sequence: Sequence | undefined;
    for (const one of this.#waiting) {
      if (!sequence || one.priority > sequence.priority) sequence = one;
      else if (one.priority === sequence.priority && one.index < sequence.index) sequence = one;
    }
    if (!sequence) return undefined;
    this.#waiting.delete(sequence);
    sequence.state = "running";
    const { index, attempt, key, prompt, chosen } = sequence;
    const { maxTokens, temperature, stopTokens, seed } = this.#sampling;
    const room = Math.min(maxTokens - numChosen(sequence), this.#limits.contextLength - lengthOf(sequence));
    sequence.arrived = nothingOf(room);
    return {
      index,
      attempt,
      tokens: [...prompt, ...chosen],
      maxTokens: room,
      temperature,
      stopTokens,
      seed: mix(seed, key, this.#limits.drawsByPosition ? 0 : chosen.length) >>> 1,
    };
  }

  /** Returns what ended, and what is held. Throws `service.failed` for what cannot be an answer (SQ5). */
  answer(request: SequenceRequest, answer: TokenAnswer): { readonly ended?: Completion; readonly held?: Completion } {
    const sequence = this.#running(request);
    if (!sequence) return {};
    this.#check(answer, request.maxTokens);
    for (const token of answer.tokens) sequence.chosen.push(token);
    for (const logprob of answer.logprobs) sequence.logprobs.push(logprob);
    const last = answer.tokens.at(-1);
    if (last !== undefined && this.#stops.has(last)) {
      if (!this.#isExtensible || this.#isAborted || this.#isFull(sequence))
        return { ended: this.#end(sequence, "stop") };
      sequence.state = "held";
      return { held: this.#completionOf(sequence, "stop") };
    }
    if (this.#isFull(sequence)) return { ended: this.#end(sequence, "length") };
    if (this.#isAborted) return { ended: this.#end(sequence, "abort") };
    // SQ3; a server whose own limit is lower says `length` before we do.
    if (answer.reason === "length") return { ended: this.#end(sequence, "length") };
    if (answer.reason === "abort" || answer.tokens.length === 0)
      throw new TreadleError(
        "service.failed",
        "the server ended a request that nobody here has asked it to end; give the engine a server of its own",
      );
    this.#wait(sequence);
    return {};
  }

  /** The next tokens of an answer that is not whole. Throws `service.failed` for what cannot be part of one (SQ5). */
  arrive(request: SequenceRequest, part: TokenPart): void {
    const sequence = this.#running(request);
    if (!sequence) return;
    const { tokens, logprobs, room } = sequence.arrived;
    this.#check(part, room - tokens.length, tokens.at(-1));
    for (const token of part.tokens) tokens.push(token);
    for (const logprob of part.logprobs) logprobs.push(logprob);
  }

  /** Marks what has arrived until now. */
  see(): void {
    for (const { arrived } of this.#sequences) arrived.numSeen = arrived.tokens.length;
  }

  /** What was marked may be told: the weights that were loaded have chosen it. */
  confirmSeen(): void {
    for (const { arrived } of this.#sequences) arrived.numConfirmed = arrived.numSeen;
  }

  /** What was not told yet (SQ6). What is held or has ended is known as a whole. */
  pieces(): CompletionPiece[] {
    const pieces: CompletionPiece[] = [];
    for (const sequence of this.#sequences) {
      const { index, state, attempt, chosen, logprobs, arrived, numTold: from } = sequence;
      if (state !== "waiting" && state !== "running") continue;
      const { numConfirmed } = arrived;
      const hasStopped = this.#stops.has(arrived.tokens[numConfirmed - 1] ?? -1);
      const numArrived = Math.min(numConfirmed - (hasStopped ? 1 : 0), arrived.room - 1);
      const to = chosen.length + Math.max(0, numArrived);
      if (to <= from && !sequence.isUntold) continue;
      sequence.numTold = to;
      sequence.isUntold = false;
      const untold = (had: readonly number[], came: readonly number[]): number[] => [
        ...had.slice(from),
        ...came.slice(Math.max(0, from - had.length), to - had.length),
      ];
      pieces.push({
        ...{ index, attempt, from },
        tokens: Int32Array.from(untold(chosen, arrived.tokens)),
        logprobs: Float32Array.from(untold(logprobs, arrived.logprobs)),
      });
    }
    return pieces;
  }

  /** A request without an answer is made once more; other tokens may come then. */
  lose(request: SequenceRequest): Completion | undefined {
    const sequence = this.#running(request);
    if (!sequence) return undefined;
    if (this.#isAborted) return this.#end(sequence, "abort");
    const numKnown = sequence.chosen.length;
    sequence.isUntold ||= sequence.numTold > numKnown;
    sequence.numTold = Math.min(sequence.numTold, numKnown);
    this.#wait(sequence);
    return undefined;
  }

  /** Appends tokens to a held completion, or ends it: when there are none, or it has no room for them and one more. */
  extend(
    { index, attempt }: Pick<SequenceRequest, "index" | "attempt">,
    tokens: Int32Array | undefined,
  ): Completion | undefined {
    const sequence = this.#sequences[index]!;
    if (sequence.state !== "held" || sequence.attempt !== attempt) return undefined;
    if (tokens === undefined) return this.#end(sequence, "stop");
    if (lengthOf(sequence) + tokens.length >= this.#limits.contextLength) return this.#end(sequence, "length");
    sequence.numAppended += tokens.length;
    for (const token of tokens) {
      sequence.chosen.push(token);
      sequence.logprobs.push(0);
    }
    this.#wait(sequence);
    return undefined;
  }

  /** SQ2. */
  restart(): void {
    for (const sequence of this.#sequences) {
      if (sequence.state === "ended") continue;
      sequence.attempt++;
      sequence.chosen = [];
      sequence.logprobs = [];
      sequence.numAppended = 0;
      sequence.numTold = 0;
      sequence.isUntold = false;
      this.#wait(sequence);
    }
  }

  /** Ends what is not on the server with what it has; what is ends with its answer. */
  abort(): [index: number, completion: Completion][] {
    this.#isAborted = true;
    this.#waiting.clear();
    return this.#sequences
      .filter(({ state }) => state === "waiting" || state === "held")
      .map((sequence) => [sequence.index, this.#end(sequence, "abort")]);
  }

  #running({ index, attempt }: SequenceRequest): Sequence | undefined {
    const sequence = this.#sequences[index]!;
    return sequence.state === "running" && sequence.attempt === attempt ? sequence : undefined;
  }

  #wait(sequence: Sequence): void {
    sequence.priority = this.#priority(sequence.index); // may throw, and then nothing has changed
    sequence.state = "waiting";
    sequence.arrived = nothingOf(0);
    this.#waiting.add(sequence);
  }

  #end(sequence: Sequence, reason: FinishReason): Completion {
    sequence.state = "ended";
    this.#unfinished--;
    return this.#completionOf(sequence, reason);
  }

  #completionOf({ chosen, logprobs }: Sequence, finishReason: FinishReason): Completion {
    return {
      tokens: Int32Array.from(chosen),
      logprobs: Float32Array.from(logprobs),
      temperature: this.#sampling.temperature,
      finishReason,
      policyVersion: this.#limits.policyVersion(),
    };
  }

  #isFull(sequence: Sequence): boolean {
    return numChosen(sequence) === this.#sampling.maxTokens || lengthOf(sequence) === this.#limits.contextLength;
  }

  /** SQ5. */
  #check({ tokens, logprobs }: TokenPart, maxTokens: number, before?: number): void {
    const refuse = (what: string): never => {
      throw new TreadleError(
        "service.failed",
        `the server's answer cannot be used: ${what}; check that it serves the model in engine.model`,
      );
    };
    if (tokens.length > maxTokens) refuse(`it has '${tokens.length}' tokens where '${maxTokens}' were asked for`);
    if (logprobs.length !== tokens.length)
      refuse(`it has '${logprobs.length}' log-probabilities for '${tokens.length}' tokens`);
    if (tokens.length > 0 && before !== undefined && this.#stops.has(before))
      refuse(`it goes on after the stop token '${before}'`);
    tokens.forEach((token, at) => {
      if (token >= this.#limits.vocabSize)
        refuse(`token '${token}' is not in the vocabulary of '${this.#limits.vocabSize}'`);
      if (at < tokens.length - 1 && this.#stops.has(token)) refuse(`it goes on after the stop token '${token}'`);
      // Rounding of a sum of probabilities may exceed 1 by a little.
      if (!(logprobs[at]! <= 1e-3 && logprobs[at]! > Number.NEGATIVE_INFINITY))
        refuse(`token '${token}' has the log-probability '${logprobs[at]}'`);
    });
  }
}

type Limits = {
  readonly vocabSize: number;
  readonly contextLength: number;
  readonly policyVersion: () => number;
  readonly drawsByPosition: boolean;
};

/** What a completion asks for next; its answer is given back with it. */
export type SequenceRequest = Omit<TokenRequest, "id" | "salt"> & { readonly index: number; readonly attempt: number };

type Sequence = {
  readonly index: number;
  readonly key: number;
  readonly prompt: Int32Array;
  state: "waiting" | "running" | "held" | "ended";
  /** how often it has begun again */
  attempt: number;
  /** everything after the prompt, what was appended included */
  chosen: number[];
  logprobs: number[];
  numAppended: number;
  arrived: Arrived;
  /** how many of its tokens were told */
  numTold: number;
  /** of what was told, what is behind `numTold` counts no more, which was not told yet */
  isUntold: boolean;
  /** as it was when it began to wait */
  priority: number;
};

/** Of the answer to the request under way. */
type Arrived = {
  readonly tokens: number[];
  readonly logprobs: number[];
  /** so many were asked for */
  readonly room: number;
  numSeen: number;
  numConfirmed: number;
};

const nothingOf = (room: number): Arrived => ({ tokens: [], logprobs: [], room, numSeen: 0, numConfirmed: 0 });

const lengthOf = ({ prompt, chosen }: Sequence): number => prompt.length + chosen.length;
const numChosen = ({ chosen, numAppended }: Sequence): number => chosen.length - numAppended;
