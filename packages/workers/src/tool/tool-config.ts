import { Amount, checkDriverChoice, driverChoice, Elasticity, Network, policies } from "@treadle/actions";
import { z } from "zod";

/** How calls become actions, and where these run. */
export const ActionsConfig = z
  .strictObject({
    /** who holds cores: an action while it runs, or (the baseline) a trajectory from its first action to its end */
    scheduling: z.enum(["action", "trajectory"]).default("action"),
    policy: z.enum(policies).default("unit-aware"),
    /** cores that the policy `fixed-dop` gives a call that scales */
    dop: z.int().positive().default(4),
    /** cores of this machine that actions may use */
    cores: z.union([z.literal("all"), z.int().positive()]).default("all"),
    /** `slot`: one for each core, for tools that keep nothing; `trajectory`: one for each, from its first action to its end */
    sandboxes: z.enum(["slot", "trajectory"]).default("slot"),
    ...driverChoice,
    drivers: driverChoice.drivers.default(["cgroup"]),
    timeoutMs: z.number().positive().default(2000),
    maxOutputBytes: z.int().positive().default(4096),
    /** of a sandbox; `process` has no such limits */
    memoryMiB: z.number().positive().default(64),
    /** of its files on disk: `cgroup` in /work, `docker` in all folders; no limit when absent */
    diskMiB: z
      .number()
      .min(4)
      .max(2 ** 24)
      .optional(),
    maxProcesses: z.int().positive().default(32),
    network: Network,
  })
  .superRefine(checkDriverChoice);
export type ActionsConfig = z.infer<typeof ActionsConfig>;

export const ToolConfig = z.strictObject({
  /** the kind of its actions, by which statistics and durations are kept */
  name: z.string().min(1).default("tool"),
  /** POSIX shell text that answers a call on its output; `$1` is the text of the call, as data */
  program: z.string().min(1),
  /** cores that a call takes: a number, a range or a set; the program finds how many it got in TREADLE_UNITS_CPU */
  cores: Amount.default(1),
  /** how its time falls with cores, where they may vary */
  elasticity: Elasticity.optional(),
  /** seconds on one core before any call has ended, as `treadle actions profile` measures them with the elasticity */
  duration: z.number().positive().optional(),
  actions: ActionsConfig.prefault({}),
});
export type ToolConfig = z.infer<typeof ToolConfig>;
