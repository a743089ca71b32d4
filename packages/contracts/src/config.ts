import { z } from "zod";

import { PoolConfig } from "./device-pool.ts";
import { Granularity, PlacementMode, PlacementWishes } from "./plan.ts";

/** Timers of Node go to 24.8 days, and act at once beyond; some wait a little longer than what is configured. */
export const longestWaitMs = 2_000_000_000;

/** of a process that is started: what an operating system takes */
export const EnvironmentVariables = z.record(
  z.string().regex(/^[^=\0]+$/, "must be the name of a variable"),
  z.string().regex(/^[^\0]*$/, "must not hold the character NUL, which ends a text for the operating system"),
);

const GranularitySetting = z.union([z.literal("auto"), Granularity]);

/** How to reach a NATS server. Secrets come from files and the environment only: this is written into the run's folder. */
export const NatsConfig = z.strictObject({
  /** `nats://host:4222`, or several servers of one cluster; without user and password */
  url: z.union([z.string().min(1), z.array(z.string().min(1)).min(1)]),
  /** a project's own; runs and nodes that share it see each other */
  subjectPrefix: z
    .string()
    .regex(/^[A-Za-z0-9_-]{1,64}$/, "must be letters, digits, '_' and '-'")
    .default("treadle"),
  /** credentials of NATS (`.creds`) or a key (`.nk`); or TREADLE_NATS_USER and _PASSWORD, or TREADLE_NATS_TOKEN */
  credentialsFile: z.string().optional(),
  /** the keys whose commands and nodes count; without it only processes of this machine may be reached */
  trustFile: z.string().optional(),
  /** this process's own key, by which others know it; default: the one in `credentialsFile` */
  keyFile: z.string().optional(),
  /** certificate files; `cert` and `key` where the server wants to know its clients */
  tls: z
    .strictObject({
      /** authority of the server's certificate */
      ca: z.string().optional(),
      /** this process's certificate */
      cert: z.string().optional(),
      /** its key */
      key: z.string().optional(),
    })
    .optional(),
  /** a node or runner that is silent for longer is taken for gone, as far as this process is concerned */
  leaseMs: z.number().max(longestWaitMs).min(500).default(5000),
  /** servers that keep what must survive: 3 in a cluster of three */
  replicas: z.int().min(1).max(5).default(1),
  /**
   * keeps journal, configuration, plan, newest states and checkpoints of the run on the servers, so that any machine
   * resumes it; a step counts when they have it
   */
  durableRuns: z.boolean().default(false),
  /** such a run waits so long for servers that are away, at the end of a step, before it ends to be resumed later */
  outageMs: z.number().max(longestWaitMs).positive().default(60_000),
});
export type NatsConfig = z.infer<typeof NatsConfig>;

/** Certificate files of this machine, for links to other machines. Both sides prove that `ca` signed theirs. */
export const LinkTls = z.strictObject({
  /** authority of every machine's certificate */
  ca: z.string(),
  /** this machine's certificate */
  cert: z.string(),
  /** its key */
  key: z.string(),
});
export type LinkTls = z.infer<typeof LinkTls>;

/** Where a process of a run listens for those of other nodes. */
export const LinksConfig = z.strictObject({
  /** address to listen on */
  bind: z.string().default("127.0.0.1"),
  /** address that other nodes dial, where it is another */
  advertise: z.string().optional(),
  tls: LinkTls.optional(),
});
export type LinksConfig = z.infer<typeof LinksConfig>;

/** The program that runs worker processes, and what stands before its script. */
export const Interpreter = z.strictObject({
  /** absolute path of a Node */
  command: z.string().regex(/^\/./, "must be an absolute path, as /opt/node-22/bin/node"),
  /** before its script; node agents must allow each */
  flags: z.array(z.string()).default([]),
});
export type Interpreter = z.infer<typeof Interpreter>;

const variable = /^[A-Za-z_][A-Za-z0-9_]*$/;

/**
 * What a node agent allows runners to say of how worker processes are started on its machine, besides its own Node without
 * flags. It is the agent's alone: nothing of it comes over the wire.
 */
