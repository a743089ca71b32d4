/** Plans for clusters that nobody has: as many devices of each kind as one likes. */
import {
  type DeviceSpec,
  type PlacementMode,
  type PlacementWishes,
  type Plan,
  type Profile,
  TreadleError,
} from "@treadle/contracts";
import { type PlacementComponent, planFromProfile } from "@treadle/planner";

export type VirtualClusterOptions = {
  /** of each kind that the profile's components ask for */
  readonly devices: number;
  readonly mode: PlacementMode | "auto";
  /** what the workflow asks for them; without it, they may have as many ranks as there are devices */
  readonly components?: readonly PlacementComponent[] | undefined;
  readonly maxStaleness: number;
  /** `placement.wishes` of the workflow */
  readonly wishes?: PlacementWishes | undefined;
  /** of each device; all fits where it is not given */
  readonly memoryBytesPerDevice?: number | undefined;
  /** the search ends after so long with the best plan so far */
  readonly deadlineMs?: number | undefined;
  readonly nowMs?: (() => number) | undefined;
};

export type VirtualPlan = {
  readonly plan: Plan;
  readonly devices: readonly DeviceSpec[];
  /** what the planner expects of a step */
  readonly predictedSeconds: number;
};

/** Throws `problem.invalid` for a mode that has no plan on so many devices, and what `planFromProfile` throws. */
export function planVirtualCluster(profile: Profile, options: VirtualClusterOptions): VirtualPlan {
  const { mode, maxStaleness, wishes, deadlineMs, nowMs } = options;
  const devices = virtualDevices(profile, options.devices, options.memoryBytesPerDevice);
  const components = options.components ?? Object.entries(profile.components).map(asMeasured);
  const { batch } = profile.graph;
  const target = { devices, batch, maxStaleness, components, wishes };
  const { alternatives, missing } = planFromProfile(profile, { ...target, deadlineMs, nowMs });
  const chosen = mode === "auto" ? alternatives[0] : alternatives.find((each) => each.mode === mode);
  if (chosen) return { plan: chosen.plan, devices, predictedSeconds: chosen.stepSeconds };
  const possible = [...new Set(alternatives.map((each) => each.mode))].join(", ") || "none";
  throw new TreadleError(
    "problem.invalid",
    `mode '${mode}' on ${options.devices} devices: ${missing.find((each) => each.mode === mode)?.why}; planned: ${possible}`,
  );
}

/** What was measured without devices has none here. */
function asMeasured([name, { devices, maxDevices }]: [string, Profile["components"][string]]): PlacementComponent {
  return devices === undefined ? { name } : { name, devices, ranks: { fixed: maxDevices } };
}

function virtualDevices(profile: Profile, count: number, memoryBytes = Number.MAX_SAFE_INTEGER): DeviceSpec[] {
  if (!Number.isInteger(count) || count < 1 || count > 65536)
    throw new TreadleError("problem.invalid", `devices '${count}' is not allowed: an integer from 1 to 65536 is`);
  const onDevices = Object.values(profile.components).filter(({ devices }) => devices === undefined);
  const asked = onDevices.length > 0 ? onDevices.map(({ deviceKind }) => deviceKind) : [undefined];
  const kinds = new Set(asked.map((kind) => kind ?? asked.find((each) => each !== undefined) ?? "cpu"));
  return [...kinds].flatMap((kind) =>
    Array.from({ length: count }, (_, index) => ({
      id: `${kind}:${index}`,
      index,
      node: "virtual",
      kind,
      memoryBytes,
    })),
  );
}
