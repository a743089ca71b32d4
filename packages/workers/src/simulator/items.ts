import { z } from "zod";

const floats: z.ZodType<Float32Array> = z.instanceof(Float32Array);
const flags: z.ZodType<Uint8Array> = z.instanceof(Uint8Array);

/** What all environments of a simulator show after one step; before the first, rewards and ends are zero. */
export const Observation = z.object({
  observations: floats,
  finalObservations: floats,
  rewards: floats,
  terminated: flags,
  truncated: flags,
});
export type Observation = z.infer<typeof Observation>;

/** One action for each environment. */
export const Action = z.object({ actions: floats });
export type Action = z.infer<typeof Action>;

/** `steps` steps of one environment, with values as the policy saw them when it acted. */
export const Trajectory = z.object({
  policyVersion: z.int(),
  observations: floats,
  actions: floats,
  logprobs: floats,
  values: floats,
  rewards: floats,
  terminated: flags,
  truncated: flags,
  /** value of the final observation; read where `truncated` */
  finalValues: floats,
  lastValue: z.number(),
});
export type Trajectory = z.infer<typeof Trajectory>;
