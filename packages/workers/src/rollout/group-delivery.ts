import type { BegunEpisode, Episode, EpisodeGroup, Prompt } from "@treadle/contracts";
import type { Sink, StreamItem } from "@treadle/runtime";

/**
 * Puts a prompt's group as soon as its episodes are there, and says with it that the prompt is done (C6): a rank that dies
 * loses the groups that are not complete, and no other.
 */
export class GroupDelivery {
  readonly prompt: Prompt;
  /** Resolves when the group has been put and had room, or with undefined when there is none; rejects with what failed on the way. */
  readonly done: Promise<EpisodeGroup | undefined>;
  readonly #item: StreamItem<Prompt>;
  readonly #sink: Sink<EpisodeGroup>;
  readonly #episodes = new Map<number, Promise<Episode>>();
  #resolve!: (group: EpisodeGroup | undefined) => void;
  #reject!: (error: unknown) => void;

  constructor(item: StreamItem<Prompt>, sink: Sink<EpisodeGroup>) {
    this.prompt = item.value;
    this.#item = item;
    this.#sink = sink;
    this.done = new Promise((resolve, reject) => {
      this.#resolve = resolve;
      this.#reject = reject;
    });
    this.done.catch(() => {});
  }

  add(sample: number, episode: Promise<Episode>): void {
    this.#episodes.set(sample, episode);
    episode.catch(this.#reject);
  }

  /** These samples, which were added, are the group, unless they are found to be drawn again. */
  keep(samples: readonly number[], isDrawnAgain: (group: EpisodeGroup) => boolean): void {
    this.#keep(samples, isDrawnAgain).catch(this.#reject);
  }

  /** There will be no group: the prompt is done, or with a sink another's. */
  lose(to: Sink<Prompt> | undefined, begun?: BegunEpisode[]): void {
    const late = { ...this.prompt, isLate: true, ...(begun && { begun }) };
    const committed = to ? this.#item.commit(to, late) : this.#item.commit();
    committed.then(() => this.#resolve(undefined)).catch(this.#reject);
  }

  async #keep(samples: readonly number[], isDrawnAgain: (group: EpisodeGroup) => boolean): Promise<void> {
    const episodes = await Promise.all(samples.map((sample) => this.#episodes.get(sample) as Promise<Episode>));
    const group = { promptId: this.prompt.id, episodes };
    if (isDrawnAgain(group)) return;
    await this.#item.commit(this.#sink, group);
    this.#resolve(group);
  }
}
