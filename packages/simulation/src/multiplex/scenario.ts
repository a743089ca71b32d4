import { liveMethods } from "@treadle/multiplexer";
import { z } from "zod";
import { runShapes } from "./drawn-run.ts";

const list = <Item extends z.ZodType>(item: Item) => z.array(item).min(1);
const shape = z.enum(Object.keys(runShapes) as [keyof typeof runShapes, ...(keyof typeof runShapes)[]]);
const seconds = z.number().positive();

/** Several runs on the same devices. Lists are axes: every combination is a setting, and each is drawn `draws` times. */
export const MultiplexScenario = z.strictObject({
  name: z.string().min(1).default("scenario"),
  seed: z.int().nonnegative().default(0),
  draws: z.int().positive().max(1000).default(5),
  devices: list(z.int().positive().max(1024)).default([4]),
  steps: z.int().positive().default(6),
  /** the shapes of the runs that share the devices */
  runs: list(z.array(shape).min(2).max(8)).default([
    ["reasoning", "reasoning"],
    ["reasoning", "tools"],
    ["tools", "tools"],
    ["tools", "tools", "reasoning"],
  ]),
  /** of how much longer or shorter all stages of a run are: standard deviation of the logarithm */
  scaleSd: z.number().min(0).max(2).default(0.4),
  /** stages take turns on all devices, or rollout and training have their own */
  placement: list(z.enum(["temporal", "spatial"])).default(["temporal", "spatial"]),
  maxStaleness: list(z.int().min(0).max(8)).default([0]),
  /** of the first run; the others have no bound */
  maxSlowdown: list(z.number().min(1).nullable()).default([null]),
  /** of a table of slowdowns of stages that compute beside each other; null: none does */
  interference: list(z.number().min(0).max(2).nullable()).default([null]),
  /** how is decided who does, and how many decisions `lookahead` follows */
  method: z.enum(liveMethods).default("greedy"),
  window: z.int().positive().max(16).default(3),
  turnSeconds: seconds.default(10),
  patienceSeconds: seconds.default(60),
  /** from a run to the pool, or back */
  messageSeconds: z.number().nonnegative().default(0.001),
  /** of each run, on average: killed, or stopped so that the pool has to end it */
  deaths: z.number().nonnegative().max(20).default(0),
});
export type MultiplexScenario = z.infer<typeof MultiplexScenario>;

/** By name, for `--scenario`. */
export const multiplexScenarios = {
  /** 8 settings on 4 devices, in seconds */
  small: { name: "small" },
  /** 32 settings on 8 and 64 devices, on-policy and one step off */
  grid: { name: "grid", devices: [8, 64], maxStaleness: [0, 1], draws: 3 },
  /** on one device, where the best schedule is known */
  exact: {
    name: "exact",
    devices: [1],
    steps: 2,
    placement: ["temporal"],
    draws: 10,
    runs: [
      ["reasoning", "tools"],
      ["tools", "tools"],
    ],
  },
  /** the first run is promised how much slower it gets at most */
  bounds: { name: "bounds", maxSlowdown: [null, 2, 1.5, 1.25, 1.1] },
  /** runs that compute beside each other, with all of what they take from each other, and less */
  beside: { name: "beside", devices: [8], interference: [1, 0.6, 0.3], maxStaleness: [0, 1], draws: 3, steps: 12 },
  /** the same on 64 devices */
  "beside-64": { name: "beside-64", devices: [64], interference: [1, 0.6, 0.3], draws: 1, steps: 8 },
  /** runs that are killed, or stop */
  deaths: { name: "deaths", deaths: 2 },
} as const satisfies Record<string, z.input<typeof MultiplexScenario>>;
