/** What a run and the pool of devices that it shares with other runs say to each other. */
import { z } from "zod";
import { RunEvent } from "./events.ts";
import { RunName } from "./names.ts";

const maxDevices = 65_536;
const DeviceId = z.string().min(1).max(200);

const deviceIds = z
  .array(DeviceId)
  .min(1)
  .max(maxDevices)
  .refine((ids) => new Set(ids).size === ids.length, "expected each device once");

/** How a run takes part in a pool: read by `treadle multiplex`, and by `treadle run --pool`. */
export const PoolConfig = z.strictObject({
  /** a larger one gets devices first, and makes runs of smaller ones yield at once */
  priority: z.int().default(0),
  /** its turns are so many times as long as those of a run of weight 1, while others wait */
  weight: z.number().positive().default(1),
  /** it takes at most so many times as long as alone; without it, as long as others let it */
  maxSlowdown: z.number().min(1).optional(),
  /** what its workers occupy at most on each device, beside those of other runs; default: an even share */
  memoryPerDeviceMiB: z.number().positive().optional(),
  /**
   * `idle`: others have its devices while it computes nothing on them; `always`: others that say so too may also compute beside
   * it, where that is known to gain; `never`: others wait for room until it has ended
   */
  share: z.enum(["never", "idle", "always"]).default("idle"),
});
export type PoolConfig = z.infer<typeof PoolConfig>;

const PoolDevice = z.strictObject({ id: DeviceId, memoryMiB: z.number().positive() });

/** What a run says of itself when it joins: every device that it may use, and how. */
export const PoolMember = PoolConfig.partial({ share: true }).extend({
  devices: z.array(PoolDevice).min(1).max(maxDevices),
});
export type PoolMember = z.infer<typeof PoolMember>;

/** Which component computes, of which workflow, in which configuration and on which hardware: equal ones slow others alike. */
export const Work = z.string().min(1).max(300);
export type Work = z.infer<typeof Work>;

/** What a run may use until it releases it; with `only` for that work alone, since another run computes there too, or may. */
export const DeviceLease = z.strictObject({ token: z.int().positive(), devices: deviceIds, only: Work.optional() });
export type DeviceLease = z.infer<typeof DeviceLease>;

/** What computes on the same devices under leases of other runs. */
const Beside = z.array(Work).max(16);
export const BesideMessage = z.object({ works: Beside });

/** What a rank has computed on its devices since it said so last: nobody began or ended beside it meanwhile. */
export const WorkDone = z.strictObject({
  beside: Beside,
  /** forward passes, and tokens of all of them; an engine that counts neither has made one pass for each turn of its worker */
  passes: z.number().nonnegative(),
  tokens: z.number().nonnegative(),
  /** in which it computed, in which its process had a processor, and in which it waited for one that others had */
  ms: z.number().nonnegative(),
  cpuMs: z.number().nonnegative(),
  queuedMs: z.number().nonnegative(),
  /** the time that this is about, waits included */
  forMs: z.number().nonnegative(),
  /** its turn is over: the worker has given the devices back */
  ends: z.boolean(),
});
export type WorkDone = z.infer<typeof WorkDone>;

/** The same, as the pool is told it. */
export const WorkSample = WorkDone.extend({ work: Work, devices: deviceIds });
export type WorkSample = z.infer<typeof WorkSample>;

/** What computes, or waits for its devices. */
export type Computing = {
  readonly run: string;
  /** undefined where the run does not say */
  readonly work: Work | undefined;
  /** its run's part of the devices' memory; of unequal parts the smallest */
  readonly memory: number;
  readonly devices: readonly string[];
  /** since it computes under this lease, or waits */
  readonly sinceMs: number;
  readonly maxSlowdown: number | undefined;
};

export type SharingQuestion = {
  /** the next that would begin */
  readonly waiter: Computing;
  /** of `running`, those that have some of its devices, and would go on beside it */
  readonly holders: readonly Computing[];
  /** all that compute, and all others that wait */
  readonly running: readonly Computing[];
  readonly waiting: readonly Computing[];
};

