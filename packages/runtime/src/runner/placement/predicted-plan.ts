/** What the kept profile of a workflow says of the plan that a run has, for people who hold it against what the run takes. */
import type { FlowGraph, Plan, PlanPrediction, Profile } from "@treadle/contracts";
import { layoutOf, measuredSeconds, predictPlan } from "@treadle/planner";
import type { Component } from "./component.ts";
import type { PlacementFacts } from "./placement-facts.ts";
import { componentKey, describeHardware } from "./profile-store.ts";

export type PredictedPlan = { readonly prediction: PlanPrediction; readonly graph: FlowGraph };

type PredictedFor = {
  readonly facts: PlacementFacts;
  readonly components: readonly Component[];
  readonly projectRoot: string;
};

/** Undefined where the profile is of other devices, or of components that have changed since. */
export function predictedPlan(
  profile: Profile,
  plan: Plan,
  { facts, components, projectRoot }: PredictedFor,
): PredictedPlan | undefined {
  const { devices, batchItems: batch = profile.graph.batch } = facts;
  if (profile.hardware.key !== describeHardware(devices).key) return undefined;
  const isChanged = (component: Component): boolean => {
    const known = profile.components[component.name];
    return known !== undefined && known.key !== componentKey(component, projectRoot);
  };
  if (components.some(isChanged)) return undefined;
  const seconds = [...layoutOf(plan).components].flatMap(([name, own]) => {
    const known = profile.components[name];
    return known ? [[name, measuredSeconds(known, own.devices, batch, batch, profile.graph.batch)] as const] : [];
  });
  const stepSeconds = stepOf(profile, plan, { components: facts.components, devices, batch });
  return {
    prediction: { components: Object.fromEntries(seconds), ...(stepSeconds === undefined ? {} : { stepSeconds }) },
    graph: profile.graph,
  };
}

/** A plan may have what the planner has no word for. */
function stepOf(...given: Parameters<typeof predictPlan>): number | undefined {
  try {
    return predictPlan(...given);
  } catch {
    return undefined;
  }
}
