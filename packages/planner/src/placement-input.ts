import { DeviceSpec, FlowEdge, PlacementMode, PlacementWishes, TreadleError } from "@treadle/contracts";
import { z } from "zod";

const positiveInt = z.int().positive();

/** One component as the placement sees it. Bytes are what one rank needs on each of its devices while it is loaded. */
export const PlacementComponent = z.strictObject({
  name: z
    .string()
    .min(1)
    .regex(/^[^,:\s]+$/, "a component name has no comma, colon or space"),
  ranks: z
    .strictObject({ min: positiveInt.optional(), max: positiveInt.optional(), fixed: positiveInt.optional() })
    .optional(),
  /** devices that one rank spans, such as a tensor-parallel size; exact where given */
  devicesPerRank: positiveInt.optional(),
  /** devices that each rank spans, where they differ: as many ranks, in that order */
  degrees: z.array(positiveInt).min(1).optional(),
  memoryBytesPerDevice: z.number().nonnegative().optional(),
  /** only devices of this kind; without it, of the kind that the cluster lists first */
  deviceKind: z.string().min(1).optional(),
  /** its ranks hold no device, and take none from the others: as many as `ranks.fixed` or `ranks.min` says, else one */
  devices: z.literal("none").optional(),
  /** its share of the devices in spatial mode, relative to the others; 1 by default */
  weight: z.number().positive().optional(),
});
export type PlacementComponent = z.infer<typeof PlacementComponent>;

export const PlacementInput = z.strictObject({
  mode: PlacementMode,
  /** in the order of the flow: earlier ones are served first, and the first of a hybrid gets devices of its own */
  components: z.array(PlacementComponent).min(1),
  /** `placement.components`; the grammar is in `placement-grammar.ts` */
  explicit: z.record(z.string(), z.union([z.string(), z.int().nonnegative()]).transform(String)).optional(),
  devices: z.array(DeviceSpec).min(1),
  /**
   * the devices that expressions name and count, where not all of them may be used: some stay free, or have gone; without
   * it those are `devices`
   */
  numbered: z.array(DeviceSpec).optional(),
  /** group name to node numbers, counted in the order in which these devices list their nodes */
  nodeGroups: z.record(z.string(), z.array(z.int().nonnegative())).optional(),
  flow: z.array(FlowEdge).optional(),
  /** items of one batch; without it nothing can be chunked */
  batchItems: positiveInt.optional(),
  /** for all channels, or by channel name; `auto`, the default, leaves it to the mode */
  granularity: z
    .union([
      z.literal("auto"),
      z.literal("all"),
      positiveInt,
      z.record(z.string(), z.union([z.literal("auto"), z.literal("all"), positiveInt])),
    ])
    .optional(),
  maxStaleness: z.int().nonnegative(),
  wishes: PlacementWishes.optional(),
});
export type PlacementInput = z.infer<typeof PlacementInput>;

/** Checks shape and uniqueness. Throws `placement.invalid` that lists every problem with its path. */
export function checkPlacementInput(input: unknown): PlacementInput {
  const parsed = PlacementInput.safeParse(input);
  if (!parsed.success) {
    const problems = parsed.error.issues.map((issue) => ({
      path: `placement.${issue.path.map(String).join(".")}`,
      message: issue.message.charAt(0).toLowerCase() + issue.message.slice(1),
    }));
    throw new TreadleError("placement.invalid", problems.map((p) => `${p.path}: ${p.message}`).join("; "), {
      details: { problems },
    });
  }
  const repeated = (names: readonly string[]): string | undefined => {
    const seen = new Set<string>();
    for (const name of names) {
      if (seen.has(name)) return name;
      seen.add(name);
    }
    return undefined;
  };
  const component = repeated(parsed.data.components.map((c) => c.name));
  if (component !== undefined) {
    throw new TreadleError(
      "placement.invalid",
      `two components are called '${component}'; give each a name of its own`,
    );
  }
  const device =
    repeated(parsed.data.devices.map((d) => d.id)) ?? repeated(parsed.data.devices.map((d) => `${d.kind} ${d.index}`));
  if (device !== undefined) {
    throw new TreadleError(
      "placement.invalid",
      `two devices are called '${device}'; ids, and indices within a kind, are unique`,
    );
  }
  return parsed.data;
}