/** Whether the waiter begins beside the holders now, and why, in words. */
export type SharingVerdict = { readonly shares: boolean; readonly why: string };

/** Of a run. */
export const PoolRequest = z.discriminatedUnion("type", [
  z.strictObject({
    type: z.literal("join"),
    member: PoolMember,
    /** that it has of another process, which had the pool before */
    leases: z.array(DeviceLease).max(maxDevices).optional(),
  }),
  /** all of these devices or none */
  z.strictObject({ type: z.literal("request"), devices: deviceIds, work: Work.optional() }),
  /** what computes under the lease from here on */
  z.strictObject({ type: z.literal("uses"), token: z.int().positive(), work: Work }),
  /** answers `share`: from here on nothing but this work computes under the lease; null: it cannot say so */
  z.strictObject({ type: z.literal("shares"), token: z.int().positive(), work: Work.nullable() }),
  WorkSample.extend({ type: z.literal("worked") }),
  z.strictObject({ type: z.literal("release"), token: z.int().positive() }),
  /** a sign of life; `done`: which part of its steps the run has done, where that is new */
  z.strictObject({ type: z.literal("beat"), done: z.number().min(0).max(1).optional() }),
]);
export type PoolRequest = z.infer<typeof PoolRequest>;

const sum = z.number().nonnegative();
/** Of samples, each weighed by what it was expected to take: their number, and sums of weights, of milliseconds and of squares. */
const Ratios = z.strictObject({ count: sum, expected: sum, ms: sum, squares: sum });
const memoryLevel = z.number().gt(0).max(1);

/** How much slower works are beside others, as pools have measured it: what is kept of it. */
export const KnownSlowdowns = z.strictObject({
  version: z.literal(1),
  alone: z
    .array(
      z.strictObject({
        ...{ work: Work, memory: memoryLevel, samples: sum },
        /** of a fit of milliseconds to passes and tokens, in which samples count relative to their length */
        sums: z.tuple([sum, sum, sum, sum, sum]),
        /** what it has foretold */
        told: Ratios,
      }),
    )
    .max(10_000),
  pairs: z
    .array(z.strictObject({ work: Work, beside: Work, memory: memoryLevel, tried: sum, told: Ratios }))
    .max(100_000),
});
export type KnownSlowdowns = z.infer<typeof KnownSlowdowns>;

/** In the environment of every process of a run that takes part in a pool, by which all of them are found and ended. */
export const pooledRunVariable = "TREADLE_POOLED_RUN";

/** Not frozen, as `readonly()` would: what comes from another process may be no array that can be. */
const names: z.ZodType<readonly string[]> = z.array(z.string().max(200)).max(10_000);

const MemoryByDevice = z.record(DeviceId, z.number().positive());

/** Why a run waits, and for whom: room beside them, bounds that they are beyond, devices that they hold, or their turn. */
export const PoolWait = z.strictObject({
  type: z.enum(["room", "bounds", "devices", "turn"]),
  runs: names,
  /** for room: which one it is of those that wait for it, and after about how long there is room for the first, where that is known */
  place: z.int().positive().optional(),
  inMs: z.number().nonnegative().optional(),
});
export type PoolWait = z.infer<typeof PoolWait>;

/** What a run waits for, as the end of a sentence. */
export function describePoolWait({ type, runs, place = 1, inMs }: PoolWait): string {
  const names = runs.map((run) => `'${run}'`).join(", ") || "the others";
  switch (type) {
    case "room": {
      const line = place > 1 ? `, number ${place} in line` : "";
      return `room beside ${names}${line}${inMs === undefined ? "" : `, in about ${Math.ceil(inMs / 60_000)} min`}`;
    }
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
  z.strictObject({ type: z.literal("admitted"), memoryMiB: MemoryByDevice }),
  z.strictObject({ type: z.literal("refused"), why: z.string() }),
  /** the pool ends it: whatever of it is left soon after is killed */
  z.strictObject({ type: z.literal("ended"), why: z.string() }),
  z.strictObject({ type: z.literal("granted"), lease: DeviceLease }),
  /** somebody waits: release when nobody uses the devices, and with `drains` let nobody begin before that */
  z.strictObject({ type: z.literal("wanted"), token: z.int().positive(), drains: z.boolean() }),
  /** somebody would compute beside what computes now: `shares` follows, unless it is released */
  z.strictObject({ type: z.literal("share"), token: z.int().positive() }),
  /** who computes beside it from here on; when nobody does any more, all works may compute under the lease */
  z.strictObject({ type: z.literal("beside"), token: z.int().positive(), works: Beside }),
  /** now and then while it waits, and once with null when it does not any more */
  z.strictObject({ type: z.literal("waits"), on: PoolWait.nullable(), forMs: z.number().nonnegative() }),
]);
export type PoolReply = z.infer<typeof PoolReply>;

