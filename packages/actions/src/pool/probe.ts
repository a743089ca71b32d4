/** Actions that run on other units than decided, now and then, to see whether their curve still holds. */
import type { Policy } from "../decide/policies.ts";
import type { QueuedAction } from "../decide/queued-action.ts";
import type { ActionHistory } from "../formulation/action-history.ts";
import type { ActionSpec } from "../formulation/action-spec.ts";
import { secondsAt } from "../formulation/elasticity.ts";
import type { ResourceManager } from "../managers/manager.ts";
import type { ActionRecord } from "./action-record.ts";

/** Where curves decide. Restoring a service on other devices would cost more than it tells. */
export function probeUnitsOf(
  spec: ActionSpec,
  history: ActionHistory,
  managers: ReadonlyMap<string, ResourceManager>,
  policy: Policy,
): number | undefined {
  const decidesByCurves = policy === "unit-aware" || policy === "paper";
  if (!decidesByCurves || spec.key === undefined || spec.service !== undefined) return undefined;
  return history.probe(spec, managers.get(spec.key)!.capacity);
}

/** The action at these units, where `freeUnits` have room for them: it waits for none. */
export function probing(
  { probeUnits, formulated }: ActionRecord,
  queued: QueuedAction,
  freeUnits: (resource: string) => number,
): QueuedAction | undefined {
  const resource = queued.elastic?.resource;
  const { elasticity, oneUnitSeconds } = formulated!.expected;
  if (probeUnits === undefined || resource === undefined || elasticity === undefined) return undefined;
  if (freeUnits(resource) < probeUnits) return undefined;
  const demands = queued.demands.map(([name, units]) => [name, name === resource ? probeUnits : units] as const);
  const seconds = secondsAt(elasticity, probeUnits, oneUnitSeconds);
  const { id, waitedSeconds } = queued;
  return { id, demands, elastic: undefined, seconds, waitedSeconds };
}
