import { z } from "zod";

const seconds = z.number().positive();
const share = z.number().min(0).max(1);
const list = <Item extends z.ZodType>(item: Item) => z.array(item).min(1);

/** What the trajectories of one step do. Each kind of list is an axis: every combination is a workload. */
const Coding = z.strictObject({
  /** median of a trajectory's turns, lognormal */
  turns: list(z.number().min(1)).default([35]),
  turnsSpread: z.number().min(0).max(2).default(0.5),
  generationSeconds: seconds.default(5),
  /** a tool call on one core: median, 90th percentile, and the mean, which the longest are cut to give */
  toolMedianSeconds: seconds.default(0.05),
  tools: list(z.strictObject({ p90Seconds: seconds, meanSeconds: seconds })).default([
    { p90Seconds: 0.5, meanSeconds: 0.25 },
    { p90Seconds: 8, meanSeconds: 3 },
  ]),
  /** the reward's time on one core */
  rewardMedianSeconds: list(seconds).default([60, 180, 480]),
  rewardSpread: z.number().min(0).max(2).default(0.6),
  /** of the reward, from one to the other, evenly on a logarithmic scale */
  serialShare: list(z.tuple([share, share])).default([
    [0.005, 0.3],
    [0.1, 0.3],
  ]),
  maxCores: z.int().positive().max(256).default(32),
  /** standard deviation of the logarithm of what the scheduler is told of a reward's time, around the truth */
  estimateSpread: z.number().min(0).max(2).default(0.3),
  /** of every action, on its cores: by default what `update` and `exec` of a container take */
  overheadSeconds: z.number().min(0).default(0.06),
});

const Pods = z.strictObject({
  requestCores: z.number().positive().default(0.5),
  limitCores: z.int().positive().default(4),
  podsPerNode: z.int().positive().default(110),
  /** that the control plane creates, in the whole cluster */
  podsPerSecond: z.number().positive().default(10),
  startSeconds: z.number().min(0).default(5),
  /** processes that a reward's command runs in its pod; test commands of public data sets run one */
  rewardWorkers: list(z.int().positive()).default([1, 4]),
});

const Services = z.strictObject({
  models: z.int().positive().default(10),
  gpusPerNode: z.union([z.literal(1), z.literal(2), z.literal(4), z.literal(8)]).default(8),
  /** of the baseline: one server a model, with as many GPUs each; pooling has the sum of them */
  gpusPerModel: list(z.int().positive()).default([4, 8]),
  /** requests that a server works on at once without slowing down */
  serverSlots: list(z.int().positive()).default([1, 2]),
  batch: list(z.int().positive()).default([256, 1024]),
  /** popularity of the k-th model is 1 / k^skew */
  skew: list(z.number().min(0).max(3)).default([0, 1]),
  /** when a trajectory asks for its reward after the start of the step, lognormal */
  arrivalMedianSeconds: seconds.default(180),
  arrivalSpread: z.number().min(0).max(2).default(0.4),
  /** standard deviation of the logarithm of a model's own median, around that: each belongs to a task with its own pace */
  taskSpread: list(z.number().min(0).max(2)).default([0, 0.5, 1]),
  /** of a request on one GPU */
  requestMedianSeconds: list(seconds).default([2, 5]),
  requestSpread: z.number().min(0).max(2).default(0.4),
  /** of tensor parallelism */
  serialShare: share.default(0.1),
  /** of a device's memory that a model takes on one GPU; on d GPUs it takes the d-th part of each */
  modelShare: share.default(0.6),
  /** from CPU memory on one GPU; d GPUs load their parts side by side */
  restoreSeconds: list(z.number().min(0)).default([1]),
});

/**
 * A set-up in which action-level scheduling is compared with what is done without it. The defaults are those of
 * ARL-Tangram §6 where it states them; for the rest they are ranges, since it does not.
 */
export const ActionScenario = z.strictObject({
  name: z.string().min(1).default("scenario"),
  seed: z.int().nonnegative().default(0),
  nodes: z.int().positive().default(5),
  /** trajectories and cores of the whole cluster */
  points: list(z.strictObject({ batch: z.int().positive(), cores: z.int().positive() })).default([
    { batch: 1280, cores: 1280 },
  ]),
  /**
   * As many nodes are simulated as have this many trajectories. Each node is scheduled alone and trajectories are spread
   * evenly, so some, with their share of the batch and of the pods, stand for all.
   */
  simulatedTrajectories: z.int().positive().default(256),
  fixedDegrees: list(z.int().positive()).default([1, 2, 4, 8, 16, 32]),
  coding: Coding.prefault({}),
  pods: Pods.prefault({}),
  /** absent: no GPU services */
  services: Services.optional(),
  /** shapes of test suites that come together, drawn with the seed */
  suites: z.int().nonnegative().default(0),
});
export type ActionScenario = z.infer<typeof ActionScenario>;
export type CodingWorkload = Omit<z.infer<typeof Coding>, "turns" | "tools" | "rewardMedianSeconds" | "serialShare"> & {
  readonly turns: number;
  readonly tools: { readonly p90Seconds: number; readonly meanSeconds: number };
  readonly rewardMedianSeconds: number;
  readonly serialShare: readonly [number, number];
};
export type PodOptions = Omit<z.infer<typeof Pods>, "rewardWorkers"> & { readonly rewardWorkers: number };
export type ServiceScenario = z.infer<typeof Services>;

/** By name, for `--scenario`. */
export const actionScenarios = {
  /** the paper's set-up over a grid of 12 workloads; half an hour of one core */
  paper: {
    name: "paper",
    points: [
      ...[128, 256, 512, 1024, 1280, 1536].map((batch) => ({ batch, cores: 1280 })),
      { batch: 1280, cores: 768 },
      { batch: 1280, cores: 1024 },
    ],
    services: { requestMedianSeconds: [2, 5, 20], restoreSeconds: [1, 5] },
    suites: 400,
  },
  /** fewer points of the same, in minutes */
  "paper-small": {
    name: "paper-small",
    points: [...[128, 256, 1280, 1536].map((batch) => ({ batch, cores: 1280 })), { batch: 1280, cores: 768 }],
    coding: { rewardMedianSeconds: [60, 180] },
    services: { batch: [1024], serverSlots: [1] },
    suites: 100,
  },
} as const satisfies Record<string, z.input<typeof ActionScenario>>;

/** Every combination of the axes of trajectories. */
export function codingWorkloads({ coding }: ActionScenario): CodingWorkload[] {
  const { turns, tools, rewardMedianSeconds, serialShare, ...rest } = coding;
  return turns.flatMap((median) =>
    tools.flatMap((tool) =>
      rewardMedianSeconds.flatMap((reward) =>
        serialShare.map((shares) => {
          const own = { turns: median, tools: tool, rewardMedianSeconds: reward, serialShare: shares };
          return { ...rest, ...own };
        }),
      ),
    ),
  );
}
