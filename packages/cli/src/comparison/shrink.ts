/**
 * The smallest workload that still fails, as far as so many tries find it: of the smaller ones the first that fails takes
 * its place, until none does.
 */
export async function shrink<Workload, Failure>(
  failing: { readonly workload: Workload; readonly failure: Failure },
  ports: {
    readonly smaller: (workload: Workload) => Iterable<Workload>;
    /** undefined where it does not fail */
    readonly check: (workload: Workload) => Promise<Failure | undefined>;
    readonly mostTries: number;
  },
): Promise<{ readonly workload: Workload; readonly failure: Failure; readonly tries: number }> {
  let current = failing;
  let tries = 0;
  for (let found = true; found; ) {
    found = false;
    for (const workload of ports.smaller(current.workload)) {
      if (tries === ports.mostTries) return { ...current, tries };
      tries++;
      const failure = await ports.check(workload);
      if (failure === undefined) continue;
      current = { workload, failure };
      found = true;
      break;
    }
  }
  return { ...current, tries };
}