export const WorkerPermissions = z.strictObject({
  /** programs that run Treadle's own scripts, as absolute paths */
  interpreters: z.array(z.string().regex(/^\//, "must be an absolute path, as /opt/node-22/bin/node")).default([]),
  /** each exactly as it is asked for */
  flags: z.array(z.string().min(1)).default([]),
  /** programs that workers' configurations may name, with arguments of theirs, as absolute paths or names */
  programs: z.array(z.string().min(1)).default([]),
  /** folders below which models may lie that workers read, besides the project, as absolute paths */
  models: z.array(z.string().regex(/^\//, "must be an absolute path, as /models")).default([]),
  /** names of environment variables, besides those that say which devices a process sees and how many threads it has */
  env: z.array(z.string().regex(variable, "must be the name of a variable")).default([]),
});
export type WorkerPermissions = z.infer<typeof WorkerPermissions>;

/** Nodes that have something in common, and how worker processes are started there. */
export const NodeGroupConfig = z.strictObject({
  /** nodes with all of these labels; without it, those that `nodeGroups` lists under the same name */
  labels: z.record(z.string(), z.string()).optional(),
  /** environment of the worker processes there; node agents must allow each. No place for secrets: nodes have their own */
  env: EnvironmentVariables.default({}),
  /** another Node, or another build of it, or the same with other flags; every node agent of the group must allow it */
  interpreter: Interpreter.optional(),
});

export const ClusterConfig = z.strictObject({
  /**
   * `auto`: every accelerator found, and one CPU device a core beside them, for components whose `deviceKind` is `cpu`;
   * those that name no kind take the accelerators where there are any. A number: that many CPU devices, and nothing else.
   */
  devices: z.union([z.literal("auto"), z.int().positive().max(65536)]).default("auto"),
  /** memory of one CPU device; default: the machine's memory shared out evenly */
  memoryPerDeviceMiB: z.number().positive().optional(),
  /** nodes by their number, in the order of their names when the run begins; each keeps its own when others go */
  nodeGroups: z.record(z.string(), z.array(z.int().nonnegative())).default({}),
  /** nodes by their labels, with an environment and an interpreter of their own */
  groups: z.record(z.string(), NodeGroupConfig).default({}),
  /** runs on the node agents that are found there, instead of on this machine */
  nats: NatsConfig.optional(),
  /** waits until so many node agents are there */
  minNodes: z.int().positive().default(1),
  /** how long it waits for them */
  nodeWaitMs: z.number().max(longestWaitMs).positive().default(15_000),
  /** ranks of a lost node wait so long for it to come back before they are moved to others */
  rejoinMs: z.number().max(longestWaitMs).nonnegative().default(3_000),
  /** such ranks wait so long for room on another node before the run ends, to be resumed; a cluster whose machines come and go wants more */
  placeWaitMs: z.number().max(longestWaitMs).nonnegative().default(120_000),
  /** takes only node agents where no other run has workers, and keeps others from them while it has its own there */
  exclusive: z.boolean().default(false),
  /** how the runner is reached by workers on other nodes */
  links: LinksConfig.prefault({}),
});

/** How `placement.mode: auto` finds its plan. */
export const AutoPlacementConfig = z.strictObject({
  /** file of the profile, from the project root; default: `.treadle/profiles/<path of the workflow>.json` */
  profile: z.string().min(1).optional(),
  /** steps not counted under a new plan: engines compile, caches fill; up to three times as many, for two seconds, where they are short */
  warmupSteps: z.int().nonnegative().default(1),
  /** steps measured under each plan that is probed or tried; where steps differ, up to four times as many are probed */
  measuredSteps: z.int().positive().default(3),
  /** a plan is probed for no more steps than take so long, but for one; what is tried is not bounded by it */
  measuredSeconds: z.number().positive().default(60),
  /** a plan that may be the fastest is tried so many times, by turns with the others, until it is certain */
  trialRounds: z.int().positive().default(4),
  /** plans predicted to take longer than the best by more than this share are not tried */
  trialTolerance: z.number().nonnegative().default(0.25),
  /** the share by which steps leave what was expected before the run is planned again… */
  driftThreshold: z.number().positive().default(0.5),
  /** …by the median of so many steps */
  driftWindow: z.int().positive().default(10),
});

const ElasticConfig = z
  .strictObject({
    /** fewest ranks */
    min: z.int().positive().default(1),
    /** most ranks; default: as many as there is room for */
    max: z.int().positive().optional(),
  })
  .refine(({ min, max }) => max === undefined || min <= max, "min must not be above max");

export const PlacementConfig = z.strictObject({
  /** `auto`: the first steps are measured, then the fastest of all plans is chosen; it is chosen again when steps drift */
  mode: z.union([PlacementMode, z.literal("auto")]).default("temporal"),
  auto: AutoPlacementConfig.prefault({}),
  /** component (or comma list of components that share) to devices, as `rollout: 0-1` or `actor,inference: all`; `judge: none` has none */
  components: z.record(z.string(), z.union([z.string(), z.int().nonnegative()])).default({}),
  /** what every plan has to keep, the automatic one, too */
  wishes: PlacementWishes.prefault({}),
  /** components whose number of ranks follows the nodes that are there, between steps, within these bounds */
  elastic: z.record(z.string(), ElasticConfig).default({}),
});

export const FlowConfig = z.strictObject({
  /** items a batch carries on its way to a consumer: for all channels, or by channel name */
  granularity: z.union([GranularitySetting, z.record(z.string(), GranularitySetting)]).default("auto"),
  /** W2: how many steps of the workflow the weights that generate may be behind those that train, each of `epochs` × `minibatches` versions; 0 is on-policy */
  maxStaleness: z.int().nonnegative().max(64).default(0),
  /** C3: items of one step that a channel holds before `put` waits; those of a step are always enough */
  capacity: z.int().positive().default(65536),
  /** items above this size stay with their producer until a consumer takes them */
  inlineLimitKiB: z.number().positive().max(16384).default(64),
});

export const SupervisionConfig = z.strictObject({
  /** a component that crashes more often than this within the window, without a whole step in between, fails the run; lost nodes do not count */
  maxRestarts: z.int().nonnegative().default(3),
  /** the window in which crashes are counted */
  restartWindowMs: z.number().max(longestWaitMs).positive().default(600_000),
  /** a worker silent for longer is taken for dead and ended */
  heartbeatTimeoutMs: z.number().max(longestWaitMs).positive().default(20_000),
  /** a process that is not ready for calls within this time counts as dead */
  startTimeoutMs: z.number().max(longestWaitMs).positive().default(120_000),
  /** a call of a worker method that takes longer fails the run */
  callTimeoutMs: z.number().max(longestWaitMs).positive().default(3_600_000),
  /** a worker that waits longer for another one, in a collective or for its weights, fails, and names the one that holds it up */
  peerTimeoutMs: z.number().max(longestWaitMs).positive().default(600_000),
  /** nothing moved anywhere for this long: the wait-for graph is printed; after five times as long the run fails */
  stallMs: z.number().max(longestWaitMs).positive().default(60_000),
  /** a device lock wait longer than this fails with the wait-for chain */
  lockTimeoutMs: z.number().max(longestWaitMs).positive().default(1_800_000),
  /** from SIGTERM to SIGKILL */
  stopGraceMs: z.number().max(longestWaitMs).positive().default(5_000),
});

export const CheckpointsConfig = z.strictObject({
  /** steps between two saved states; with more than 1 they are written while later steps compute, a step counts when a state of it or of a later one is on the disk, and a death redoes the steps since */
  stateEverySteps: z.int().positive().max(10_000).default(1),
  /** states are written while later steps compute, also where each step saves one: a step begins before the states of those before are on the disk, and a trainer's death redoes every step since the last one that counts: at most 2 * stateEverySteps + flow.maxStaleness + 1, those under way included */
  inBackground: z.boolean().default(false),
  /** steps between two checkpoints */
  everySteps: z.int().positive().default(10),
  /** newest checkpoints that are kept */
  keepLast: z.int().positive().default(3),
  /** best checkpoints that are kept besides */
  keepBest: z.int().nonnegative().default(1),
  /** the reported metric by which the best checkpoints are chosen, higher is better; it must be of problems that nobody reports as held out, since what has chosen no longer judges; checkpoints of steps that do not report it cannot be the best, and the run says so when it removes one */
  bestBy: z.string().default("validation"),
});

/** Whether steps go on while the states of those before are still being written. */
export const savesInBackground = ({
  stateEverySteps,
  inBackground,
}: Pick<z.infer<typeof CheckpointsConfig>, "stateEverySteps" | "inBackground">): boolean =>
  stateEverySteps > 1 || inBackground;

/** Where metrics are served, in the text format of Prometheus. A token comes from TREADLE_METRICS_TOKEN alone. */
export const MetricsConfig = z.strictObject({
  /** `9464` (loopback), `host:port` or `[address]:port`; port 0 takes a free one */
  address: z.union([z.int().nonnegative().max(65_535), z.string().min(1)]),
  /** certificate files; with `ca` a scraper must show a certificate that it signed */
  tls: z
    .strictObject({
      /** the server's certificate */
      cert: z.string(),
      /** its key */
      key: z.string(),
      /** authority of the certificates that scrapers must show */
      ca: z.string().optional(),
    })
    .optional(),
});
export type MetricsConfig = z.infer<typeof MetricsConfig>;

/** Where spans are sent; headers and the like come from OTEL_EXPORTER_OTLP_HEADERS and its kin. */
export const OtlpConfig = z.strictObject({
  /** of an OpenTelemetry collector, as `http://127.0.0.1:4318`, without user and password */
  endpoint: z
    .url({ protocol: /^https?$/ })
    .refine((url) => !url.includes("@"), "must be without user and password")
    .optional(),
});
export type OtlpConfig = z.infer<typeof OtlpConfig>;

/** Where the metrics of steps go besides the run's own `metrics.jsonl`. Credentials come from the environment alone. */
export const TrackerConfig = z.discriminatedUnion("kind", [
  z.strictObject({
    kind: z.literal("jsonl"),
    /** a file, from the project's root, that runs append to */
    path: z.string().min(1),
  }),
  z.strictObject({
    kind: z.literal("tensorboard"),
    /** from the project's root; each run has a folder below it; default: `tensorboard` in the run's own folder */
    folder: z.string().min(1).optional(),
  }),
  z.strictObject({
    kind: z.literal("mlflow"),
    /** of the tracking server, as `http://127.0.0.1:5000`, without user and password */
    url: z.url({ protocol: /^https?$/ }).refine((url) => !url.includes("@"), "must be without user and password"),
    /** made where there is none */
    experiment: z.string().min(1).default("treadle"),
  }),
  z.strictObject({
    kind: z.literal("wandb"),
    project: z.string().min(1).default("treadle"),
    entity: z.string().min(1).optional(),
    mode: z.enum(["online", "offline"]).default("online"),
    /** interpreter with the package `wandb`; default: the environment's TREADLE_PYTHON, else python3 */
    python: z.string().min(1).optional(),
  }),
  z.strictObject({
    kind: z.literal("module"),
    /** the file that exports `createTracker`, in JavaScript or TypeScript, from the project's root */
    module: z.string().min(1),
    /** what its `createTracker` gets as `settings` */
    settings: z.record(z.string(), z.json()).default({}),
  }),
]);
export type TrackerConfig = z.infer<typeof TrackerConfig>;

/** Nothing listens and nothing is sent unless it is configured. */
export const ObserveConfig = z.strictObject({
  /** serves metrics for Prometheus */
  metrics: MetricsConfig.optional(),
  /** sends traces to a collector of OpenTelemetry */
  otlp: OtlpConfig.optional(),
  /** what the metrics of steps are also sent to; one that fails or hangs stops no run */
  trackers: z.array(TrackerConfig).default([]),
  /** keeps every input of the runner's state machine in the run's folder, for 'treadle replay' */
  record: z.boolean().default(false),
  /** compressed; the recording ends when it has grown to so much */
  recordMaxMiB: z.number().positive().default(1024),
});
export type ObserveConfig = z.infer<typeof ObserveConfig>;

/** Keys that every workflow has; a workflow's own schema is added to these. */
export const RuntimeConfig = z.strictObject({
  /** of every draw: equal seeds give equal runs where nothing depends on timing */
  seed: z.int().nonnegative().default(0),
  /** steps of the workflow's loop */
  steps: z.int().positive().default(1),
  /** items, such as prompts, that one step puts; the workflow reads it and the plan chunks it */
  batch: z.int().positive().default(32),
  cluster: ClusterConfig.prefault({}),
  placement: PlacementConfig.prefault({}),
  flow: FlowConfig.prefault({}),
  supervision: SupervisionConfig.prefault({}),
  checkpoints: CheckpointsConfig.prefault({}),
  pool: PoolConfig.prefault({}),
  /** records spans, for `treadle trace`, the dashboard and reports */
  trace: z.boolean().default(true),
  observe: ObserveConfig.prefault({}),
});
export type RuntimeConfig = z.infer<typeof RuntimeConfig>;
