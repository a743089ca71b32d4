import { type ActionHistory, ActionSpec, formulate } from "@treadle/actions/state-machines";
import type { VirtualAction } from "./virtual-pool.ts";

export type ScalingAction = {
  readonly kind: string;
  readonly id: string;
  readonly trajectory: string;
  /** that it may have, and that a node has */
  readonly maxCores: number;
  readonly cores: number;
  /** on one core, as it is and as it is known */
  readonly seconds: number;
  readonly estimate: number;
  readonly serialShare: number;
  /** whatever it is given */
  readonly overheadSeconds: number;
};

/** An action on cores that scales by Amdahl's law, whose share is known. */
export function scalingAction(action: ScalingAction, history: ActionHistory): Omit<VirtualAction, "ended"> {
  const { kind, id, trajectory, maxCores, cores, seconds, estimate, serialShare, overheadSeconds } = action;
  const spec = ActionSpec.parse({
    kind,
    cost: { cpu: { min: 1, max: maxCores } },
    key: "cpu",
    elasticity: { type: "amdahl", serialShare },
    duration: estimate,
  });
  const queued = formulate(id, spec, history, () => cores);
  return {
    queued: () => queued,
    request: { actionId: id, trajectory, minimum: 1 },
    secondsOn: (units) => seconds * (serialShare + (1 - serialShare) / units) + overheadSeconds,
  };
}