/** What the process of a run tells the one that started it. */
export const PooledRunMessage = z.union([z.strictObject({ pool: PoolRequest }), z.strictObject({ event: RunEvent })]);
export type PooledRunMessage = z.infer<typeof PooledRunMessage>;

/** One run, at one instant. */
export const PoolMemberView = z.object({
  run: z.string(),
  stage: z.enum(["queued", "resident", "ending"]),
  maxSlowdown: z.number().optional(),
  holds: z.object({ devices: z.array(z.string()), forMs: z.number(), drains: z.boolean() }).optional(),
  waits: z.object({ forMs: z.number(), on: PoolWait }).optional(),
  /** from joining to its admission */
  queuedMs: z.number(),
  /** it had devices */
  leasedMs: z.number(),
  /** as a resident it asked for devices, and had none */
  waitedMs: z.number(),
  leases: z.int(),
  /** what others that computed beside it have cost it, by what was measured of such pairs */
  lostMs: z.number(),
  /** time as a resident over the part of it in which it did not wait, less what it lost */
  slowdown: z.number().optional(),
});
export type PoolMemberView = z.infer<typeof PoolMemberView>;

/** The process of a run: `mark` is in the environment of all that it starts, and in the name of a file that it holds open. */
export const RunProcess = z.strictObject({
  /** which sees the process by that id */
  machine: z.string().min(1).max(300),
  pid: z.int().positive(),
  /** clock ticks from the machine's start to the process's: another process of the same id has another */
  startedTicks: z.int().nonnegative(),
  mark: z.uuid(),
});
export type RunProcess = z.infer<typeof RunProcess>;

/** What a pool that outlives runs says of itself. */
export const PoolInfo = z.object({
  machine: z.string().max(300),
  host: z.string().max(300),
  pid: z.int(),
  startedAt: z.string().max(100),
  /** grows from one process that has the pool to the next: what a later one says counts for more */
  epoch: z.int().positive(),
  /** of this process alone */
  id: z.uuid(),
});
export type PoolInfo = z.infer<typeof PoolInfo>;

/** One way of what two sides say to each other: what the other has not acknowledged, and how much of the other's is here. */
const exchanged = <T extends z.ZodType>(item: T) => ({
  /** the number of the first */
  from: z.int().nonnegative(),
  said: z.array(item).max(10_000),
  heard: z.int().nonnegative(),
});

export const PoolTalk = z.strictObject({
  run: RunName,
  process: RunProcess,
  /** the epoch and the id of the process of the pool that the run follows */
  epoch: z.int().positive(),
  pool: z.uuid(),
  /** answered when there is something to say, or in a while; else at once */
  waits: z.boolean(),
  ...exchanged(PoolRequest),
});
export type PoolTalk = z.infer<typeof PoolTalk>;
export const PoolTold = z.strictObject(exchanged(PoolReply));

/** How many times as long a work takes beside another, as was measured, and the standard error of that. */
export const MeasuredSlowdown = z.object({
  ...{ work: Work, beside: Work, memory: z.number(), factor: z.number(), error: z.number(), samples: z.number() },
});
export type MeasuredSlowdown = z.infer<typeof MeasuredSlowdown>;

export const PoolStatus = z.object({
  runs: z.array(PoolMemberView).max(10_000),
  slowdowns: z.array(MeasuredSlowdown).max(10_000).optional(),
});
export type PoolStatus = z.infer<typeof PoolStatus>;
