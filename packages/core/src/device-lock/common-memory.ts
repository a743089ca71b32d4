/**
 * Memory that parts of several workers have in common, such as the weights of a trainer with which another one samples. Pure.
 *
 * MT5 it counts once, however many have it, and is given back when the last of them has released it.
 */
import type { Part } from "./residency.ts";

/** Equal for parts that have their memory in common; undefined for memory of a part's own. */
export const commonKey = ({ sharedAs, tag }: Part): string | undefined =>
  sharedAs === undefined || tag === undefined ? undefined : `${sharedAs}/${tag}`;

/** Adds up parts; what they have in common counts as the largest of them says. */
export class CommonSum {
  readonly #counted = new Map<string, number>();
  bytes = 0;

  add(part: Part, bytes: number): void {
    const key = commonKey(part);
    const before = key === undefined ? 0 : (this.#counted.get(key) ?? 0);
    if (key !== undefined) this.#counted.set(key, Math.max(before, bytes));
    this.bytes += Math.max(0, bytes - before);
  }
}

/** Those that leave together: each part alone, and together all parts that have their memory in common. */
export function groupedByMemory<T extends { readonly part: Part }>(parts: readonly T[]): T[][] {
  const groups = new Map<string, T[]>();
  const all: T[][] = [];
  for (const each of parts) {
    const key = commonKey(each.part);
    const group = key === undefined ? undefined : groups.get(key);
    if (group) {
      group.push(each);
      continue;
    }
    const own = [each];
    all.push(own);
    if (key !== undefined) groups.set(key, own);
  }
  return all;
}
