import { toChoices } from "../arrange/choices.ts";
import { elasticOf, type QueuedAction } from "../decide/queued-action.ts";
import type { ActionHistory, Expectation } from "./action-history.ts";
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
  return { id, demands: demandsOf(spec), ...durationsOf(spec, history.expect(spec), atMost, preparationSeconds) };
}

/** Least units of every resource. */
export const demandsOf = ({ cost, key }: ActionSpec): QueuedAction["demands"] =>
  Object.entries(cost)
    .map(([resource, amount]) => [resource, leastUnits(amount)] as const)
    .filter(([resource, amount]) => amount > 0 || resource === key);

/** How long it takes on which units: the same for all actions of one cost, key and service of which the same is expected. */
export function durationsOf(
  { cost, key, kind }: ActionSpec,
  { elasticity, oneUnitSeconds }: Expectation,
  atMost: (resource: string) => number,
  preparationSeconds: (units: number) => number,
): Pick<QueuedAction, "elastic" | "seconds"> {
  if (key === undefined || elasticity === undefined) return { elastic: undefined, seconds: oneUnitSeconds };
  const most = atMost(key);
  const units = allowedUnits(cost[key]!).filter((count, i) => i === 0 || count <= most);
  const seconds = units.map((count) => {
    const execution = secondsAt(elasticity, count, oneUnitSeconds);
    return execution === undefined ? undefined : execution + preparationSeconds(count);
  });
  const known = seconds.every((s) => s !== undefined && Number.isFinite(s));
  return {
    elastic: known && units.length > 1 ? elasticOf(key, toChoices(kind, units, seconds as number[])) : undefined,
    seconds: seconds[0],
  };
}
