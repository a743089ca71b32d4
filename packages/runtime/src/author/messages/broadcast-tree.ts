/**
 * To whom a message for many goes next. Pure: whoever has the message works out its own hops, so no plan travels.
 *
 * - BT1 every worker gets the message once.
 * - BT2 the message enters each node once. Inside, whoever brought it hands it to all others: they share one copy, so a deeper
 *   tree would only add hops.
 * - BT3 from node to node it takes at most log2 of their number of hops: whoever has it leaves half of the nodes that lack it
 *   to another (a binomial tree).
 */
import type { Onward } from "@treadle/contracts";

export type Hop = { readonly to: string; readonly onward: Onward };

/** Workers by where they are; `nodes` are theirs, in the same order, and `home` is that of the one that has the message. */
export function byNode(home: string, workers: readonly string[], nodes: readonly string[]): Onward {
  const groups = new Map<string, string[]>([[home, []]]);
  for (const [at, worker] of workers.entries()) {
    const node = nodes[at] as string;
    const group = groups.get(node);
    if (group) group.push(worker);
    else groups.set(node, [worker]);
  }
  const [inside = [], ...others] = groups.values();
  return { inside, nodes: others };
}

/** Those with the most nodes behind them come first: theirs takes longest. */
export function hopsOf({ inside, nodes }: Onward): Hop[] {
  const hops: Hop[] = [];
  let mine = nodes;
  while (mine.length > 0) {
    const numMine = mine.length - Math.floor((mine.length + 1) / 2);
    const [entered = [], ...behind] = mine.slice(numMine);
    const [to, ...rest] = entered as [string, ...string[]];
    hops.push({ to, onward: { inside: rest, nodes: behind } }); // BT3
    mine = mine.slice(0, numMine);
  }
  return [...hops, ...inside.map((to) => ({ to, onward: { inside: [], nodes: [] } }))]; // BT2
}
