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

export function describeStart(
  record: ActionRecord,
  policy: Policy,
  units: Readonly<Record<string, number>>,
  atMs: number,
): StartedAction {
  const { id, spec, submittedMs, expectedSeconds } = record;
  const waitedSeconds = (atMs - submittedMs) / 1000;
  const why = reasonOf(record, policy, units);
  return { id, kind: spec.kind, tenant: spec.tenant, atMs, waitedSeconds, units, expectedSeconds, why };
}

function reasonOf({ spec, formulated }: ActionRecord, policy: Policy, units: Readonly<Record<string, number>>): string {
  if (spec.key === undefined) return "its cost is fixed";
  if (formulated?.queued.elastic === undefined) {
    if (allowedUnits(spec.cost[spec.key]!).length === 1) return "its cost is fixed";
    const unknown = spec.elasticity === undefined ? "elasticity" : "duration";
    return `its ${unknown} is not known, so it gets the least`;
  }
  const { choices } = formulated.queued.elastic;
  return `${policy} gave ${units[spec.key] ?? 0} of ${choices.units[0]} to ${choices.units.at(-1)} ${spec.key}`;
}
