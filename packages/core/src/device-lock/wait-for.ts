/**
 * Who waits for whom, in words. Pure functions over edges that the device lock, the channels and the calls contribute,
 * so that a timeout or a hang names every worker on the way to the culprit (L5, S3).
 */

/** What an edge is about decides how it reads. */
export type WaitKind = "device" | "order" | "swap" | "data" | "credit" | "call" | "message";

/** `waiter` cannot go on before `waitsFor` does something about `on`. Both are worker names, such as `actor/0`. */
export type WaitEdge = {
  readonly waiter: string;
  readonly waitsFor: string;
  /** A device, a channel, a method or a kind of message, by name. */
  readonly on: string;
  readonly kind: WaitKind;
};

export type WaitChain = {
  /** From the first waiter on, each edge beginning where the one before ended. */
  readonly path: readonly WaitEdge[];
  /** The edges that wait for one another in a circle, when the path runs into one. */
  readonly cycle: readonly WaitEdge[] | undefined;
};

/** Some circle among the edges, first edges first; undefined when everybody waits for somebody who can go on. */
export function findCycle(edges: readonly WaitEdge[]): readonly WaitEdge[] | undefined {
  const from = edgesByWaiter(edges);
  const finished = new Set<string>();
  for (const { waiter } of edges) {
    const cycle = cycleFrom(waiter, from, finished).cycle;
    if (cycle) return cycle;
  }
  return undefined;
}

/** The chain that starts with `worker`: into a circle if it can reach one, else along first edges to who is not waiting. */
export function waitChain(worker: string, edges: readonly WaitEdge[]): WaitChain {
  const from = edgesByWaiter(edges);
  const found = cycleFrom(worker, from, new Set());
  if (found.cycle) return { path: found.path, cycle: found.cycle };
  const path: WaitEdge[] = [];
  for (let next = from.get(worker)?.[0]; next; next = from.get(next.waitsFor)?.[0]) path.push(next);
  return { path, cycle: undefined };
}

/** Who cannot go on before one of these does something, by whatever others. */
export function waitersFor(workers: readonly string[], edges: readonly WaitEdge[]): Set<string> {
  const waiters = new Map<string, string[]>();
  for (const { waiter, waitsFor } of edges) {
    const known = waiters.get(waitsFor);
    if (known) known.push(waiter);
    else waiters.set(waitsFor, [waiter]);
  }
  const found = new Set<string>();
  for (const next = [...workers]; next.length > 0; ) {
    for (const waiter of waiters.get(next.pop() as string) ?? []) {
      if (found.has(waiter)) continue;
      found.add(waiter);
      next.push(waiter);
    }
  }
  return found;
}

/** `'episodes' from 'rollout/0', which waits for …`, for whatever follows "waits for". */
export function describeChain({ path, cycle }: WaitChain): string {
  const text = path.map(describeEdge).join(", which waits for ");
  if (!cycle) return text;
  const circle = [...cycle.map((edge) => `'${edge.waiter}'`), `'${cycle[0]?.waiter}'`].join(" → ");
  return `${text}; this is a deadlock: ${circle}`;
}

function describeEdge({ waitsFor, on, kind }: WaitEdge): string {
  switch (kind) {
    case "device":
      return `device '${on}' held by '${waitsFor}'`;
    case "order":
      return `its producer '${waitsFor}' to use device '${on}' first`;
    case "swap":
      return `'${waitsFor}' to move on or off device '${on}'`;
    case "data":
      return `'${on}' from '${waitsFor}'`;
    case "credit":
      return `'${waitsFor}' to take from '${on}'`;
    case "call":
      return `'${waitsFor}.${on}'`;
    case "message":
      return `a message (${on}) of '${waitsFor}'`;
  }
}

function edgesByWaiter(edges: readonly WaitEdge[]): Map<string, WaitEdge[]> {
  const from = new Map<string, WaitEdge[]>();
  for (const edge of edges) {
    const known = from.get(edge.waiter);
    if (known) known.push(edge);
    else from.set(edge.waiter, [edge]);
  }
  return from;
}

/** Depth-first search without recursion; `finished` collects the workers from which no circle can be reached. */
function cycleFrom(start: string, from: ReadonlyMap<string, WaitEdge[]>, finished: Set<string>): WaitChain {
  const path: WaitEdge[] = [];
  const depthOf = new Map([[start, 0]]);
  const cursor = [0];
  while (cursor.length > 0) {
    const here = path.length === 0 ? start : (path.at(-1) as WaitEdge).waitsFor;
    const at = cursor.length - 1;
    const edge = from.get(here)?.[cursor[at] as number];
    cursor[at] = (cursor[at] as number) + 1;
    if (edge === undefined || finished.has(here)) {
      finished.add(here);
      depthOf.delete(here);
      cursor.pop();
      path.pop();
      continue;
    }
    const depth = depthOf.get(edge.waitsFor);
    if (depth !== undefined) {
      path.push(edge);
      return { path, cycle: path.slice(depth) };
    }
    if (finished.has(edge.waitsFor)) continue;
    path.push(edge);
    depthOf.set(edge.waitsFor, path.length);
    cursor.push(0);
  }
  return { path: [], cycle: undefined };
}
