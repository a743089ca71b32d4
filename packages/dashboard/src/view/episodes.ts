/** Which of the sampled episodes a person wants to see, and in which order. Pure. */

export type EpisodeLine = {
  readonly index: number;
  readonly step: number;
  readonly worker: string;
  readonly promptId: string;
  readonly reward: number;
  /** tokens after the prompt */
  readonly length: number;
  readonly finishReason: string;
  readonly numCalls: number;
  /** how prompt and completion begin */
  readonly prompt: string;
  readonly text: string;
};

export type EpisodeFilter = {
  readonly leastReward?: number | undefined;
  readonly mostReward?: number | undefined;
  readonly leastLength?: number | undefined;
  readonly mostLength?: number | undefined;
  /** within prompt, completion, prompt id or worker; capitals do not matter */
  readonly text?: string | undefined;
};

export type EpisodeOrder = "newest" | "oldest" | "best" | "worst" | "longest" | "shortest";

const orders: Readonly<Record<EpisodeOrder, (a: EpisodeLine, b: EpisodeLine) => number>> = {
  newest: (a, b) => b.step - a.step,
  oldest: (a, b) => a.step - b.step,
  best: (a, b) => b.reward - a.reward,
  worst: (a, b) => a.reward - b.reward,
  longest: (a, b) => b.length - a.length,
  shortest: (a, b) => a.length - b.length,
};

export function chooseEpisodes(
  lines: readonly EpisodeLine[],
  { leastReward, mostReward, leastLength, mostLength, text }: EpisodeFilter,
  order: EpisodeOrder,
): EpisodeLine[] {
  const wanted = text?.trim().toLowerCase() ?? "";
  return lines
    .filter(
      ({ reward, length, prompt, text: said, promptId, worker }) =>
        (leastReward === undefined || reward >= leastReward) &&
        (mostReward === undefined || reward <= mostReward) &&
        (leastLength === undefined || length >= leastLength) &&
        (mostLength === undefined || length <= mostLength) &&
        (wanted === "" || [prompt, said, promptId, worker].some((each) => each.toLowerCase().includes(wanted))),
    )
    .sort((a, b) => orders[order](a, b) || b.step - a.step || a.index - b.index);
}
