import { parallelMark } from "../elasticity/parallel-command.ts";
import type { StoredCurve } from "../formulation/action-history.ts";
import type { specOf } from "./messages.ts";

type Spec = ReturnType<typeof specOf>;

/**
 * A command runs on cores: what names none is granted, and charged, one. Where a profile of its kind is stored and the command has
 * a place for the number of units, it may get as many as were measured.
 */
export function onCores(
  spec: Spec,
  command: readonly string[],
  commandResources: readonly string[],
  stored: StoredCurve | undefined,
): Spec {
  const unnamed = commandResources.filter((resource) => !spec.cost[resource]);
  const first = unnamed.find((resource) => resource === stored?.resource);
  const mayScale = !("key" in spec) && command.some((word) => word.includes(parallelMark));
  if (first !== undefined && stored !== undefined && mayScale)
    return { ...spec, key: first, cost: { ...spec.cost, [first]: { ...stored.units } } };
  return { ...spec, cost: { ...spec.cost, ...Object.fromEntries(unnamed.map((resource) => [resource, 1])) } };
}
