import { inFlowOrder } from "../flow-order.ts";
import type { PlanNode, PlanProblem } from "./problem.ts";

/** What runs as one: a node, or a collapsed cycle whose members take turns. */
export type Component = {
  /** member ids in input order, joined by `+` */
  readonly id: string;
  readonly members: readonly PlanNode[];
  readonly offload: number;
  readonly onload: number;
};

/** Nodes that feed each other and are components of their own; side by side, or as one where `component` allows it. */
export type SplitCycle = { readonly mask: number; readonly component: Component | undefined };

/** The acyclic graph of components. Bit i of a mask is component i; components are in the order of their first member. */
export type Dag = {
  readonly components: readonly Component[];
  readonly successors: readonly number[];
  readonly predecessors: readonly number[];
  readonly cycles: readonly SplitCycle[];
};

/**
 * RLinf Alg. 1 line 2 (`ConvertCircleToNode`): every cycle becomes one component. A cycle that is to be split becomes one
 * component a member instead: of the edges within, those that lead back are dropped, and what feeds or follows one
 * member feeds or follows all.
 */
export function collapseCycles(problem: PlanProblem): Dag {
  const { nodes } = problem;
  const indexOf = new Map(nodes.map((node, i) => [node.id, i]));
  const edges = problem.edges.map(([from, to]) => [indexOf.get(from)!, indexOf.get(to)!] as const);
  const ids = nodes.map((node) => node.id);
  const groups = inFlowOrder(
    ids,
    problem.edges.map(([from, to]) => ({ from, to })),
  )
    .map((names) => names.map((name) => nodes[indexOf.get(name)!]!))
    .sort((a, b) => indexOf.get(a[0]!.id)! - indexOf.get(b[0]!.id)!);
  const isSplit = (group: readonly PlanNode[]): boolean =>
    group.length > 1 && (problem.cycles === "split" || !inOnePool(group));
  const components: Component[] = [];
  const componentsOf = new Map<number, number>();
  const cycles: SplitCycle[] = [];
  const splitOf: (number | undefined)[] = [];
  for (const group of groups) {
    const split = isSplit(group);
    let mask = 0;
    for (const part of split ? group.map((node) => [node]) : [group]) {
      for (const node of part) componentsOf.set(indexOf.get(node.id)!, components.length);
      mask |= 1 << components.length;
      splitOf.push(split ? cycles.length : undefined);
      components.push(componentOf(part));
    }
    if (split) cycles.push({ mask, component: inOnePool(group) ? componentOf(group) : undefined });
  }
  const successors = components.map(() => 0);
  const predecessors = components.map(() => 0);
  const all = (index: number): number => {
    const cycle = splitOf[index];
    return cycle === undefined ? 1 << index : cycles[cycle]!.mask;
  };
  for (const [from, to] of edges) {
    const [a, b] = [componentsOf.get(from)!, componentsOf.get(to)!];
    const within = splitOf[a] !== undefined && splitOf[a] === splitOf[b];
    if (a === b || (within && a > b)) continue;
    for (const first of bitsOf(within ? 1 << a : all(a))) {
      for (const second of bitsOf(within ? 1 << b : all(b))) {
        successors[first]! |= 1 << second;
        predecessors[second]! |= 1 << first;
      }
    }
  }
  return { components, successors, predecessors, cycles };
}

const inOnePool = (group: readonly PlanNode[]): boolean => group.every((node) => node.pool === group[0]!.pool);

function componentOf(members: readonly PlanNode[]): Component {
  const sum = (key: "offload" | "onload"): number => members.reduce((total, node) => total + node[key], 0);
  return { id: members.map((node) => node.id).join("+"), members, offload: sum("offload"), onload: sum("onload") };
}

export function* bitsOf(mask: number): Generator<number> {
  for (let rest = mask; rest !== 0; rest &= rest - 1) yield 31 - Math.clz32(rest & -rest);
}

export function bitCount(mask: number): number {
  let count = 0;
  for (let rest = mask; rest !== 0; rest &= rest - 1) count++;
  return count;
}

/**
 * Every non-empty proper part of `set` that contains, of each of its members, all predecessors within `set`. `check`: called
 * with each, since a wide graph has more than anybody waits for.
 */
export function downClosedParts(dag: Dag, set: number, check: () => void): number[] {
  const order = topologicalOrder(dag, set);
  const parts: number[] = [];
  // Members are decided one by one in topological order, so a part's predecessors are known when its turn comes.
  const decide = (position: number, chosen: number): void => {
    const member = order[position];
    if (member === undefined) {
      check();
      if (chosen !== 0 && chosen !== set) parts.push(chosen);
      return;
    }
    if ((dag.predecessors[member]! & set & ~chosen) === 0) decide(position + 1, chosen | (1 << member));
    decide(position + 1, chosen);
  };
  decide(0, 0);
  return parts;
}

export function topologicalOrder(dag: Dag, set: number): number[] {
  const order: number[] = [];
  let placed = 0;
  while (placed !== set) {
    for (const member of bitsOf(set & ~placed)) {
      if ((dag.predecessors[member]! & set & ~placed) !== 0) continue;
      order.push(member);
      placed |= 1 << member;
    }
  }
  return order;
}

/**
 * Seconds to swap `first` out and `second` in: the slowest offload of what ends it, the slowest onload of what starts it.
 * A split cycle that is in one part as a whole is swapped as a whole.
 */
export function swapSeconds(dag: Dag, first: number, second: number): number {
  let offload = 0;
  for (const { mask, seconds } of swappedTogether(dag, first, "offload")) {
    const after = [...bitsOf(mask)].reduce((all, member) => all | dag.successors[member]!, 0);
    if ((after & first & ~mask) === 0) offload = Math.max(offload, seconds);
  }
  let onload = 0;
  for (const { mask, seconds } of swappedTogether(dag, second, "onload")) {
    const before = [...bitsOf(mask)].reduce((all, member) => all | dag.predecessors[member]!, 0);
    if ((before & second & ~mask) === 0) onload = Math.max(onload, seconds);
  }
  return offload + onload;
}

/** What of a part is swapped by itself: split cycles that are in it as wholes, and single components. */
export function* swappedTogether(
  dag: Dag,
  part: number,
  key: "offload" | "onload",
): Generator<{ mask: number; seconds: number }> {
  let rest = part;
  for (const { mask } of dag.cycles) {
    if ((mask & ~part) !== 0) continue;
    rest &= ~mask;
    yield { mask, seconds: [...bitsOf(mask)].reduce((sum, member) => sum + dag.components[member]![key], 0) };
  }
  for (const member of bitsOf(rest)) yield { mask: 1 << member, seconds: dag.components[member]![key] };
}

export function hasEdgeBetween(dag: Dag, from: number, to: number): boolean {
  for (const member of bitsOf(from)) if ((dag.successors[member]! & to) !== 0) return true;
  return false;
}
