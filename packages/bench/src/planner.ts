import { performance } from "node:perf_hooks";
import { median } from "@treadle/contracts";
import { solvePlan } from "@treadle/planner";
import { type BenchRow, row } from "./row.ts";

const notMeasured = "reading the problem; whether its profile is true";

export type Shape = {
  readonly nodes: number;
  readonly devices: number;
  readonly graph: "chain" | "dag";
  readonly seed: number;
};

/** A problem with every kind of node, the same for the same shape. `dag`: each node needs one or two earlier ones. */
export function benchProblem({ nodes, devices, graph, seed }: Shape) {
  let state = seed >>> 0;
  const uniform = (): number => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
  const list = Array.from({ length: nodes }, (_, i) => ({
    id: `c${i}`,
    time: { type: "formula", base: 5 * uniform(), perItem: 1 + 10 * uniform(), alpha: 0.7 + 0.3 * uniform() },
    stream: uniform() < 0.3,
    minDevices: 1 + Math.floor(4 * uniform()),
    offload: 3 * uniform(),
    onload: 3 * uniform(),
    memory: { fixed: 10 * uniform(), sharded: 40 * uniform(), perItem: 0.1 * uniform() },
  }));
  const edges: [string, string][] = [];
  for (let i = 1; i < nodes; i++) {
    const from = graph === "chain" ? i - 1 : Math.floor(uniform() * i);
    edges.push([`c${from}`, `c${i}`]);
    if (graph === "dag" && i > 1) edges.push([`c${Math.floor(uniform() * i)}`, `c${i}`]);
  }
  return { devices, batch: 512, memoryPerDevice: 80, nodes: list, edges };
}

type Times = { readonly median: number; readonly slowest: number };

/** Each problem for the fourth time: milliseconds on the wall; and of all modes found, how many are not proven. */
function whenWarm(count: number, shape: Omit<Shape, "seed">): { median: number; unproven: number; modes: number } {
  const nowMs = (): number => performance.now();
  const round = () =>
    Array.from({ length: count }, (_, i) =>
      solvePlan(benchProblem({ ...shape, seed: i + 1 }), { method: "fast", nowMs }),
    );
  for (let rounds = 0; rounds < 3; rounds++) round();
  const answers = round();
  const modes = answers.flatMap(({ alternatives }) => alternatives);
  return {
    median: median(answers.map(({ stats }) => stats.milliseconds)),
    unproven: modes.filter(({ proven }) => !proven).length,
    modes: modes.length,
  };
}

/**
 * Over different problems of one shape, after one warm-up: milliseconds on the wall, and of all processors, which what
 * else runs on the machine stretches less; the latter has compiling and collecting garbage in it.
 */
function overSeeds(count: number, shape: Omit<Shape, "seed">, method: string): { wall: Times; processor: Times } {
  const nowMs = (): number => performance.now();
  const solve = (seed: number): { wall: number; processor: number } => {
    const before = process.cpuUsage();
    const { stats } = solvePlan(benchProblem({ ...shape, seed }), { method, nowMs });
    const { user, system } = process.cpuUsage(before);
    return { wall: stats.milliseconds, processor: (user + system) / 1000 };
  };
  if (count > 1) solve(0);
  const all = Array.from({ length: count }, (_, i) => solve(i + 1));
  const timesOf = (of: (one: (typeof all)[number]) => number): Times => {
    const times = all.map(of).sort((a, b) => a - b);
    return { median: times[count >> 1]!, slowest: times.at(-1)! };
  };
  return { wall: timesOf(({ wall }) => wall), processor: timesOf(({ processor }) => processor) };
}

/** Shapes by what the paper scales, devices; naive where it ends within seconds. */
const shapes = [
  { nodes: 3, devices: 64, graph: "chain", naive: true },
  { nodes: 3, devices: 256, graph: "chain", naive: true },
  { nodes: 3, devices: 1024, graph: "chain", naive: false },
  { nodes: 3, devices: 16384, graph: "chain", naive: false },
  { nodes: 6, devices: 64, graph: "chain", naive: true },
  { nodes: 6, devices: 1024, graph: "chain", naive: false },
  { nodes: 6, devices: 1024, graph: "dag", naive: false },
  { nodes: 6, devices: 16384, graph: "chain", naive: false },
  { nodes: 10, devices: 1024, graph: "chain", naive: false },
  { nodes: 10, devices: 1024, graph: "dag", naive: false },
  { nodes: 10, devices: 16384, graph: "chain", naive: false },
] as const;

/** Exact plans (RLinf Alg. 1) with the best of the other modes beside them, and Algorithm 1 as written as the baseline. */
export function* benchPlanner(): Generator<BenchRow> {
  for (const { naive, ...shape } of shapes) {
    const { wall, processor } = overSeeds(5, shape, "fast");
    const baseline = naive ? overSeeds(1, shape, "naive").processor.median : null;
    const name = `${shape.graph} of ${shape.nodes} on ${shape.devices} devices`;
    const alone = { unit: "ms", notMeasured };
    const asWritten = baseline === null ? {} : { baseline, against: "Algorithm 1 as written" };
    yield row({ name: `${name}, processor, median`, value: processor.median, ...alone, ...asWritten });
    yield row({ name: `${name}, processor, slowest`, value: processor.slowest, ...alone });
    yield row({ name: `${name}, wall, median`, value: wall.median, ...alone });
    yield row({ name: `${name}, wall, slowest`, value: wall.slowest, ...alone });
    if (shape.devices !== 1024) continue;
    const warm = whenWarm(5, shape);
    yield row({ name: `${name}, wall, for the fourth time, median`, value: warm.median, ...alone });
    yield row({
      name: `${name}, modes of ${warm.modes} that are not proven`,
      value: warm.unproven,
      unit: "",
      notMeasured,
    });
  }
}
