/**
 * The race of a rank's groups in one step: which end early, so that the step does not last as long as its longest episode. More
 * samples of each prompt, and more prompts, are begun than the step wants, and those that end first are taken. A pure state
 * machine of one call: it is told what was taken and what has ended, and says what to end, keep and give up.
 *
 * - TL1 every prompt that was taken is kept or lost, once; it is lost only when no prompt comes any more and as many are kept as
 *   the rank wants of those that it took; one that lost before races no more, and is kept
 * - TL2 a group that is kept has as many samples as were asked for, the first that ended; of a group that is not whole, nothing is
 *   kept
 * - TL3 what is cut has not ended, and is of a group that is decided; nothing of a decided group goes on
 * - TL4 where neither more samples nor more prompts are begun than wanted, nothing is cut, and nothing lost
 * - TL5 a group whose place another takes no longer counts as kept. The place is decided anew, by samples of other numbers; it is lost where enough
 *   others are kept by then
 */

/** How many are begun for one that is wanted. */
export type Oversampling = { readonly prompts: number; readonly samples: number };

/** `prompt`: as `take` counted it. */
export type TailOrder =
  | { readonly type: "cut"; readonly prompt: number; readonly sample: number }
  /** whole, with these samples, in the order of their numbers */
  | { readonly type: "keep"; readonly prompt: number; readonly samples: readonly number[] }
  | { readonly type: "lose"; readonly prompt: number };

type Group = {
  readonly isLate: boolean;
  /** that begin at a time */
  readonly numSamples: number;
  /** the numbers below it are taken */
  nextSample: number;
  readonly running: Set<number>;
  ended: number[];
  isDecided: boolean;
};

/** Of so many that are begun, so many are wanted: rounded up, so that all ranks together keep no fewer than the step wants. */
export const wantedOf = (numBegun: number, oversampling: number): number =>
  Math.ceil(numBegun / oversampling - rounding);

/** So many are begun for so many that are wanted. */
export const begunFor = (numWanted: number, oversampling: number): number =>
  Math.ceil(numWanted * oversampling - rounding);

export class TailRace {
  readonly #groupSize: number;
  readonly #oversampling: Oversampling;
  readonly #groups: Group[] = [];
  /** of those that race */
  #numRacing = 0;
  #numKept = 0;
  #isSealed = false;

  constructor(groupSize: number, oversampling: Oversampling) {
    this.#groupSize = groupSize;
    this.#oversampling = oversampling;
  }

  /** that begin of a prompt which races */
  get numSamples(): number {
    return begunFor(this.#groupSize, this.#oversampling.samples);
  }

  /** A prompt, which may have lost before. Returns its number, and which samples of it are to begin. */
  take(
    isLate = false,
    numSamples = isLate ? this.#groupSize : this.numSamples,
  ): { readonly prompt: number; readonly samples: readonly number[] } {
    const group = { isLate, numSamples, nextSample: 0, running: new Set<number>(), ended: [], isDecided: false };
    if (!isLate) this.#numRacing++;
    return { prompt: this.#groups.push(group) - 1, samples: begin(group) };
  }

  /** TL5. Which samples of it are to begin: none where it is lost. */
  again(prompt: number): { readonly samples: readonly number[]; readonly orders: readonly TailOrder[] } {
    const group = this.#groups[prompt]!;
    if (!group.isLate) this.#numKept--;
    group.ended = [];
    group.isDecided = false;
    const orders = this.#loseRest();
    return { samples: group.isDecided ? [] : begin(group), orders };
  }

  /** Whether its end would count: it has begun, not ended, and nobody has cut it. */
  isRunning(prompt: number, sample: number): boolean {
    return this.#groups[prompt]?.running.has(sample) ?? false;
  }

  /** An episode has ended that nobody has cut. */
  ended(prompt: number, sample: number): readonly TailOrder[] {
    const group = this.#groups[prompt]!;
    if (!group.running.delete(sample)) return [];
    group.ended.push(sample);
    if (group.ended.length < this.#groupSize) return [];
    if (!group.isLate) this.#numKept++;
    const samples = group.ended.toSorted((a, b) => a - b);
    return [{ type: "keep", prompt, samples }, ...this.#decide(prompt, group), ...this.#loseRest()];
  }

  /** No prompt comes any more. */
  seal(): readonly TailOrder[] {
    this.#isSealed = true;
    return this.#loseRest();
  }

  /** TL1 */
  #loseRest(): TailOrder[] {
    if (!this.#isSealed || this.#numKept < wantedOf(this.#numRacing, this.#oversampling.prompts)) return [];
    return this.#groups.flatMap((group, prompt): TailOrder[] =>
      group.isDecided || group.isLate ? [] : [...this.#decide(prompt, group), { type: "lose", prompt }],
    );
  }

  /** TL3 */
  #decide(prompt: number, group: Group): TailOrder[] {
    group.isDecided = true;
    const cut = [...group.running].map((sample): TailOrder => ({ type: "cut", prompt, sample }));
    group.running.clear();
    return cut;
  }
}

function begin(group: Group): readonly number[] {
  const { numSamples, nextSample } = group;
  const samples = Array.from({ length: numSamples }, (_, at) => nextSample + at);
  group.nextSample += numSamples;
  for (const sample of samples) group.running.add(sample);
  return samples;
}

/** of products and quotients of small numbers, far below 1 */
const rounding = 1e-9;
