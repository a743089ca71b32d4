import { evaluateSchedule } from "./evaluate.ts";
import type { FastResult } from "./fast.ts";
import { topologicalOrder } from "./graph.ts";
import type { Operations, PlanModel } from "./model.ts";
import type { Schedule } from "./problem.ts";

/**
 * What can be said when the deadline passed before any search: the components one after the other on all devices, or in
 * one row of equal shares, if that is feasible; and a bound that needs no search, for every chunk of every component has
 * to run somewhere: the batch in chunks of m takes component c at least batch/m times its time for m items on all devices.
 */
export function lastResort(model: PlanModel, operations: Operations): FastResult {
  const order = topologicalOrder(model.dag, model.all.mask);
  let bound = 0;
  for (const component of order) {
    const bounds = model.items.map(
      (items, i) => (model.items[0]! / items) * model.leafSeconds(component, i)[model.levels]!,
    );
    bound = Math.max(bound, Math.min(...bounds));
  }
  const whole = { devices: model.problem.devices, items: model.problem.batch };
  const node = (component: number, devices: number): Schedule => ({
    op: "node",
    node: model.dag.components[component]!.id,
    devices,
    items: model.problem.batch,
  });
  let schedule: Schedule;
  if (operations.temporal || order.length === 1) {
    schedule = order
      .map((c) => node(c, whole.devices))
      .reduceRight((second, first) => ({ op: "temporal", ...whole, first, second }));
  } else {
    if (order.length > model.levels)
      return { time: Number.POSITIVE_INFINITY, schedule: null, bound, states: 0, candidates: 0 };
    const share = Math.floor(model.levels / order.length) * model.step;
    schedule = order
      .map((c) => node(c, share))
      .reduceRight((second, first) => ({
        op: "pipeline",
        items: whole.items,
        chunk: whole.items,
        devices: first.devices + second.devices,
        first,
        second,
      }));
  }
  const { time } = evaluateSchedule(model, schedule);
  return time === null
    ? { time: Number.POSITIVE_INFINITY, schedule: null, bound, states: 0, candidates: 1 }
    : { time, schedule, bound, states: 0, candidates: 1 };
}
