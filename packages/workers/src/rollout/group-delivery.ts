import type { Episode, EpisodeGroup, Prompt } from "@treadle/contracts";
import type { Sink, StreamItem } from "@treadle/runtime";

/**
 * Puts each group of a batch as soon as its last episode is there, and says with it that its prompt is done (C6): a rank that
 * dies loses the groups that are not complete, and no other. Rows are episodes, those of a group beside each other.
 */
export class GroupDelivery {
  readonly #prompts: readonly StreamItem<Prompt>[];
  readonly #groupSize: number;
  readonly #sink: Sink<EpisodeGroup>;
  readonly #groups: EpisodeGroup[];
  readonly #missing: number[];
  readonly #work: Promise<void>[] = [];

  constructor(prompts: readonly StreamItem<Prompt>[], groupSize: number, sink: Sink<EpisodeGroup>) {
    this.#prompts = prompts;
    this.#groupSize = groupSize;
    this.#sink = sink;
    this.#groups = prompts.map(({ value }) => ({ promptId: value.id, episodes: Array<Episode>(groupSize) }));
    this.#missing = prompts.map(() => groupSize);
  }

  /** What fails on the way fails `finish`. */
  add(row: number, episode: Promise<Episode>): void {
    const work = this.#take(row, episode);
    work.catch(() => {});
    this.#work.push(work);
  }

  /** All groups, in the order of their prompts, when each has been put and had room. */
  async finish(): Promise<readonly EpisodeGroup[]> {
    await Promise.all(this.#work);
    return this.#groups;
  }

  async #take(row: number, made: Promise<Episode>): Promise<void> {
    const at = Math.floor(row / this.#groupSize);
    const group = this.#groups[at] as EpisodeGroup;
    group.episodes[row % this.#groupSize] = await made;
    this.#missing[at] = (this.#missing[at] as number) - 1;
    if (this.#missing[at] === 0) await this.#prompts[at]?.commit(this.#sink, group);
  }
}
