/** What a run and the pool of devices that it shares with other runs say to each other. */
import { z } from "zod";
import { RunEvent } from "./events.ts";

const deviceIds = z
  .array(z.string().min(1))
  .min(1)
  .refine((ids) => new Set(ids).size === ids.length, "expected each device once");

/** How a run takes part in a pool; read by `treadle multiplex` alone. */
export const PoolConfig = z.strictObject({
  /** a larger one gets devices first, and makes runs of smaller ones yield at once */
  priority: z.int().default(0),
  /** its turns are so many times as long as those of a run of weight 1, while others wait */
  weight: z.number().positive().default(1),
  /** it takes at most so many times as long as alone; without it, as long as others let it */
  maxSlowdown: z.number().min(1).optional(),
  /** what its workers occupy at most on each device, beside those of other runs; default: an even share */
  memoryPerDeviceMiB: z.number().positive().optional(),
});
export type PoolConfig = z.infer<typeof PoolConfig>;

const PoolDevice = z.strictObject({ id: z.string().min(1), memoryMiB: z.number().positive() });

/** What a run says of itself when it joins: every device that it may use, and how. */
export const PoolMember = PoolConfig.extend({ devices: z.array(PoolDevice).min(1) });
export type PoolMember = z.infer<typeof PoolMember>;

/** What a run may use until it releases it. */
export const DeviceLease = z.strictObject({ token: z.int().positive(), devices: deviceIds });
export type DeviceLease = z.infer<typeof DeviceLease>;

/** Of a run. */
export const PoolRequest = z.discriminatedUnion("type", [
  z.strictObject({ type: z.literal("join"), member: PoolMember }),
  /** all of these devices or none */
  z.strictObject({ type: z.literal("request"), devices: deviceIds }),
  z.strictObject({ type: z.literal("release"), token: z.int().positive() }),
  z.strictObject({ type: z.literal("beat") }),
]);
export type PoolRequest = z.infer<typeof PoolRequest>;

/** In the environment of every process of a run that takes part in a pool, by which all of them are found and ended. */
export const pooledRunVariable = "TREADLE_POOLED_RUN";

/** Not frozen, as `readonly()` would: what comes from another process may be no array that can be. */
const names: z.ZodType<readonly string[]> = z.array(z.string());

/** Why a run waits, and for whom: room beside them, bounds that they are beyond, devices that they hold, or their turn. */
export const PoolWait = z.strictObject({
  type: z.enum(["room", "bounds", "devices", "turn"]),
  runs: names,
});
export type PoolWait = z.infer<typeof PoolWait>;

/** What a run waits for, as the end of a sentence. */
export function describePoolWait({ type, runs }: PoolWait): string {
  const names = runs.map((run) => `'${run}'`).join(", ") || "the others";
  switch (type) {
    case "room":
      return `room beside ${names}`;
    case "bounds":
      return `${names}, which would be slower than its maxSlowdown allows`;
    case "devices":
      return `devices of ${names}`;
    case "turn":
      return `its turn after ${names}`;
  }
}

/** Of the pool, to one run. */
export const PoolReply = z.discriminatedUnion("type", [
  /** it may begin, with so much memory on each device */
  z.strictObject({ type: z.literal("admitted"), memoryMiB: z.record(z.string(), z.number().positive()) }),
  z.strictObject({ type: z.literal("refused"), why: z.string() }),
  z.strictObject({ type: z.literal("granted"), lease: DeviceLease }),
  /** somebody waits: release when nobody uses the devices, and with `drains` let nobody begin before that */
  z.strictObject({ type: z.literal("wanted"), token: z.int().positive(), drains: z.boolean() }),
  /** now and then while it waits, and once with null when it does not any more */
  z.strictObject({ type: z.literal("waits"), on: PoolWait.nullable(), forMs: z.number().nonnegative() }),
]);
export type PoolReply = z.infer<typeof PoolReply>;

/** What the process of a run tells the one that started it. */
export const PooledRunMessage = z.union([z.strictObject({ pool: PoolRequest }), z.strictObject({ event: RunEvent })]);
export type PooledRunMessage = z.infer<typeof PooledRunMessage>;
