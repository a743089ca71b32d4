import type { BegunEpisode, CutCause, Episode, EpisodeGroup, Prompt } from "@treadle/contracts";
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
    const { spare: _, ...prompt } = item.value;
    this.prompt = prompt;
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

  /** These samples, which were added, are the group, unless it is found to be replaced, and so is cut. */
  keep(samples: readonly number[], isReplaced: (group: EpisodeGroup) => boolean): void {
    this.#keep(samples, isReplaced).catch(this.#reject);
  }

  /** There will be no group in this step. */
  defer(to: Sink<Prompt>, begun?: BegunEpisode[]): void {
    this.#leave(to, { ...this.prompt, isLate: true, ...(begun && { begun }) });
  }

  /** There will be no group. */
  cut(to: Sink<Prompt>, cut: CutCause): void {
    this.#leave(to, { id: this.prompt.id, tokens: new Int32Array(), cut });
  }

  #leave(to: Sink<Prompt>, left: Prompt): void {
    this.#item
      .commit(to, left)
      .then(() => this.#resolve(undefined))
      .catch(this.#reject);
  }

  async #keep(samples: readonly number[], isReplaced: (group: EpisodeGroup) => boolean): Promise<void> {
    const episodes = await Promise.all(samples.map((sample) => this.#episodes.get(sample) as Promise<Episode>));
    const { id: promptId, metadata } = this.prompt;
    const group: EpisodeGroup = { promptId, episodes, ...(metadata && { metadata }) };
    if (isReplaced(group)) return;
    await this.#item.commit(this.#sink, group);
    this.#resolve(group);
  }
}
