import { z } from "zod";

/**
 * How components share devices: `temporal` all of them take turns on the same devices, `spatial` each owns devices of
 * its own and they pipeline, `hybrid` both at once.
 */
export const PlacementMode = z.enum(["temporal", "spatial", "hybrid"]);
export type PlacementMode = z.infer<typeof PlacementMode>;

const components = z.array(z.string().min(1)).min(2);
const devices = "expected devices in one text, in the grammar of placement.components, such as '4-7' or '0,2'";

/** What is wanted of a plan, whatever its mode. What contradicts itself, or leaves no plan, is refused with the reason. */
export const PlacementWishes = z.strictObject({
  /** the modes that are wanted, such as `[temporal, spatial]` for no hybrids */
  modes: z.array(PlacementMode).min(1).optional(),
  /** no device stays idle, but for those that must stay free */
  useAllDevices: z.boolean().optional(),
  /** devices that must stay free, in the grammar of `placement.components` */
  freeDevices: z
    .union([z.string(devices), z.int(devices).nonnegative(devices)])
    .transform(String)
    .optional(),
  /** by component; each rank spans one device where nothing says how many */
  maxRanks: z.record(z.string(), z.int().positive()).optional(),
  /** components that take turns on the same devices */
  together: z.array(components).optional(),
  /** components that never share a device */
  apart: z.array(components).optional(),
});
export type PlacementWishes = z.infer<typeof PlacementWishes>;

/** Anything exclusive with memory. `index` is its number in placement expressions, unique among devices of a `kind`. */
export const DeviceSpec = z.strictObject({
  id: z.string().min(1),
  index: z.int().nonnegative(),
  node: z.string().min(1),
  kind: z.string().min(1),
  memoryBytes: z.number().nonnegative(),
  /** as its vendor calls it, where that is known */
  name: z.string().min(1).optional(),
});
export type DeviceSpec = z.infer<typeof DeviceSpec>;

/** One arrow of the flow graph: `from` puts into `channel` what `to` takes. */
export const FlowEdge = z.strictObject({
  from: z.string().min(1),
  to: z.string().min(1),
  channel: z.string().min(1).optional(),
});
export type FlowEdge = z.infer<typeof FlowEdge>;

/** How many items a consumer takes at a time; `all` is the whole batch. */
export const Granularity = z.union([z.literal("all"), z.int().positive()]);
export type Granularity = z.infer<typeof Granularity>;

/** One rank: one process on `node`, with exclusive turns on `devices` (device ids; none where its component needs none). */
export const RankPlacement = z.strictObject({
  devices: z.array(z.string().min(1)),
  node: z.string().min(1),
});
export type RankPlacement = z.infer<typeof RankPlacement>;

/** The planner's answer, which every process of a run agrees on. */
export const Plan = z.strictObject({
  mode: PlacementMode,
  components: z.record(z.string().min(1), z.strictObject({ ranks: z.array(RankPlacement).min(1) })),
  granularity: z.strictObject({
    default: Granularity,
    /** exceptions to the default, by channel name */
    channels: z.record(z.string().min(1), Granularity),
  }),
  /**
   * Items that a channel may hold, by channel, where that is less than `flow.capacity`: a producer that shares devices
   * with its consumer then waits for credit after every chunk, and lends the devices, so turns come round with chunks.
   */
  capacity: z.record(z.string().min(1), z.int().positive()).optional(),
  /** policy versions by which an episode may lag the trainer; 0 is on-policy */
  maxStaleness: z.int().nonnegative(),
  /**
   * Components that take turns, with the devices they take turns on; each device is in at most one entry.
   * `fitTogether`: all of them declared their memory and stay loaded side by side, so turns need no offload.
   */
  sharing: z.array(
    z.strictObject({
      components: z.array(z.string().min(1)).min(2),
      devices: z.array(z.string().min(1)).min(1),
      fitTogether: z.boolean(),
    }),
  ),
  /** why the plan is what it is, one sentence each */
  explanation: z.array(z.string()),
});
export type Plan = z.infer<typeof Plan>;

/** What a plan was predicted to take, by what was measured of its components on these devices. */
export const PlanPrediction = z.strictObject({
  /** absent where that is not known of such a plan */
  stepSeconds: z.number().nonnegative().optional(),
  /** that each component is busy for in a step */
  components: z.record(z.string().min(1), z.number().nonnegative()),
});
export type PlanPrediction = z.infer<typeof PlanPrediction>;
