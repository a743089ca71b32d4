import { evaluateSchedule } from "./evaluate.ts";
import type { FastResult } from "./fast.ts";
import { bitsOf, topologicalOrder } from "./graph.ts";
import type { Operations, PlanModel } from "./model.ts";
import { nodeSchedule } from "./node-schedule.ts";
import { usableDevices } from "./plan-wishes.ts";
import type { Schedule } from "./problem.ts";

/**
 * What can be said when the deadline passed before any search: the components one after the other on all devices, or in
 * one row of equal shares, if that is feasible; and a bound that needs no search, for every chunk of every component has
 * to run somewhere: the batch in chunks of m takes component c at least batch/m times its time for m items on all devices.
 */
export function lastResort(model: PlanModel, operations: Operations): FastResult {
  const { dag, levels, items, problem, objective } = model;
  const nothing = { time: Number.POSITIVE_INFINITY, schedule: null, states: 0, candidates: 0 };
  let bound = 0;
  for (const component of bitsOf(model.all.mask)) {
    const bounds = items.map((count, i) => (items[0]! / count) * model.leafSeconds(component, i)[levels]!);
    bound = Math.max(bound, Math.min(...bounds));
  }
  // Cycles that may be split run as one where anything may take turns.
  const leaves: number[] = [];
  for (const component of topologicalOrder(dag, model.all.mask)) {
    const cycle = dag.cycles.find(({ mask }) => (mask & (1 << component)) !== 0)?.component;
    const leaf = cycle === undefined || !operations.temporal ? component : model.leaves.indexOf(cycle);
    if (!leaves.includes(leaf)) leaves.push(leaf);
  }
  const whole = { devices: usableDevices(problem), items: problem.batch };
  let schedule: Schedule;
  if (operations.temporal || leaves.length === 1) {
    schedule = leaves
      .map((leaf) => nodeSchedule(model, leaf, levels, 0))
      .reduceRight((second, first) => ({ op: "temporal", ...whole, first, second }));
  } else {
    if (leaves.length > levels) return { ...nothing, bound };
    const share = Math.floor(levels / leaves.length);
    schedule = leaves
      .map((leaf) => nodeSchedule(model, leaf, share, 0))
      .reduceRight((second, first) => ({
        op: "pipeline",
        items: whole.items,
        chunk: whole.items,
        devices: Math.min(whole.devices, first.devices + second.devices),
        first,
        second,
      }));
  }
  const time = evaluateSchedule(model, schedule)[objective];
  return time === null ? { ...nothing, bound, candidates: 1 } : { time, schedule, bound, states: 0, candidates: 1 };
}
