/** What a plan is made of, besides the mode: what was launched, what was configured, and the devices there are. */
import type { DeviceSpec, Plan, RuntimeConfig } from "@treadle/contracts";
import type { PlacementInput } from "@treadle/planner";
import type { Component } from "./component.ts";
import { type LabelledNode, nodeIndices } from "./node-groups.ts";

export type PlacementFacts = Omit<PlacementInput, "mode">;

/** A plan, and what `placement.mode: auto` says of it. */
export type PlannedChange = {
  readonly plan: Plan;
  readonly phase?: "profiling" | "trial" | "chosen" | undefined;
  readonly why: readonly string[];
};

export function placementFacts(
  components: readonly Component[],
  config: RuntimeConfig,
  devices: readonly DeviceSpec[],
  nodes: readonly LabelledNode[],
): PlacementFacts {
  const nodeGroups = nodeIndices(config.cluster, nodes);
  const explicit = Object.fromEntries(
    Object.entries(config.placement.components).map(([key, value]) => [key, String(value)]),
  );
  const { granularity, maxStaleness } = config.flow;
  return {
    components: components.map(({ name, options }) => ({
      name,
      ...(options.ranks ? { ranks: options.ranks } : {}),
      ...(options.devicesPerRank ? { devicesPerRank: options.devicesPerRank } : {}),
      ...(options.deviceKind ? { deviceKind: options.deviceKind } : {}),
      ...(options.weight ? { weight: options.weight } : {}),
      ...(options.memoryPerDeviceMiB ? { memoryBytesPerDevice: options.memoryPerDeviceMiB * 2 ** 20 } : {}),
    })),
    ...(Object.keys(explicit).length > 0 ? { explicit } : {}),
    devices: [...devices],
    ...(Object.keys(nodeGroups).length > 0 ? { nodeGroups } : {}),
    batchItems: config.batch,
    granularity: typeof granularity === "object" ? withoutAuto(granularity) : granularity,
    maxStaleness,
  };
}

function withoutAuto(granularity: Readonly<Record<string, number | "all" | "auto">>): Record<string, number | "all"> {
  return Object.fromEntries(
    Object.entries(granularity).filter((entry): entry is [string, number | "all"] => entry[1] !== "auto"),
  );
}
