import { type Completion, type FinishReason, type Sampling, type VersionRuns, versionRunsOf } from "@treadle/contracts";
import type { BegunCompletion, GenerationOrder, JoiningCompletion, OnNewWeights } from "../engine.ts";
import { priorityOf } from "../model-engine.ts";
import { behindAnswers, joined } from "../new-weights.ts";
import { uniform } from "../random.ts";

/**
 * Which sequences are decoded at once, and which wait: a pure state machine, driven with log-probabilities. A sequence
 * that has begun has a cache of keys and values until it ends; it occupies a slot only while it is read or decoded.
 *
 * SL1 at most `size` sequences occupy a slot; a slot that is free is taken at once by a sequence that waits and has a
 *    cache, or can get one.
 * SL2 a chosen token depends on the weights, the prompt and (seed, key, number of the token) alone, never on the slot,
 *    on what else is in the batch, or on what was displaced when.
 * SL3 after `restart` every unfinished sequence is computed again from its prompt, so a completion has one version.
 * SL4 a sequence that stopped, may be extended and may choose more is held without a slot, with all it has read, until
 *    `extend`; what is appended is read, never chosen. An answer for a sequence that has begun again since is ignored.
 * SL5 of sequences with one prompt, the first in the slots reads it; the others wait, and then copy what was read but for
 *    its last token.
 * SL6 a free slot goes to the waiting sequence of highest priority, ties to the lowest index. A priority is asked for
 *    when a sequence begins to wait: at the start, once it was extended, and after a `restart`.
 * SL7 a sequence is displaced only between two of its tokens, after `minTokens` of them in its slot, by a waiting one
 *    whose priority exceeds its own by more than `margin` of its size; it keeps its keys and values.
 * SL8 at most `size + spareCaches` sequences have begun and not ended. Without a spare cache none begins, whatever its
 *    priority, before another ends.
 * SL9 a sequence that joins with what it has chosen elsewhere, and has room for more, is read and goes on as it would have there;
 *    after a `restart` it is computed from its prompt, as all are.
 * SL10 a sequence that is cut ends with what it has, wherever it stands, and is asked about no more.
 * SL11 with `onNewWeights`, `renew` leaves what `extend` was asked about or has answered: `restart` takes the tokens of the turn under way, `recompute`
 *    the keys and values of all, `keep` nothing. What was chosen before keeps its version.
 * SL12 what was kept over new weights is copied to no other sequence (SL5): what begins is computed with one version alone.
 */
export class Slots {
  readonly size: number;
  readonly #prompts: Int32Array[];
  readonly #keys: number[];
  /** of those that joined and have no cache yet */
  readonly #elsewhere = new Map<number, BegunCompletion>();
  readonly #sampling: Sampling;
  readonly #contextLength: number;
  readonly #stops: ReadonlySet<number>;
  readonly #isExtensible: boolean;
  readonly #order: GenerationOrder | undefined;
  readonly #onNewWeights: OnNewWeights | undefined;
  readonly #takeKept: SlotsOptions["takeKept"];
  /** how often weights have come that left keys and values */
  #epoch = 0;
  /** in slots */
  #running: Sequence[] = [];
  /** of those that have begun, in a slot or not, by cache */
  readonly #begun: (Sequence | undefined)[];
  /** that have begun and wait for a slot, and prompts that have not begun: those which go first stand last */
  #ready: Sequence[] = [];
  #fresh: Waiting[];
  #held: Held[] = [];
  #unfinished: number;

