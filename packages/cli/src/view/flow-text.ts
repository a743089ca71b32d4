/** A flow graph as lines. */
import type { FlowGraph } from "@treadle/contracts";
import { formatCount } from "./text.ts";

/** Components in the order of the flow, with what each method takes and puts. */
export function describeFlow(flow: FlowGraph): string[] {
  const lines: string[] = [`one step puts ${flow.batch} ${flow.batch === 1 ? "item" : "items"}`, ""];
  for (const [name, { methods }] of Object.entries(flow.components)) {
    lines.push(name);
    for (const [method, { callsPerStep, takes, puts }] of Object.entries(methods)) {
      const calls = callsPerStep === 1 ? "" : `, ${formatCount(callsPerStep)} calls a step`;
      const flows = [
        ...takes.map((channel) => `takes ${described(flow, channel)}`),
        ...puts.map((channel) => `puts ${described(flow, channel)}`),
      ];
      lines.push(`  ${method}  ${flows.length > 0 ? flows.join(", ") : "no channel"}${calls}`);
    }
  }
  for (const { from, to, method, timesPerStep } of flow.calls) {
    const what = method === undefined ? "sends messages to" : "calls";
    lines.push(
      "",
      `${from} ${what} ${to}${method === undefined ? "" : `.${method}()`}, ${formatCount(timesPerStep)} a step`,
    );
  }
  for (const cycle of flow.cycles) lines.push("", `cycle: ${[...cycle, cycle[0]].join(" → ")}`);
  return lines;
}

function described(flow: FlowGraph, channel: string): string {
  const { itemsPerStep, bytesPerStep } = flow.channels[channel] ?? { itemsPerStep: 0, bytesPerStep: 0 };
  return `${channel} (${formatCount(itemsPerStep)} items, ${formatCount(bytesPerStep)}B)`;
}
