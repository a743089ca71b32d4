/** A simulated run, as lines. */
import type { Plan } from "@treadle/contracts";
import type { SimulationResult } from "@treadle/simulation";
import { formatPercent, formatSeconds, padCells, plural } from "./text.ts";

export type SimulationView = {
  readonly workflow: string;
  readonly plan: Plan;
  readonly result: SimulationResult;
  /** the planner's, where it made the plan */
  readonly predictedSeconds: number | undefined;
  /** that planning and simulating took */
  readonly seconds: number;
};

const widths = [16, 8, 9, 10, 10, 10, 8, 8];

export function simulationTable({ workflow, plan, result, predictedSeconds, seconds }: SimulationView): string[] {
  const { stepSeconds, components, devices, swaps, limit, steps, seed } = result;
  const { mean, p50, p95 } = stepSeconds;
  const predicted = predictedSeconds === undefined ? "" : `; the planner expects ${formatSeconds(predictedSeconds)}`;
  const busy = devices.map(({ compute }) => compute);
  const average = busy.reduce((sum, each) => sum + each, 0) / busy.length;
  const row = (cells: readonly string[]) =>
    `  ${cells
      .map((cell, i) => padCells(cell, widths[i] as number))
      .join("")
      .trimEnd()}`;
  return [
    `${workflow}, ${plan.mode}, ${plural(devices.length, "device")} in use: ${plural(steps.length, "step")} with seed ${seed}, simulated in ${formatSeconds(seconds)}`,
    "",
    `  a step takes ${formatSeconds(mean)} on average (median ${formatSeconds(p50)}, 95 % within ${formatSeconds(p95)})${predicted}`,
    `  devices compute ${formatPercent(average, 0)} of the time, the busiest ${formatPercent(Math.max(...busy), 0)}`,
    `  ${plural(swaps.onloads, "onload")} and ${plural(swaps.offloads, "offload")}, ${formatSeconds(swaps.seconds)} in all`,
    `  limit: ${limit.why}`,
    "",
    row(["component", "ranks", "devices", "computes", "data wait", "lock wait", "swaps", "idle"]),
    ...Object.entries(components).map(([name, { ranks, devices: own, shares }]) =>
      row([
        name,
        String(ranks),
        String(own),
        ...[shares.compute, shares.channelWait, shares.lockWait, shares.transfer, shares.idle].map((share) =>
          formatPercent(share, 0),
        ),
      ]),
    ),
  ];
}
