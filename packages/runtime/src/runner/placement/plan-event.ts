/** A plan as the run's events tell it. */
import type { RunEvent } from "@treadle/contracts";
import type { PlannedChange } from "./placement-facts.ts";

export function planEvent({ plan, phase, why }: PlannedChange): RunEvent {
  return {
    type: "plan",
    atMs: Date.now(),
    ...(phase ? { phase } : {}),
    mode: plan.mode,
    explanation: [...why, ...plan.explanation],
    placement: Object.entries(plan.components).map(([component, { ranks }]) => ({
      component,
      devices: [...new Set(ranks.flatMap((rank) => rank.devices))],
      mode: plan.sharing.some((group) => group.components.includes(component))
        ? plan.mode === "temporal"
          ? "temporal"
          : "hybrid"
        : "spatial",
    })),
  };
}
