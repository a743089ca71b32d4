/** By which way weights would reach the components of a rehearsed plan, and how fast that is. Pure. */
import type { Plan } from "@treadle/contracts";
import { formatBytes } from "../placement-ranks.ts";
import { type ModelEngine, type WeightPath, type WeightPathName, weightPaths } from "../weights/weight-paths.ts";
import type { ModelShape } from "./model-shape.ts";

/** By component. What is not named gets them as fast as devices send to each other. */
export type WeightWays = Readonly<Record<string, WeightPathName>>;

type Way = { readonly rate: number; readonly bytesOfNumber: number };

const gib = 2 ** 30;
/**
 * Bytes a second from a trainer to one rank, publication included, and bytes of a number. Measured: on a device and by files with
 * 1.28 GiB on an H200 (`bench_gpu.py --only g`), through Node on two cores (`treadle bench --only weights`).
 */
const measuredWays: Partial<Readonly<Record<WeightPathName, Way>>> = {
  ipc: { rate: 18 * gib, bytesOfNumber: 2 },
  disk: { rate: 0.64 * gib, bytesOfNumber: 2 },
  // What is sent is that file, to one rank after another: no faster than it, and by how much slower no quiet machine has measured.
  collective: { rate: 0.64 * gib, bytesOfNumber: 2 },
  bytes: { rate: 0.044 * gib, bytesOfNumber: 4 },
};

/** Undefined where it is the devices' links that say. */
export function secondsByWay({ parameters }: Pick<ModelShape, "parameters">, way: WeightPathName): number | undefined {
  if (way === "shared") return 0;
  const measured = measuredWays[way];
  return measured && (parameters * measured.bytesOfNumber) / measured.rate;
}

export function describeWay({ parameters }: Pick<ModelShape, "parameters">, way: WeightPathName): string {
  const measured = measuredWays[way];
  const moved =
    way === "shared"
      ? "nothing is moved"
      : measured === undefined
        ? "as fast as devices send to each other"
        : `${formatBytes(parameters * measured.bytesOfNumber)} at ${formatBytes(measured.rate)}/s, as was measured elsewhere`;
  return `new weights by '${way}': ${moved}`;
}

/** Fastest first. */
const byRate: readonly WeightPathName[] = ["shared", "ipc", "disk", "collective", "bytes"];
const slowest = (one: WeightPathName | undefined, other: WeightPathName): WeightPathName =>
  one !== undefined && byRate.indexOf(one) > byRate.indexOf(other) ? one : other;

/**
 * As they go where the plan has ranks on such devices; the embedded engine, which runs no such model, counts as PyTorch. `ways`
 * has the slowest of each component's ranks.
 */
export function rehearsedWays(
  { components }: Pick<Plan, "components">,
  engines: readonly ModelEngine[],
  device: string,
): { readonly ways: WeightWays; readonly paths: readonly WeightPath[] } {
  const driver = device.startsWith("mi") ? "rocm" : "cuda";
  const named = Object.entries(components).map(([name, component]) => {
    const ranks = component.ranks.map((rank) => {
      return { ...rank, devices: rank.devices.map((id) => id.replace(`/${device}:`, `/${driver}:`)) };
    });
    return [name, { ...component, ranks }] as const;
  });
  const running = engines.map(({ engine, ...rest }): ModelEngine => {
    return { ...rest, engine: engine.kind === "embedded" ? { ...engine, kind: "torch" } : engine };
  });
  const paths = weightPaths({ components: Object.fromEntries(named) }, running);
  const ways: Record<string, WeightPathName> = {};
  for (const { to, path } of paths) if (path !== "none") ways[to] = slowest(ways[to], path);
  return { ways, paths };
}

/** What has been slower before stays so: a plan that is made for one way may take another. */
export const slowestWays = (before: WeightWays, now: WeightWays): WeightWays => {
  const both = Object.entries(now).map(([name, way]) => [name, slowest(before[name], way)] as const);
  return { ...before, ...Object.fromEntries(both) };
};

export const areSameWays = (one: WeightWays, other: WeightWays): boolean =>
  Object.keys({ ...one, ...other }).every((name) => one[name] === other[name]);
