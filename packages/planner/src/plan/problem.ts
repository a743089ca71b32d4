import { z } from "zod";
import { contradiction, joinedGroups } from "../wishes.ts";

/** Without any of the three, a schedule is `temporal`, `spatial` or `hybrid` by what it does. */
export const planModes = ["temporal", "spatial", "hybrid"] as const;

const finite = z.number();
/** Sums and products of these stay finite, so that what has no schedule has none for another reason. */
const seconds = finite.nonnegative().max(1e100);
const count = z.int().positive();

const ascending = (numbers: readonly number[]): boolean => numbers.every((n, i) => i === 0 || n > numbers[i - 1]!);

/** `base + perItem * b / u^alpha` seconds for b items on u devices. */
const FormulaTime = z.strictObject({
  type: z.literal("formula"),
  base: seconds.default(0),
  perItem: seconds.default(0),
  alpha: finite.default(1),
});

/** Measured seconds: one row a device count, one column an item count. */
const TableTime = z
  .strictObject({
    type: z.literal("table"),
    devices: z.array(count).min(1).refine(ascending, "expected ascending device counts"),
    items: z.array(finite.positive()).min(1).refine(ascending, "expected ascending item counts"),
    seconds: z.array(z.array(seconds)).min(1),
  })
  .superRefine((table, context) => {
    const { devices, items, seconds: rows } = table;
    if (rows.length !== devices.length) {
      const message = `expected one row for each of the ${devices.length} device counts, found ${rows.length}`;
      context.addIssue({ code: "custom", path: ["seconds"], message });
    }
    for (const [i, row] of rows.entries()) {
      if (row.length === items.length) continue;
      const message = `expected one value for each of the ${items.length} item counts, found ${row.length}`;
      context.addIssue({ code: "custom", path: ["seconds", i], message });
    }
  });

export const ComponentTime = z.discriminatedUnion("type", [FormulaTime, TableTime]);
export type ComponentTime = z.infer<typeof ComponentTime>;

/** Per device, in the unit of `memoryPerDevice`: `fixed + sharded/u + perItem*b/u`. */
const ComponentMemory = z.strictObject({
  fixed: seconds.default(0),
  sharded: seconds.default(0),
  perItem: seconds.default(0),
});

export const PlanNode = z.strictObject({
  id: z
    .string()
    .min(1)
    .refine((id) => !id.includes("+"), "expected an id without '+', which joins the members of a cycle"),
  time: ComponentTime,
  /** runs its whole batch once and emits evenly */
  stream: z.boolean().default(false),
  memory: ComponentMemory.prefault({}),
  minDevices: count.default(1),
  /** more than these bring nothing */
  maxDevices: count.optional(),
  /** more ranks than these, of `unit` devices each, are not wanted */
  maxRanks: count.optional(),
  /** there are at least so many ranks: where `unit` is 1 and devices are fewer, several share a device, with a memory each */
  minRanks: count.default(1),
  /** devices are used in multiples of this */
  unit: count.default(1),
  /** runs on these devices alone; without it on the problem's own `devices` */
  pool: z.string().min(1).optional(),
  /** seconds to free and to load its memory when another component takes its devices over, or it takes over */
  offload: seconds.default(0),
  onload: seconds.default(0),
  /** what of its memory leaves and comes back by itself, with seconds of its own; the rest stays. Absent: all of it does as one */
  tags: z
    .array(z.strictObject({ share: z.number().min(0).max(1), offload: seconds, onload: seconds }))
    .min(1)
    .optional(),
});
export type PlanNode = z.infer<typeof PlanNode>;

/** The cut enumeration is exponential in width; wider graphs than this have no use and no end. */
const mostNodes = 24;

/** Tables of seconds have an entry for each. */
const mostDevices = 1 << 20;

/** Devices that components of other pools cannot use, such as the processors of simulators beside accelerators. */
const DevicePool = z.strictObject({
  devices: count.max(mostDevices),
  /** absent: memory is no limit */
  memoryPerDevice: seconds.optional(),
  /** its nodes are pinned: each uses all of its devices, so they take turns */
  shared: z.boolean().default(false),
});

/** A node that needs devices which must stay free contradicts it. One that never fits makes the problem infeasible instead. */
function checkReserved(
  { devices, reserved, nodes }: { devices: number; reserved: number; nodes: readonly PlanNode[] },
  context: z.RefinementCtx,
): void {
  for (const { id, pool, minDevices, unit } of nodes) {
    const needed = Math.ceil(minDevices / unit) * unit;
    if (pool !== undefined || needed > devices || needed <= devices - reserved) continue;
    const message = `'${id}' needs at least ${needed} of the ${devices} devices (minDevices ${minDevices}, unit ${unit}), so at most ${devices - needed} may stay free; lower reserved, or that`;
    context.addIssue({ code: "custom", path: ["reserved"], message });
  }
}

