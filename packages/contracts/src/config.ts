import { z } from "zod";

import { Granularity, PlacementMode } from "./plan.ts";

const GranularitySetting = z.union([z.literal("auto"), Granularity]);

export const ClusterConfig = z.strictObject({
  /** `auto`: every accelerator found, or one device a CPU core when there is none; a number: that many CPU devices. */
  devices: z.union([z.literal("auto"), z.int().positive().max(65536)]).default("auto"),
  /** memory of one CPU device; default: the machine's memory shared out evenly */
  memoryPerDeviceMiB: z.number().positive().optional(),
  nodeGroups: z.record(z.string(), z.array(z.int().nonnegative())).default({}),
});

export const PlacementConfig = z.strictObject({
  mode: PlacementMode.default("temporal"),
  /** component (or comma list of components that share) to devices, as `rollout: 0-1` or `actor,inference: all` */
  components: z.record(z.string(), z.union([z.string(), z.int().nonnegative()])).default({}),
});

export const FlowConfig = z.strictObject({
  /** items a batch carries on its way to a consumer: for all channels, or by channel name */
  granularity: z.union([GranularitySetting, z.record(z.string(), GranularitySetting)]).default("auto"),
  /** W2: how many optimiser steps the weights that generate may be behind those that train; 0 is on-policy */
  maxStaleness: z.int().nonnegative().max(64).default(0),
  /** C3: items a channel holds before `put` waits */
  capacity: z.int().positive().default(65536),
  /** items above this size stay with their producer until a consumer takes them */
  inlineLimitKiB: z.number().positive().max(16384).default(64),
});

export const SupervisionConfig = z.strictObject({
  /** a worker that dies more often than this within the window fails the run */
  maxRestarts: z.int().nonnegative().default(3),
  restartWindowMs: z.number().positive().default(600_000),
  /** a worker silent for longer is taken for dead and ended */
  heartbeatTimeoutMs: z.number().positive().default(20_000),
  startTimeoutMs: z.number().positive().default(120_000),
  callTimeoutMs: z.number().positive().default(3_600_000),
  /** nothing moved anywhere for this long: the wait-for graph is printed; after five times as long the run fails */
  stallMs: z.number().positive().default(60_000),
  /** a device lock wait longer than this fails with the wait-for chain */
  lockTimeoutMs: z.number().positive().default(1_800_000),
  /** from SIGTERM to SIGKILL */
  stopGraceMs: z.number().positive().default(5_000),
});

export const CheckpointsConfig = z.strictObject({
  everySteps: z.int().positive().default(10),
  keepLast: z.int().positive().default(3),
  keepBest: z.int().nonnegative().default(1),
  /** the reported metric by which `best` is chosen; higher is better */
  bestBy: z.string().default("accuracy"),
});

/** Keys that every workflow has; a workflow's own schema is added to these. */
export const RuntimeConfig = z.strictObject({
  seed: z.int().nonnegative().default(0),
  steps: z.int().positive().default(1),
  /** items, such as prompts, that one step puts; the workflow reads it and the plan chunks it */
  batch: z.int().positive().default(32),
  cluster: ClusterConfig.prefault({}),
  placement: PlacementConfig.prefault({}),
  flow: FlowConfig.prefault({}),
  supervision: SupervisionConfig.prefault({}),
  checkpoints: CheckpointsConfig.prefault({}),
  trace: z.boolean().default(true),
});
export type RuntimeConfig = z.infer<typeof RuntimeConfig>;
