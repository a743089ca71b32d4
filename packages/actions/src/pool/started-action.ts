import type { Choices } from "../arrange/choices.ts";
import type { Policy } from "../decide/policies.ts";
import { allowedUnits } from "../formulation/action-spec.ts";
import type { ActionRecord } from "./action-record.ts";

/** One grant as it was decided: to whom, what, and why no more and no less. */
export type StartedAction = {
  readonly id: string;
  readonly kind: string;
  readonly tenant: string;
  readonly atMs: number;
  readonly waitedSeconds: number;
  /** by resource */
  readonly units: Readonly<Record<string, number>>;
  /** at these units; undefined when unknown */
  readonly expectedSeconds: number | undefined;
  readonly why: string;
};

/** What one decision saw and did, for all that it started. */
export type DecisionView = {
  readonly policy: Policy;
  /** actions in the queue that it looked at */
  readonly waiting: number;
  /** of those, the ones whose least demands fit together */
  readonly candidates: number;
  readonly started: number;
  /** units by resource before it */
  readonly free: Readonly<Record<string, number>>;
};

export function describeStart(
  record: ActionRecord,
  view: DecisionView,
  units: Readonly<Record<string, number>>,
  atMs: number,
): StartedAction {
  const { id, spec, submittedMs, expectedSeconds } = record;
  const waitedSeconds = (atMs - submittedMs) / 1000;
  const why = reasonOf(record, view, units);
  return { id, kind: spec.kind, tenant: spec.tenant, atMs, waitedSeconds, units, expectedSeconds, why };
}

function reasonOf(
  { spec, formulated, probeUnits }: ActionRecord,
  { policy, waiting, candidates, started, free }: DecisionView,
  units: Readonly<Record<string, number>>,
): string {
  const left = Object.keys(units).map((resource) => `${rounded(free[resource] ?? 0)} ${resource}`);
  const seen = `${policy} started ${started} of ${candidates} candidates, ${waiting} waiting, ${left.join(" and ")} free`;
  const elastic = formulated?.elastic;
  if (spec.key === undefined || allowedUnits(spec.cost[spec.key]!).length === 1) return `its cost is fixed; ${seen}`;
  if (elastic === undefined)
    return `its ${spec.elasticity === undefined ? "elasticity" : "duration"} is not known, so it gets the least; ${seen}`;
  const given = units[spec.key] ?? 0;
  if (given === probeUnits) return `${given} ${spec.key}, to see whether its curve still holds; ${seen}`;
  const { choices } = elastic;
  const at = choices.units.indexOf(given);
  const range = `${given} of ${choices.units[0]} to ${choices.units.at(-1)} ${spec.key}`;
  return `${range}${gains(choices, at)}; ${seen}`;
}

/** What the step to this choice saves, and what the next one would: where a policy stopped. */
function gains({ units, seconds }: Choices, at: number): string {
  const step = (from: number, to: number): string | undefined => {
    if (units[from] === undefined || units[to] === undefined) return undefined;
    return `${rounded((seconds[from]! - seconds[to]!) / (units[to] - units[from]))} s`;
  };
  const last = step(at - 1, at);
  const next = step(at, at + 1);
  const parts = [last && `the last saves ${last}`, next && `one more would save ${next}`].filter(Boolean);
  return at < 0 || parts.length === 0 ? "" : `: ${parts.join(", ")}`;
}

const rounded = (value: number): number => Number(value.toPrecision(3));