/**
 * RLinf §3.4 as data: what `treadle solve plan` reads. Everything from `cycles` on is what the paper leaves out; the
 * defaults of those are the paper.
 */
export const PlanProblem = z
  .strictObject({
    devices: count.max(mostDevices),
    batch: count.max(2 ** 31),
    granularities: z.union([z.literal("divisors"), z.array(count).min(1)]).default("divisors"),
    /** absent: memory is no limit */
    memoryPerDevice: seconds.optional(),
    parallelIndependent: z.boolean().default(false),
    pipeline: z.enum(["binary", "kway"]).default("binary"),
    splits: z.union([z.literal("all"), z.strictObject({ multipleOf: count })]).default("all"),
    /**
     * `split`: beside collapsed to one component, a cycle may have its members on disjoint devices, as stages of a
     * pipeline: with one chunk they alternate, and with more one works on a chunk while the other has the one before.
     * Collapsed, its members take turns. A cycle whose members have different pools is always split.
     */
    cycles: z.enum(["collapse", "split"]).default("collapse"),
    /**
     * Members of a cycle that runs as one are `together` in memory. `by-turns`: where they do not fit, each is loaded for its own turns.
     * The seconds of a schedule are then a bound alone: those swaps are not among them.
     */
    cycleMemory: z.enum(["together", "by-turns"]).default("together"),
    /** `lazy`: parts that take turns pay no swap where all of their components, each on all the devices, fit in memory together */
    residency: z.enum(["swap", "lazy"]).default("swap"),
    /** `round`: turns come round, in the next chunk or the next step, so the first part is also swapped in for the last */
    swaps: z.enum(["once", "round"]).default("once"),
    /**
     * Steps by which the weights that generate may be behind. Above 0 steps overlap, and a schedule's time is seconds
     * between the ends of steps: its busiest devices' seconds a step, or, where that is more, the time of a step alone
     * over `maxStaleness + 1`, as many steps as may be under way at once.
     */
    maxStaleness: z.int().nonnegative().default(0),
    pools: z.record(z.string().min(1), DevicePool).default({}),
    /** the modes that are wanted */
    modes: z
      .array(z.enum(planModes))
      .min(1)
      .refine((modes) => new Set(modes).size === modes.length, "expected each mode once")
      .default([...planModes]),
    /** so many of `devices` stay free */
    reserved: z.int().nonnegative().default(0),
    /** nodes that have the same devices, so they take turns */
    together: z.array(z.array(z.string()).min(2)).default([]),
    /** nodes that never share a device */
    apart: z.array(z.array(z.string()).min(2)).default([]),
    /** only schedules that leave no device idle, but for the reserved ones */
    useAll: z.boolean().default(false),
    nodes: z.array(PlanNode).min(1).max(mostNodes),
    edges: z.array(z.tuple([z.string(), z.string()])).default([]),
  })
  .superRefine((problem, context) => {
    const ids = new Set<string>();
    for (const [i, node] of problem.nodes.entries()) {
      if (ids.has(node.id))
        context.addIssue({
          code: "custom",
          path: ["nodes", i, "id"],
          message: "expected an id that no other node has",
        });
      ids.add(node.id);
      if (node.pool !== undefined && !Object.hasOwn(problem.pools, node.pool)) {
        const pools = Object.keys(problem.pools).map((name) => `'${name}'`);
        const message =
          pools.length > 0 ? `expected one of the pools ${pools.join(", ")}` : "expected no pool: none is given";
        context.addIssue({ code: "custom", path: ["nodes", i, "pool"], message });
      }
      if (node.maxDevices !== undefined && node.maxDevices < Math.max(node.minDevices, node.unit)) {
        const message = `expected at least minDevices ${node.minDevices} and unit ${node.unit}`;
        context.addIssue({ code: "custom", path: ["nodes", i, "maxDevices"], message });
      }
      if (node.maxRanks === undefined) continue;
      const fewest = Math.ceil(node.minDevices / node.unit);
      if (node.maxRanks < Math.max(node.minRanks, fewest)) {
        const message = `expected at least minRanks ${node.minRanks}, and the ${fewest} ranks of ${node.unit} that minDevices ${node.minDevices} asks for`;
        context.addIssue({ code: "custom", path: ["nodes", i, "maxRanks"], message });
      }
    }
    if (problem.reserved >= problem.devices) {
      const message = `expected fewer than the ${problem.devices} devices: none would be left`;
      context.addIssue({ code: "custom", path: ["reserved"], message });
    } else if (problem.reserved > 0) checkReserved(problem, context);
    for (const key of ["together", "apart"] as const) {
      for (const [i, group] of problem[key].entries()) {
        for (const [j, id] of group.entries()) {
          const message = ids.has(id)
            ? group.indexOf(id) < j && "expected a node that is not in it before"
            : `expected one of the nodes ${[...ids].map((one) => `'${one}'`).join(", ")}`;
          if (message) context.addIssue({ code: "custom", path: [key, i, j], message });
        }
      }
    }
    const joined = joinedGroups(problem.together);
    const poolOf = new Map(problem.nodes.map(({ id, pool }) => [id, pool]));
    for (const [i, group] of problem.together.entries()) {
      const [first] = group;
      const j = group.findIndex((id) => ids.has(id) && poolOf.get(id) !== poolOf.get(first!));
      if (j < 0 || !ids.has(first!)) continue;
      const message = `'${first}' and '${group[j]}' have different pools, and so no device in common`;
      context.addIssue({ code: "custom", path: ["together", i, j], message });
    }
    for (const [i, group] of problem.apart.entries()) {
      const [a, b] = contradiction(joined, group) ?? [];
      if (a === undefined) continue;
      const message = `'${a}' and '${b}' cannot be kept both apart and together`;
      context.addIssue({ code: "custom", path: ["apart", i], message });
    }
    const known = `expected one of the nodes ${[...ids].map((id) => `'${id}'`).join(", ")}`;
    for (const [i, edge] of problem.edges.entries()) {
      for (const end of [0, 1] as const) {
        if (!ids.has(edge[end])) context.addIssue({ code: "custom", path: ["edges", i, end], message: known });
      }
    }
  });
