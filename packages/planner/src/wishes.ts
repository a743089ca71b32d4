/** Groups of names that belong together, and those that contradict being apart. Pure. */

/** Who is with whom, directly or through others. */
export function joinedGroups(together: readonly (readonly string[])[]): readonly ReadonlySet<string>[] {
  let groups: ReadonlySet<string>[] = [];
  for (const names of together) {
    const touching = groups.filter((group) => names.some((name) => group.has(name)));
    groups = [
      ...groups.filter((group) => !touching.includes(group)),
      new Set([...touching.flatMap((group) => [...group]), ...names]),
    ];
  }
  return groups;
}

/** Two of `apart` that one group joins. */
export function contradiction(
  groups: readonly ReadonlySet<string>[],
  apart: readonly string[],
): readonly [string, string] | undefined {
  for (const group of groups) {
    const [a, b] = apart.filter((name) => group.has(name));
    if (a !== undefined && b !== undefined && a !== b) return [a, b];
  }
  return undefined;
}
