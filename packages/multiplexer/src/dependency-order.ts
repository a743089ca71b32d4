/** Every index after what it needs; shorter than `deps` when some need one another in a circle. */
export function dependencyOrder(deps: readonly (readonly number[])[]): number[] {
  const dependants = dependantsOf(deps);
  const unmet = deps.map((list) => list.length);
  const order = unmet.flatMap((count, i) => (count === 0 ? [i] : []));
  for (let at = 0; at < order.length; at++) {
    for (const next of dependants[order[at]!]!) if (--unmet[next]! === 0) order.push(next);
  }
  return order;
}

/** dependants[i]: what needs i, once for each time that it says so. */
export function dependantsOf(deps: readonly (readonly number[])[]): number[][] {
  const dependants: number[][] = deps.map(() => []);
  for (const [i, list] of deps.entries()) for (const dep of list) dependants[dep]!.push(i);
  return dependants;
}

/** Indices each of which needs the next, and the last the first; empty when there is no circle. */
export function firstCircle(deps: readonly (readonly number[])[]): number[] {
  const ordered = new Set(dependencyOrder(deps));
  if (ordered.size === deps.length) return [];
  // Whatever is not ordered needs something that is not, so that following one leads round.
  const path: number[] = [];
  let at = deps.findIndex((_, i) => !ordered.has(i));
  while (!path.includes(at)) {
    path.push(at);
    at = deps[at]!.find((dep) => !ordered.has(dep))!;
  }
  return path.slice(path.indexOf(at));
}
