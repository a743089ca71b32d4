import { toChoices } from "../arrange/choices.ts";
import { elasticOf, type QueuedAction } from "../decide/queued-action.ts";
import type { ActionHistory } from "./action-history.ts";
import { type ActionSpec, allowedUnits, leastUnits } from "./action-spec.ts";
import { secondsAt } from "./elasticity.ts";

/**
 * What the scheduler sees of an action: least units of every resource, and the durations over its key resource when
 * elasticity and duration are known. `atMost` clips the key resource to what exists (a range up to 64 on 32 cores);
 * `preparationSeconds` is added to the execution, such as the restore of a service.
 */
export function formulate(
  id: string,
  spec: ActionSpec,
  history: ActionHistory,
  atMost: (resource: string) => number = () => Number.POSITIVE_INFINITY,
  preparationSeconds: (units: number) => number = () => 0,
): QueuedAction {
  const { elasticity, oneUnitSeconds } = history.expect(spec);
  const { key } = spec;
  const demands = Object.entries(spec.cost)
    .map(([resource, amount]) => [resource, leastUnits(amount)] as const)
    .filter(([resource, amount]) => amount > 0 || resource === key);
  if (key === undefined || elasticity === undefined)
    return { id, demands, elastic: undefined, seconds: oneUnitSeconds };
  const allowed = allowedUnits(spec.cost[key]!);
  const units = allowed.filter((u, i) => i === 0 || u <= atMost(key));
  const seconds = units.map((u) => {
    const execution = secondsAt(elasticity, u, oneUnitSeconds);
    return execution === undefined ? undefined : execution + preparationSeconds(u);
  });
  const known = seconds.every((s) => s !== undefined && Number.isFinite(s));
  return {
    id,
    demands,
    elastic: known && units.length > 1 ? elasticOf(key, toChoices(id, units, seconds as number[])) : undefined,
    seconds: seconds[0],
  };
}
