/** Chunks of a plan's channels, made larger or smaller as long as a step gets shorter. Pure. */
import type { FlowGraph, Plan } from "@treadle/contracts";
import { joinedGroups } from "../wishes.ts";
import { type Chosen, descend, type Judging } from "./descent.ts";

type Chunks = Plan["granularity"];

const factors = [0.5, 2];

/**
 * A schedule has one chunk for each of its pipelines, and counts what a chunk costs as if everybody went in step. By a replay, where ranks
 * claim what is there, other chunks may be better, and other ones for each channel. All channels together, and then those of one consumer
 * after the other, are halved or doubled, until nobody gains. A consumer takes as much from each of its channels. `batch`: items of the step.
 */
export function refinedChunks<L>(
  first: Chosen<Chunks, L>,
  { graph, batch }: { readonly graph: FlowGraph; readonly batch: number },
  judging: Judging<Chunks, L>,
): Chunks {
  const names = Object.entries(first.choice.channels).flatMap(([name, items]) => (items === "all" ? [] : [name]));
  const takenBy = (component: string) => names.filter((name) => graph.channels[name]?.consumers.includes(component));
  const groups = joinedGroups(Object.keys(graph.components).map(takenBy)).map((group) => [...group]);
  const apart = groups.filter((group) => group.length > 0);
  const itemsOf = (name: string): number =>
    Math.max(1, Math.floor(((graph.channels[name]?.itemsPerStep ?? 1) * batch) / graph.batch));
  return descend(first, judging, keyOf, (trying) => {
    for (const changed of apart.length > 1 ? [names, ...apart] : [names])
      for (const factor of factors) trying.tryOne(scaled(trying.best, changed, factor, itemsOf));
  }).choice;
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
