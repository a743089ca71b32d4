/** Chunks of a plan's channels, made larger or smaller as long as a step gets shorter. Pure. */
import type { FlowGraph, Plan } from "@treadle/contracts";
import { leastGain } from "./moved-shares.ts";

type Chunks = Plan["granularity"];

type Judging<L> = {
  readonly judge: (chunks: Chunks) => L | undefined;
  readonly secondsOf: (layout: L) => number;
  readonly isOver: () => boolean;
};

const factors = [0.5, 2];

/**
 * A schedule has one chunk for each of its pipelines, and counts what a chunk costs as if everybody went in step. By a replay, where ranks
 * claim what is there, other chunks may be better, and other ones for each channel. All channels together, and then one after the other, are
 * halved or doubled, until nobody gains. `first` has these chunks.
 */
export function refinedChunks<L>(
  first: { readonly layout: L; readonly chunks: Chunks },
  channels: FlowGraph["channels"],
  { judge, secondsOf, isOver }: Judging<L>,
): { readonly layout: L; readonly chunks: Chunks } {
  const names = Object.entries(first.chunks.channels).flatMap(([name, items]) => (items === "all" ? [] : [name]));
  const seen = new Set([keyOf(first.chunks)]);
  let best = first;
  for (let before: typeof best | undefined; before !== best; ) {
    before = best;
    for (const changed of [names, ...(names.length > 1 ? names.map((name) => [name]) : [])]) {
      for (const factor of factors) {
        const chunks = scaled(best.chunks, changed, factor, channels);
        if (isOver() || seen.has(keyOf(chunks))) continue;
        seen.add(keyOf(chunks));
        const layout = judge(chunks);
        if (layout !== undefined && secondsOf(layout) < secondsOf(best.layout) * (1 - leastGain))
          best = { layout, chunks };
      }
    }
  }
  return best;
}

const keyOf = ({ channels }: Chunks): string => JSON.stringify(Object.entries(channels).toSorted());

/** Whole items, at least one, and no more than a step has. */
function scaled(chunks: Chunks, names: readonly string[], factor: number, channels: FlowGraph["channels"]): Chunks {
  const changed = names.map((name) => {
    const items = chunks.channels[name] as number;
    return [name, Math.max(1, Math.min(Math.round(items * factor), channels[name]?.itemsPerStep ?? items))] as const;
  });
  return { ...chunks, channels: { ...chunks.channels, ...Object.fromEntries(changed) } };
}
