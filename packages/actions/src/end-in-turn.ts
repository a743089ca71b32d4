/** One stage after the other, each whole, whatever fails; then throws what failed first. */
export async function endInTurn(
  ...stages: readonly (() => readonly (Promise<unknown> | undefined)[])[]
): Promise<void> {
  const failures: unknown[] = [];
  for (const stage of stages)
    for (const end of await Promise.allSettled(stage())) if (end.status === "rejected") failures.push(end.reason);
  if (failures.length > 0) throw failures[0];
}
