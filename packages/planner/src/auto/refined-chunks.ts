/** Chunks of a plan's channels, made larger or smaller as long as a step gets shorter. Pure. */
import type { FlowGraph, Plan } from "@treadle/contracts";
import { joinedGroups } from "../wishes.ts";
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
 * claim what is there, other chunks may be better, and other ones for each channel. All channels together, and then those of one consumer
 * after the other, are halved or doubled, until nobody gains: who takes from several takes as much from each. `first` has these chunks, of a
 * step of `batch` items.
 */
export function refinedChunks<L>(
  first: { readonly layout: L; readonly chunks: Chunks },
  { graph, batch }: { readonly graph: FlowGraph; readonly batch: number },
  { judge, secondsOf, isOver }: Judging<L>,
): Chunks {
  const names = Object.entries(first.chunks.channels).flatMap(([name, items]) => (items === "all" ? [] : [name]));
  const takenBy = (component: string) => names.filter((name) => graph.channels[name]?.consumers.includes(component));
  const groups = joinedGroups(Object.keys(graph.components).map(takenBy)).map((group) => [...group]);
  const apart = groups.filter((group) => group.length > 0);
  const itemsOf = (name: string): number =>
    Math.max(1, Math.floor(((graph.channels[name]?.itemsPerStep ?? 1) * batch) / graph.batch));
  const seen = new Set([keyOf(first.chunks)]);
  let best = first;
  for (let before: typeof best | undefined; before !== best; ) {
    before = best;
    for (const changed of apart.length > 1 ? [names, ...apart] : [names]) {
      for (const factor of factors) {
        const chunks = scaled(best.chunks, changed, factor, itemsOf);
        if (isOver() || seen.has(keyOf(chunks))) continue;
        seen.add(keyOf(chunks));
        const layout = judge(chunks);
        if (layout !== undefined && secondsOf(layout) < secondsOf(best.layout) * (1 - leastGain))
          best = { layout, chunks };
      }
    }
  }
  return best.chunks;
}

const keyOf = ({ channels }: Chunks): string => JSON.stringify(Object.entries(channels).toSorted());

/** Whole items, at least one, and no more than a step has. */
function scaled(chunks: Chunks, names: readonly string[], factor: number, itemsOf: (name: string) => number): Chunks {
  const changed = names.map((name) => {
    const items = Math.round((chunks.channels[name] as number) * factor);
    return [name, Math.max(1, Math.min(items, itemsOf(name)))] as const;
  });
  return { ...chunks, channels: { ...chunks.channels, ...Object.fromEntries(changed) } };
}
