import type { Episode, EpisodeGroup, Prompt } from "@treadle/contracts";
import type { Sink, StreamItem } from "@treadle/runtime";

/**
 * Puts a prompt's group as soon as its last episode is there, and says with it that the prompt is done (C6): a rank that dies
 * loses the groups that are not complete, and no other.
 */
export class GroupDelivery {
  readonly prompt: Prompt;
  /** Resolves when the group has been put and had room; rejects with what failed on the way. */
  readonly done: Promise<EpisodeGroup>;
  readonly #item: StreamItem<Prompt>;
  readonly #sink: Sink<EpisodeGroup>;
  readonly #episodes: Episode[];
  #numMissing: number;
  #resolve!: (group: EpisodeGroup) => void;
  #reject!: (error: unknown) => void;

  constructor(item: StreamItem<Prompt>, groupSize: number, sink: Sink<EpisodeGroup>) {
    this.prompt = item.value;
    this.#item = item;
    this.#sink = sink;
    this.#episodes = Array<Episode>(groupSize);
    this.#numMissing = groupSize;
    this.done = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    this.done.catch(() => {});
  }

  add(sample: number, episode: Promise<Episode>): void {
    this.#take(sample, episode).catch(this.#reject);
  }

  async #take(sample: number, episode: Promise<Episode>): Promise<void> {
    this.#episodes[sample] = await episode;
    if (--this.#numMissing > 0) return;
    const group = { promptId: this.prompt.id, episodes: this.#episodes };
    await this.#item.commit(this.#sink, group);
    this.#resolve(group);
  }
}