  constructor(
    size: number,
    prompts: readonly Int32Array[],
    sampling: Sampling,
    contextLength: number,
    { isExtensible = false, isJoinable = false, keys, order, onNewWeights, takeKept }: SlotsOptions = {},
  ) {
    this.#onNewWeights = onNewWeights;
    this.#takeKept = takeKept;
    this.#isExtensible = isExtensible;
    this.size = size;
    this.#prompts = [...prompts];
    this.#keys = keys ? [...keys] : prompts.map((_, index) => index);
    this.#sampling = sampling;
    this.#contextLength = contextLength;
    this.#order = order;
    this.#stops = new Set(sampling.stopTokens);
    this.#unfinished = prompts.length;
    const mostCaches = size + (order?.spareCaches ?? 0);
    const numCaches = isJoinable ? mostCaches : Math.min(prompts.length, mostCaches);
    this.#begun = Array.from({ length: numCaches }, () => undefined);
    this.#fresh = prompts.map((_, index) => ({ index, priority: priorityOf(order, index) })).sort(laterFirst);
    this.#fill();
  }

  /** SL9. Returns its index. */
  join({ prompt, key, begun }: JoiningCompletion): number {
    const index = this.#prompts.push(prompt) - 1;
    this.#keys.push(key);
    if (begun) this.#elsewhere.set(index, begun);
    this.#unfinished++;
    insert(this.#fresh, { index, priority: priorityOf(this.#order, index) });
    this.#fill();
    return index;
  }

  get done(): boolean {
    return this.#unfinished === 0;
  }

  /** Nothing can go on before somebody answers for a held sequence. */
  get isHeld(): boolean {
    return !this.done && this.#running.length === 0;
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
    this.#displace();
    const copies: Copy[] = [];
    const readings: Reading[] = [];
    const readers = new Set<string>();
    let left = maxTokens;
    for (const sequence of this.#running) {
      const isFirst = sequence.epoch !== this.#epoch || !readers.has(sequence.promptText);
      if (sequence.epoch === this.#epoch) readers.add(sequence.promptText);
      const count = sequence.prompt.length - 1;
      if (sequence.position === 0 && count > 0) {
        const source = this.#whoHasRead(sequence, count);
        if (source === undefined && !isFirst) continue;
        if (source !== undefined) {
          copies.push({ from: source.cache, to: sequence.cache, count });
          sequence.position = count;
        }
      }
      const length = lengthOf(sequence) - sequence.position;
      const numRead = Math.min(length, Math.max(left, readings.length === 0 ? 1 : 0));
      if (numRead === 0) break;
      left -= numRead;
      const from = sequence.position;
      const tokens = Int32Array.from({ length: numRead }, (_, i) => tokenAt(sequence, from + i));
      readings.push({ cache: sequence.cache, from, tokens, isAll: numRead === length });
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
    readings.forEach(({ cache, tokens, isAll }, row) => {
      const sequence = this.#begun[cache]!;
      sequence.position += tokens.length;
      if (!isAll) return;
      const { token, logprob } = this.#choose(logprobs, row * vocabSize, vocabSize, sequence);
      sequence.chosen.push(token);
      sequence.logprobs.push(logprob);
      sequence.numInSlot++;
      const reason = this.#finish(sequence, token);
      if (!reason) return;
      if (reason === "stop" && this.#isExtensible && !this.#isFull(sequence)) {
        this.#hold(sequence, this.#complete(sequence, reason, policyVersion));
      } else finished.push([sequence.index, this.#end(sequence, reason, policyVersion)]);
    });
    this.#fill();
    return finished;
  }

  /** Appends tokens to a held sequence, or ends it: when there are none, or it has no room for them and one more. */
  extend(
    { index, attempt }: Pick<Held, "index" | "attempt">,
    tokens: Int32Array | undefined,
    policyVersion: number,
  ): [index: number, completion: Completion][] {
    const sequence = this.#begun.find((one) => one?.index === index);
    if (!sequence?.isHeld || sequence.attempt !== attempt) return [];
    const reason = tokens && lengthOf(sequence) + tokens.length >= this.#contextLength ? "length" : "stop";
    if (tokens === undefined || reason === "length") {
      const completion = this.#end(sequence, reason, policyVersion);
      this.#fill();
      return [[index, completion]];
    }
    sequence.isHeld = false;
    sequence.numAppended += tokens.length;
    for (const token of tokens) {
      sequence.chosen.push(token);
      sequence.logprobs.push(0);
    }
    sequence.turnFrom = sequence.chosen.length;
    sequence.priority = priorityOf(this.#order, index);
    insert(this.#ready, sequence);
    this.#fill();
    return [];
  }

  /** SL3. */
  restart(): void {
    for (const sequence of this.#begun) {
      if (!sequence) continue;
      sequence.position = 0;
      sequence.chosen = [];
      sequence.logprobs = [];
      sequence.numAppended = 0;
      sequence.turnFrom = 0;
      sequence.isHeld = false;
      sequence.attempt++;
    }
    this.#elsewhere.clear();
    this.#waitAgain();
  }

  /** SL11. `policyVersion` has chosen all that was chosen since the last time; other weights are there now. */
  renew(policyVersion: number): void {
    if (this.#onNewWeights === undefined) {
      this.restart();
      return;
    }
    for (const sequence of this.#begun) {
      if (!sequence) continue;
      sequence.versions = versionRunsOf(sequence.versions, sequence.chosen.length, policyVersion);
      if (this.#onNewWeights !== "keep") sequence.position = 0;
      if (this.#onNewWeights !== "restart" || sequence.isHeld) continue;
      sequence.chosen.length = sequence.logprobs.length = sequence.turnFrom;
      sequence.versions = versionRunsOf(sequence.versions, sequence.turnFrom, policyVersion);
    }
    for (const [index, begun] of this.#elsewhere) {
      const versions = versionRunsOf(begun.versions ?? [], begun.tokens.length, policyVersion);
      const whole = { ...begun, versions };
      this.#elsewhere.set(index, this.#onNewWeights === "restart" ? behindAnswers(whole) : whole);
    }
    if (this.#onNewWeights !== "keep") {
      this.#waitAgain();
      return;
    }
    this.#epoch++;
    for (const sequence of this.#begun) if (sequence?.position === 0) sequence.epoch = this.#epoch;
  }

  /** Of a sequence that has begun: what its cache holds. */
  cached(index: number): CachedSequence | undefined {
    const sequence = this.#begun.find((one) => one?.index === index);
    return sequence && cachedOf(sequence);
  }

  /** Of all that have begun. */
  get allCached(): CachedSequence[] {
    return this.#begun.flatMap((sequence) => (sequence ? [cachedOf(sequence)] : []));
  }

  /** SL6: nothing keeps its slot. */
  #waitAgain(): void {
    for (const sequence of this.#begun) if (sequence) sequence.priority = priorityOf(this.#order, sequence.index);
    this.#fresh = this.#fresh
      .map(({ index }) => ({ index, priority: priorityOf(this.#order, index) }))
      .sort(laterFirst);
    this.#ready = this.#begun
      .filter((sequence) => sequence !== undefined)
      .filter(({ isHeld }) => !isHeld)
      .sort(laterFirst);
    this.#running = [];
    this.#fill();
  }

  /** SL10. Undefined where it has ended. */
  cut(index: number, policyVersion: number): Completion | undefined {
    const begun = this.#begun.find((one) => one?.index === index);
    const sequence = begun ?? this.#takeFresh(index);
    if (!sequence) return undefined;
    if (begun) this.#begun[begun.cache] = undefined;
    this.#running = this.#running.filter((one) => one !== begun);
    this.#ready = this.#ready.filter((one) => one !== begun);
    this.#held = this.#held.filter((one) => one.index !== index);
    this.#unfinished--;
    this.#fill();
    return this.#complete(sequence, "abort", policyVersion);
  }

  /** Ends everything, waiting prompts included, with what has been chosen so far. */
  abort(policyVersion: number): [index: number, completion: Completion][] {
    const begun = this.#begun.filter((sequence) => sequence !== undefined);
    const unbegun = this.#fresh.map(({ index }) => this.#sequence(index, 0, -1));
    this.#running = [];
    this.#ready = [];
    this.#fresh = [];
    this.#begun.fill(undefined);
    this.#unfinished = 0;
    return [...begun, ...unbegun]
      .sort((a, b) => a.index - b.index)
      .map((sequence) => [sequence.index, this.#complete(sequence, "abort", policyVersion)]);
  }

  /** Another of the same prompt whose cache has its first `count` positions (SL5), of these weights alone (SL12). */
  #whoHasRead({ promptText }: Sequence, count: number): Sequence | undefined {
    return this.#begun.find(
      (other) =>
        other !== undefined &&
        other.epoch === this.#epoch &&
        other.position >= count &&
        other.promptText === promptText,
    );
  }

  /** SL1, SL6 */
  #fill(): void {
    while (this.#running.length < this.size) {
      const sequence = this.#takeFirst();
      if (!sequence) return;
      this.#run(sequence);
    }
  }

  #run(sequence: Sequence): void {
    sequence.numInSlot = 0;
    this.#running.push(sequence);
  }

  /** Of those that wait, the one that may have a slot now and goes before the others. */
  #first(): { readonly waiting: Waiting; readonly isFresh: boolean } | undefined {
    const ready = this.#ready.at(-1);
    const fresh = this.#begun.includes(undefined) ? this.#fresh.at(-1) : undefined; // SL8
    if (fresh && (!ready || laterFirst(ready, fresh) < 0)) return { waiting: fresh, isFresh: true };
    return ready && { waiting: ready, isFresh: false };
  }

  #takeFirst(): Sequence | undefined {
    const first = this.#first();
    if (!first?.isFresh) return this.#ready.pop();
    this.#fresh.pop();
    const cache = this.#begun.indexOf(undefined);
    const sequence = this.#sequence(first.waiting.index, first.waiting.priority, cache);
    this.#begun[cache] = sequence;
    return sequence;
  }

  #takeFresh(index: number): Sequence | undefined {
    const at = this.#fresh.findIndex((one) => one.index === index);
    if (at < 0) return undefined;
    this.#fresh.splice(at, 1);
    return this.#sequence(index, 0, -1);
  }

  /** SL7 */
  #displace(): void {
    const { displace } = this.#order ?? {};
    if (!displace) return;
    for (let first = this.#first(); first; first = this.#first()) {
      let last: Sequence | undefined;
      for (const sequence of this.#running) {
        if (sequence.numInSlot < displace.minTokens) continue;
        if (!last || laterFirst(sequence, last) < 0) last = sequence;
      }
      if (!last || first.waiting.priority <= last.priority + displace.margin * Math.abs(last.priority)) return;
      this.#leave(last);
      this.#run(this.#takeFirst()!);
      insert(this.#ready, last);
    }
  }

  #leave(sequence: Sequence): void {
    this.#running.splice(this.#running.indexOf(sequence), 1);
  }

  /** SL4 */
  #hold(sequence: Sequence, completion: Completion): void {
    this.#leave(sequence);
    sequence.isHeld = true;
    this.#held.push({ index: sequence.index, attempt: sequence.attempt, completion });
  }

  #sequence(index: number, priority: number, cache: number): Sequence {
    const prompt = this.#prompts[index]!;
    const begun = this.#elsewhere.get(index);
    this.#elsewhere.delete(index);
    const key = this.#keys[index]!;
    const position = (begun && cache >= 0 && this.#takeKept?.(cache, key, joined(prompt, begun.tokens))) || 0;
    return {
      index,
      priority,
      cache,
      key,
      prompt,
      promptText: prompt.join(),
      position,
      epoch: position > 0 ? -1 : this.#epoch,
      versions: begun?.versions ?? [],
      turnFrom: begun?.turnFrom ?? 0,
      chosen: begun ? Array.from(begun.tokens) : [],
      logprobs: begun ? Array.from(begun.logprobs) : [],
      numAppended: begun?.numAppended ?? 0,
      numInSlot: 0,
      isHeld: false,
      attempt: 0,
    };
  }

  #end(sequence: Sequence, reason: FinishReason, policyVersion: number): Completion {
    this.#unfinished--;
    if (!sequence.isHeld) this.#leave(sequence);
    this.#begun[sequence.cache] = undefined;
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

  #complete({ chosen, logprobs, versions }: Sequence, finishReason: FinishReason, policyVersion: number): Completion {
    const isTold = this.#onNewWeights !== undefined;
    return {
      tokens: Int32Array.from(chosen),
      logprobs: Float32Array.from(logprobs),
      temperature: this.#sampling.temperature,
      finishReason,
      policyVersion,
      ...(isTold && { versions: versionRunsOf(versions, chosen.length, policyVersion) }),
    };
  }

  #finish(sequence: Sequence, token: number): FinishReason | undefined {
    if (this.#stops.has(token)) return "stop";
    return this.#isFull(sequence) ? "length" : undefined;
  }

  #isFull(sequence: Sequence): boolean {
    return numChosen(sequence) >= this.#sampling.maxTokens || lengthOf(sequence) >= this.#contextLength;
  }
}

/** Tokens of one sequence, to be read after those before `from`. */
export type Reading = {
  readonly cache: number;
  readonly from: number;
  readonly tokens: Int32Array;
  /** nothing of the sequence is unread then */
  readonly isAll: boolean;
};

/** The first `count` positions of one cache are to be another's too. */
export type Copy = { readonly from: number; readonly to: number; readonly count: number };

export type SlotsOptions = {
  readonly isExtensible?: boolean | undefined;
  readonly isJoinable?: boolean | undefined;
  readonly keys?: readonly number[] | undefined;
  readonly order?: GenerationOrder | undefined;
  readonly onNewWeights?: OnNewWeights | undefined;
  /**
   * Of one that joins with what it has, and gets this cache: puts the keys and values there that were kept of it, if any, and
   * returns of how many of its tokens they are.
   */
  readonly takeKept?: ((cache: number, key: number, tokens: Int32Array) => number) | undefined;
};

/** These tokens of a sequence, prompt included, have their keys and values in the cache. */
export type CachedSequence = { readonly cache: number; readonly key: number; readonly tokens: Int32Array };

type Waiting = { readonly index: number; readonly priority: number };

type Sequence = {
  readonly index: number;
  priority: number;
  /** that holds its keys and values */
  readonly cache: number;
  readonly key: number;
  readonly prompt: Int32Array;
  readonly promptText: string;
  /** of the token to feed next */
  position: number;
  /** in which all of its keys and values were computed, or it is to begin; another: they are of several weights */
  epoch: number;
  /** of what other weights than those of now have chosen */
  versions: VersionRuns;
  /** of `chosen`, where the turn under way began */
  turnFrom: number;
  /** everything after the prompt, what was appended included */
  chosen: number[];
  logprobs: number[];
  numAppended: number;
  /** chosen since it got its slot */
  numInSlot: number;
  isHeld: boolean;
  /** how often it has begun again */
  attempt: number;
};

/** A sequence that stopped, and what it has so far. */
export type Held = { readonly index: number; readonly attempt: number; readonly completion: Completion };

/** Ascending by who goes first: of lists that are taken from at their end. */
const laterFirst = (a: Waiting, b: Waiting): number => a.priority - b.priority || b.index - a.index;

/** Keeps the order of `laterFirst`. */
function insert<T extends Waiting>(list: T[], sequence: T): void {
  let [from, to] = [0, list.length];
  while (from < to) {
    const middle = (from + to) >> 1;
    if (laterFirst(list[middle]!, sequence) < 0) from = middle + 1;
    else to = middle;
  }
  list.splice(from, 0, sequence);
}

const lengthOf = ({ prompt, chosen }: Sequence): number => prompt.length + chosen.length;
const numChosen = ({ chosen, numAppended }: Sequence): number => chosen.length - numAppended;

function cachedOf(sequence: Sequence): CachedSequence {
  const { cache, key, position } = sequence;
  return { cache, key, tokens: Int32Array.from({ length: position }, (_, at) => tokenAt(sequence, at)) };
}

function tokenAt({ prompt, chosen }: Sequence, position: number): number {
  return position < prompt.length ? prompt[position]! : chosen[position - prompt.length]!;
}
