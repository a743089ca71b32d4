import { z } from "zod";

const floats: z.ZodType<Float32Array> = z.instanceof(Float32Array);
const flags: z.ZodType<Uint8Array> = z.instanceof(Uint8Array);

/** Which step of which attempt at a horizon an observation and its answer belong to. */
const exchange = {
  /** rank of the simulator: the key of actions */
  simulator: z.int().nonnegative(),
  /** which of the groups that the simulator's environments are split into; each has a turn of its own */
  stage: z.int().nonnegative(),
  /** unlike all others, and of all stages: a simulator that starts over, or is started again, begins another one */
  attempt: z.string(),
  /** actions that this stage has taken in this attempt before */
  time: z.int().nonnegative(),
};

/** What all environments of a simulator's stage show after one step; at time 0, rewards and ends are zero. */
export const Observation = z
  .object({
    ...exchange,
    /** stages of the simulator: its attempt is done when all of them are */
    stages: z.int().positive(),
    /** rank of the policy that answers: the key of observations */
    policy: z.int().nonnegative(),
    /** number of the first of these environments among all of the run */
    firstEnvironment: z.int().nonnegative(),
    /** the time at which nothing but a value is wanted */
    horizon: z.int().positive(),
    observations: floats,
    finalObservations: floats,
    /** one an environment: as many as these rows has an engine that answers, so a channel that weighs observations weighs them by this */
    rewards: floats,
    terminated: flags,
    truncated: flags,
  })
  .meta({ module: import.meta.url, exportName: "Observation" });
export type Observation = z.infer<typeof Observation>;

/**
 * The answer to one observation. `act`: one action for each environment of the stage. `done`: the attempt's trajectories are
 * made, of all stages. `restart`: whoever answered its earlier observations is gone, and with it what it had collected.
 */
export const Action = z
  .object({
    ...exchange,
    kind: z.enum(["act", "done", "restart"]),
    policyVersion: z.int().nonnegative(),
    actions: floats,
  })
  .meta({ module: import.meta.url, exportName: "Action" });
export type Action = z.infer<typeof Action>;

/** `steps` steps of one environment, with values as the policy saw them when it acted. */
export const Trajectory = z
  .object({
    /** its number among all of the run */
    environment: z.int().nonnegative(),
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
  })
  .meta({ module: import.meta.url, exportName: "Trajectory" });
export type Trajectory = z.infer<typeof Trajectory>;
