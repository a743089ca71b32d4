import fc from "fast-check";
import type { PlanProblem } from "../src/index.ts";

/** What `PlanProblem` accepts, before defaults. */
export type PlanInput = Omit<Partial<PlanProblem>, "nodes" | "edges"> & {
  devices: number;
  batch: number;
  nodes: object[];
  edges: [string, string][];
};

type Sizes = { maxNodes: number; maxDevices: number; batches: readonly number[]; acyclic?: boolean };

const real = (max: number) => fc.double({ min: 0, max, noNaN: true });
const option = <T>(value: fc.Arbitrary<T>) => fc.option(value, { nil: undefined, freq: 2 });

const formula = fc.record({
  type: fc.constant("formula" as const),
  base: real(5),
  perItem: real(4),
  alpha: fc.constantFrom(1, 0.85, 0.3, 0),
});

const ascending = (length: number, max: number) =>
  fc.uniqueArray(fc.integer({ min: 1, max }), { minLength: 1, maxLength: length }).map((a) => a.sort((x, y) => x - y));

const table = fc
  .record({
    devices: ascending(3, 8).map((rows) => (rows[0]! > 3 ? rows : [1, ...rows.slice(1)])),
    items: ascending(3, 12),
  })
  .chain(({ devices, items }) =>
    fc.record({
      type: fc.constant("table" as const),
      devices: fc.constant(devices),
      items: fc.constant(items),
      // Seconds that never fall with items: an extrapolated table then stays positive.
      seconds: fc.array(
        fc
          .array(real(10), { minLength: items.length, maxLength: items.length })
          .map((row) => row.sort((a, b) => a - b)),
        { minLength: devices.length, maxLength: devices.length },
      ),
    }),
  );

const node = fc.record(
  {
    time: fc.oneof(formula, table),
    stream: fc.boolean(),
    memory: fc.record({ fixed: real(3), sharded: real(6), perItem: real(1) }),
    minDevices: fc.constantFrom(1, 1, 1, 2, 3),
    unit: fc.constantFrom(1, 1, 1, 1, 2, 3),
    offload: real(4),
    onload: real(4),
  },
  { requiredKeys: ["time"] },
);

/** Small random problems that use every option of the format. */
export function planInputs({ maxNodes, maxDevices, batches, acyclic = false }: Sizes): fc.Arbitrary<PlanInput> {
  return fc
    .record({
      nodes: fc.array(node, { minLength: 1, maxLength: maxNodes }),
      pairs: fc.array(fc.tuple(fc.nat(), fc.nat(), fc.integer({ min: 0, max: 9 })), { maxLength: 2 * maxNodes }),
      devices: fc.integer({ min: 1, max: maxDevices }),
      batch: fc.constantFrom(...batches),
      granularities: option(fc.uniqueArray(fc.integer({ min: 1, max: 12 }), { minLength: 1, maxLength: 4 })),
      memoryPerDevice: option(fc.double({ min: 5, max: 40, noNaN: true })),
      parallelIndependent: option(fc.boolean()),
      pipeline: option(fc.constantFrom("binary" as const, "kway" as const)),
      splits: option(fc.integer({ min: 1, max: 3 }).map((multipleOf) => ({ multipleOf }))),
    })
    .map(({ nodes, pairs, ...options }) => {
      const edges: [string, string][] = [];
      for (const [a, b, back] of pairs) {
        const [from, to] = [a % nodes.length, b % nodes.length];
        if (from === to) continue;
        // Most edges lead forward, so that cycles are small and rare rather than everything.
        const forward = acyclic || back > 0;
        const [low, high] = [Math.min(from, to), Math.max(from, to)];
        edges.push(forward ? [`n${low}`, `n${high}`] : [`n${high}`, `n${low}`]);
      }
      const given = Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
      return { ...given, nodes: nodes.map((n, i) => ({ id: `n${i}`, ...n })), edges } as PlanInput;
    });
}

const extra = fc.record({
  cycles: fc.constantFrom("collapse" as const, "split" as const),
  residency: fc.constantFrom("swap" as const, "lazy" as const),
  swaps: fc.constantFrom("once" as const, "round" as const),
  maxStaleness: fc.constantFrom(0, 0, 1, 2),
  useAll: fc.boolean(),
  pools: fc.record({
    a: fc.record({
      devices: fc.integer({ min: 1, max: 3 }),
      shared: fc.boolean(),
      memoryPerDevice: fc.constantFrom(9, 25),
    }),
    b: fc.record({ devices: fc.integer({ min: 1, max: 3 }) }),
  }),
  /** by node, in turn */
  places: fc.array(fc.constantFrom(undefined, undefined, undefined, "a", "a", "b"), { minLength: 6, maxLength: 6 }),
  mostDevices: fc.array(fc.constantFrom(undefined, undefined, 6), { minLength: 6, maxLength: 6 }),
});

/** The same with everything that the paper leaves out; `only` some of it. */
export function extendedInputs(
  sizes: Sizes,
  only: readonly (keyof PlanProblem)[] = ["cycles", "residency", "swaps", "maxStaleness", "pools"],
): fc.Arbitrary<PlanInput> {
  return fc.tuple(planInputs(sizes), extra).map(([input, { places, mostDevices, ...options }]) => {
    const chosen = Object.fromEntries(only.map((key) => [key, options[key as keyof typeof options]]));
    const nodes = input.nodes.map((one, i) => ({
      ...one,
      ...(only.includes("pools") && places[i] !== undefined ? { pool: places[i] } : {}),
      ...(mostDevices[i] !== undefined ? { maxDevices: mostDevices[i] } : {}),
    }));
    return { ...input, ...chosen, nodes };
  });
}
