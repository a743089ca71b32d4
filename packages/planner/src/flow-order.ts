/** Strongly connected components, producers first (Tarjan); within one, and among equals, in the given order. */
export function inFlowOrder(
  names: readonly string[],
  edges: readonly { readonly from: string; readonly to: string }[],
): string[][] {
  const after = new Map(names.map((name) => [name, edges.filter((edge) => edge.from === name).map((edge) => edge.to)]));
  const place = new Map(names.map((name, index) => [name, index]));
  const found = new Map<string, { index: number; low: number; onStack: boolean }>();
  const stack: string[] = [];
  const groups: string[][] = [];
  const visit = (name: string): { low: number } => {
    const self = { index: found.size, low: found.size, onStack: true };
    found.set(name, self);
    stack.push(name);
    for (const next of after.get(name) ?? []) {
      const seen = found.get(next);
      if (!seen) self.low = Math.min(self.low, visit(next).low);
      else if (seen.onStack) self.low = Math.min(self.low, seen.index);
    }
    if (self.low === self.index) {
      const group = stack.splice(stack.indexOf(name));
      for (const member of group) (found.get(member) as { onStack: boolean }).onStack = false;
      groups.push(group.toSorted((a, b) => (place.get(a) as number) - (place.get(b) as number)));
    }
    return self;
  };
  // Last first, because groups come out consumers first.
  for (const name of [...names].reverse()) if (!found.has(name)) visit(name);
  return groups.reverse();
}
