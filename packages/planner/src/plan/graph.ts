import type { PlanNode, PlanProblem } from "./problem.ts";

/** A strongly connected component of the flow graph: one node, or a cycle whose members take turns. */
export type Component = {
  /** member ids in input order, joined by `+` */
  readonly id: string;
  readonly members: readonly PlanNode[];
  readonly offload: number;
  readonly onload: number;
};

/** The acyclic graph of components. Bit i of a mask is component i; components are in the order of their first member. */
export type Dag = {
  readonly components: readonly Component[];
  readonly successors: readonly number[];
  readonly predecessors: readonly number[];
};

/** RLinf Alg. 1 line 2 (`ConvertCircleToNode`): every cycle becomes one component. */
export function collapseCycles(problem: PlanProblem): Dag {
  const { nodes } = problem;
  const indexOf = new Map(nodes.map((node, i) => [node.id, i]));
  const edges = problem.edges.map(([from, to]) => [indexOf.get(from)!, indexOf.get(to)!] as const);
  // reach[i] has bit j where j can be reached from i; at most 24 nodes, so the cube is nothing.
  const reach = nodes.map((_, i) => 1 << i);
  for (const [from, to] of edges) reach[from]! |= 1 << to;
  for (let via = 0; via < nodes.length; via++) {
    for (let from = 0; from < nodes.length; from++) if (reach[from]! & (1 << via)) reach[from]! |= reach[via]!;
  }
  const componentOf: number[] = [];
  const members: PlanNode[][] = [];
  for (let i = 0; i < nodes.length; i++) {
    const leader = nodes.findIndex((_, j) => (reach[i]! & (1 << j)) !== 0 && (reach[j]! & (1 << i)) !== 0);
    if (leader === i) {
      componentOf.push(members.length);
      members.push([nodes[i]!]);
    } else {
      componentOf.push(componentOf[leader]!);
      members[componentOf[leader]!]!.push(nodes[i]!);
    }
  }
  const sum = (group: readonly PlanNode[], key: "offload" | "onload"): number =>
    group.reduce((total, node) => total + node[key], 0);
  const components = members.map((group) => ({
    id: group.map((node) => node.id).join("+"),
    members: group,
    offload: sum(group, "offload"),
    onload: sum(group, "onload"),
  }));
  const successors = components.map(() => 0);
  const predecessors = components.map(() => 0);
  for (const [from, to] of edges) {
    const [a, b] = [componentOf[from]!, componentOf[to]!];
    if (a === b) continue;
    successors[a]! |= 1 << b;
    predecessors[b]! |= 1 << a;
  }
  return { components, successors, predecessors };
}

export function* bitsOf(mask: number): Generator<number> {
  for (let rest = mask; rest !== 0; rest &= rest - 1) yield 31 - Math.clz32(rest & -rest);
}

/** Every non-empty proper part of `set` that contains, of each of its members, all predecessors within `set`. */
export function downClosedParts(dag: Dag, set: number): number[] {
  const order = topologicalOrder(dag, set);
  const parts: number[] = [];
  // Members are decided one by one in topological order, so a part's predecessors are known when its turn comes.
  const decide = (position: number, chosen: number): void => {
    const member = order[position];
    if (member === undefined) {
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

/** Seconds to swap `first` out and `second` in: the slowest offload of what ends it, the slowest onload of what starts it. */
export function swapSeconds(dag: Dag, first: number, second: number): number {
  let offload = 0;
  for (const member of bitsOf(first)) {
    if ((dag.successors[member]! & first) === 0) offload = Math.max(offload, dag.components[member]!.offload);
  }
  let onload = 0;
  for (const member of bitsOf(second)) {
    if ((dag.predecessors[member]! & second) === 0) onload = Math.max(onload, dag.components[member]!.onload);
  }
  return offload + onload;
}

export function hasEdgeBetween(dag: Dag, from: number, to: number): boolean {
  for (const member of bitsOf(from)) if ((dag.successors[member]! & to) !== 0) return true;
  return false;
}
