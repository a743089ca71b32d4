import type { EpisodeGroup, Prompt } from "@treadle/contracts";
import type { InFlight, Sink, Source, StreamItem } from "@treadle/runtime";

/**
 * Batches of prompts, and the groups that come of them in the order in which they are put; each prompt is committed once. The
 * granularity is that of the first batch.
 */
export function streamOf(batches: readonly (readonly Prompt[])[]) {
  const groups: EpisodeGroup[] = [];
  const sink = { put: async (...items: EpisodeGroup[]) => void groups.push(...items) } as unknown as Sink<EpisodeGroup>;
  const committed = new Set<Prompt>();
  const item = (value: Prompt): StreamItem<Prompt> => ({
    value,
    commit: async (to?: unknown, ...outputs: readonly unknown[]) => {
      if (committed.has(value)) throw new Error(`'${value.id}' was committed twice`);
      committed.add(value);
      await (to as Sink<unknown> | undefined)?.put(...outputs);
    },
  });
  const source = {
    async *itemBatches({ inFlight }: { readonly inFlight?: InFlight } = {}) {
      const left = batches.map((batch) => batch.map((value) => item(value)));
      if (typeof inFlight !== "function") yield* left;
      else for (const all = left.flat(); all.length > 0; ) yield all.splice(0, inFlight());
    },
    granularity: batches[0]?.length ?? 1,
  } as unknown as Source<Prompt>;
  return { source, sink, groups, committed };
}
