import { dependantsOf } from "./dependency-order.ts";
import { optionsOf, type SubStage, withSlack } from "./substage.ts";

/**
 * Every ordered pair of types that may run beside one another: two sub-stages of different pipelines on one worker, which
 * fit in its memory together, and neither of which waits for the other.
 */
export function mayMeet(
  substages: readonly SubStage[],
  deps: readonly (readonly number[])[],
  memory: number,
): [string, string][] {
  const found = new Map<string, [string, string]>();
  const dependants = dependantsOf(deps);
  const after = new Map<number, Set<number>>();
  const waitsFor = (later: number, earlier: number): boolean => {
    const known = after.get(earlier) ?? reachable(dependants, earlier);
    after.set(earlier, known);
    return known.has(later);
  };
  const least = substages.map((substage) => Math.min(...optionsOf(substage).map(([share]) => share)));
  const onWorker = new Map<number, number[]>();
  for (const [i, { worker }] of substages.entries()) {
    if (worker === null) continue;
    const there = onWorker.get(worker);
    if (there) there.push(i);
    else onWorker.set(worker, [i]);
  }
  for (const indices of onWorker.values()) {
    for (const [at, i] of indices.entries()) {
      for (const j of indices.slice(at + 1)) {
        const [a, b] = [substages[i]!, substages[j]!];
        if (a.pipeline === b.pipeline || found.has(key(a.type, b.type))) continue;
        if (least[i]! + least[j]! > withSlack(memory) || waitsFor(i, j) || waitsFor(j, i)) continue;
        found.set(key(a.type, b.type), [a.type, b.type]);
        found.set(key(b.type, a.type), [b.type, a.type]);
      }
    }
  }
  return [...found.values()];
}

const key = (a: string, b: string): string => JSON.stringify([a, b]);

function reachable(dependants: readonly (readonly number[])[], from: number): Set<number> {
  const seen = new Set<number>();
  const open = [from];
  for (let at = open.pop(); at !== undefined; at = open.pop()) {
    for (const next of dependants[at]!) {
      if (seen.has(next)) continue;
      seen.add(next);
      open.push(next);
    }
  }
  return seen;
}
