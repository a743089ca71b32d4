import type { PlannedChange } from "./placement-facts.ts";

/**
 * A plan bounds channels so that components which share devices take turns on them: a producer waits for room, and lends. One that
 * keeps its devices meanwhile would wait for room that nobody could make, so such a plan is carried out without bounds: its
 * components take turns by whole batches.
 */
export function withoutVainBounds(planned: PlannedChange, keepsDevices: (component: string) => boolean): PlannedChange {
  const { capacity, ...plan } = planned.plan;
  const keeper = plan.sharing.flatMap(({ components }) => components).find(keepsDevices);
  if (capacity === undefined || keeper === undefined) return planned;
  const reason = `no channel is bounded: '${keeper}' keeps its devices while it waits for room`;
  return { ...planned, plan, why: [...planned.why, reason] };
}