export type PlanProblem = z.infer<typeof PlanProblem>;

/** What runs where, when. Siblings of a `pipeline` own disjoint devices and hand over `chunk` items at a time. */
export type Schedule =
  | { readonly op: "node"; readonly node: string; readonly devices: number; readonly items: number }
  | {
      readonly op: "temporal";
      readonly devices: number;
      readonly items: number;
      readonly first: Schedule;
      readonly second: Schedule;
    }
  | {
      readonly op: "parallel";
      readonly devices: number;
      readonly items: number;
      readonly first: Schedule;
      readonly second: Schedule;
    }
  | {
      readonly op: "pipeline";
      readonly devices: number;
      readonly items: number;
      readonly chunk: number;
      readonly first: Schedule;
      readonly second: Schedule;
    }
  | {
      readonly op: "pipeline";
      readonly devices: number;
      readonly items: number;
      readonly chunk: number;
      readonly stages: readonly Schedule[];
    };

const size = { devices: count, items: count };
const inner = z.lazy(() => Schedule);
export const Schedule: z.ZodType<Schedule> = z.union([
  z.strictObject({ op: z.literal("node"), node: z.string(), ...size }),
  z.strictObject({ op: z.literal("temporal"), ...size, first: inner, second: inner }),
  z.strictObject({ op: z.literal("parallel"), ...size, first: inner, second: inner }),
  z.strictObject({ op: z.literal("pipeline"), ...size, chunk: count, first: inner, second: inner }),
  z.strictObject({ op: z.literal("pipeline"), ...size, chunk: count, stages: z.array(inner).min(2) }),
]);

/** Costs a given schedule instead of searching for one. */
export const EvalProblem = z.strictObject({ op: z.literal("eval"), input: PlanProblem, schedule: Schedule });
export type EvalProblem = z.infer<typeof EvalProblem>;

export type PlanMode = (typeof planModes)[number];

export type PlanStats = {
  readonly milliseconds: number;
  readonly method: string;
  /** whether the time is proven to be the least */
  readonly exact: boolean;
  /** no schedule is faster than this, in seconds; null when none is feasible */
  readonly bound: number | null;
  /** (time - bound) / time */
  readonly gap: number;
  /** states (subgraph, devices, items) looked into */
  readonly states: number;
  /** splits, cuts and chunks whose time was computed or bounded */
  readonly candidates: number;
};

export type PlanAlternative = {
  readonly mode: PlanMode;
  readonly time: number;
  readonly schedule: Schedule;
  /** whether it is proven to be the best of its mode */
  readonly proven: boolean;
  /** no schedule of its mode takes less */
  readonly bound: number;
};

export type PlanAnswer = {
  readonly feasible: boolean;
  /** seconds for one batch */
  readonly time: number | null;
  readonly schedule: Schedule | null;
  readonly mode: PlanMode | null;
  /** the best schedule of each mode that has one, fastest first */
  readonly alternatives: readonly PlanAlternative[];
  readonly explanation: readonly string[];
  /** what keeps the schedule from being faster, a sentence each */
  readonly limits: readonly string[];
  /** modes that are proven to have no schedule, where there is one of another */
  readonly empty: readonly PlanMode[];
  /** modes without a schedule whose search the deadline cut short, so whether they have one is not known */
  readonly unsearched: readonly PlanMode[];
  readonly stats: PlanStats;
};

export type EvalAnswer = {
  readonly feasible: boolean;
  readonly time: number | null;
  /** the first thing that is not allowed in the schedule, with its place in it; null when it is legal */
  readonly illegal: { readonly path: string; readonly problem: string } | null;
  readonly mode: PlanMode | null;
  readonly stats: { readonly milliseconds: number };
};
