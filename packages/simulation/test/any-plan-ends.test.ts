import type { Plan, Profile } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";
import { simulate } from "../src/index.ts";
import { chainProfile } from "./hand-made.ts";

const numDevices = 4;

const componentSpec = fc.record({
  perItem: fc.integer({ min: 1, max: 9 }),
  feeds: fc.array(fc.nat(5), { minLength: 1, maxLength: 2 }),
  ranks: fc.array(fc.nat(numDevices - 1), { minLength: 1, maxLength: 3 }),
  gang: fc.boolean(),
  streams: fc.boolean(),
  granularity: fc.constantFrom<number | "all">(1, 2, 3, "all"),
});

const runSpec = fc.record({
  components: fc.array(componentSpec, { minLength: 1, maxLength: 5 }),
  batch: fc.integer({ min: 1, max: 9 }),
  steps: fc.integer({ min: 1, max: 3 }),
  maxStaleness: fc.nat(2),
  isTight: fc.boolean(),
  /** of a take or a put, where messages take time at all */
  askSeconds: fc.constantFrom(0, 0.01),
});
type RunSpec = typeof runSpec extends fc.Arbitrary<infer T> ? T : never;

/** A random flow without circles over random ranks: devices of their own, shared, crossed, and several ranks on one. */
function build({ components, batch, maxStaleness, askSeconds }: RunSpec): { profile: Profile; plan: Plan } {
  const names = components.map((_, i) => `c${i}`);
  const base = chainProfile(
    components.map(({ perItem }, i) => ({ name: names[i] as string, perItem, askSeconds })),
    batch,
  );
  const edges = components.flatMap(({ feeds }, from) =>
    from === names.length - 1
      ? []
      : [...new Set(feeds.map((to) => from + 1 + (to % (names.length - 1 - from))))].map((to) => ({ from, to })),
  );
  const channelOf = ({ from, to }: { from: number; to: number }) => `${names[from]}-${names[to]}`;
  const channels: Profile["graph"]["channels"] = {};
  const moved = { itemsPerStep: batch, bytesPerStep: 0 };
  for (const [i, name] of names.entries())
    if (!edges.some(({ to }) => to === i)) channels[`in-${name}`] = { producers: [], consumers: [name], ...moved };
  for (const edge of edges)
    channels[channelOf(edge)] = {
      producers: [names[edge.from] as string],
      consumers: [names[edge.to] as string],
      ...moved,
    };
  const graph: Profile["graph"] = {
    batch,
    channels,
    calls: [],
    cycles: [],
    edges: edges.map((edge) => ({
      from: names[edge.from] as string,
      to: names[edge.to] as string,
      channel: channelOf(edge),
      ...moved,
    })),
    components: Object.fromEntries(
      names.map((name) => {
        const of = (role: "producers" | "consumers") =>
          Object.keys(channels).filter((each) => channels[each]?.[role].includes(name));
        return [name, { methods: { work: { callsPerStep: 1, takes: of("consumers"), puts: of("producers") } } }];
      }),
    ),
  };
  const plan: Plan = {
    mode: "hybrid",
    components: Object.fromEntries(
      components.map(({ ranks }, i) => [
        names[i],
        { ranks: ranks.map((device) => ({ devices: [`gpu:${device}`], node: "n" })) },
      ]),
    ),
    granularity: {
      default: "all",
      channels: Object.fromEntries(
        Object.entries(channels).map(([channel, { consumers }]) => [
          channel,
          components[names.indexOf(consumers[0] as string)]?.granularity ?? "all",
        ]),
      ),
    },
    maxStaleness,
    sharing: [],
    explanation: [],
  };
  const known = Object.entries(base.components).map(([name, component], i) => {
    return [name, { ...component, streams: components[i]!.streams }] as const;
  });
  return { profile: { ...base, graph, components: Object.fromEntries(known) }, plan };
}

/** How many ranks of a gang work beside each other on its fullest device; other ranks take turns. */
function beside({ gang, ranks }: RunSpec["components"][number]): number {
  if (!gang) return 1;
  return Math.max(...ranks.map((device) => ranks.filter((other) => other === device).length));
}

/** At most one way between any two components, whatever the direction of the channels. */
function isForest({ graph, components }: Profile): boolean {
  const parts = new Map(Object.keys(components).map((name) => [name, name]));
  const partOf = (name: string): string => (parts.get(name) === name ? name : partOf(parts.get(name) as string));
  return graph.edges.every(({ from, to }) => {
    const [a, b] = [partOf(from), partOf(to)];
    parts.set(a, b);
    return a !== b;
  });
}

test("two ways between the same components that fill crosswise come to a standstill, which says who waits for whom", () => {
  const one = { perItem: 1, ranks: [0], gang: false, streams: false, granularity: 1 } as const;
  const components = [
    { ...one, feeds: [1] },
    { ...one, feeds: [0, 1] },
    { ...one, feeds: [0], granularity: 3 },
    { ...one, feeds: [0], granularity: 2 },
  ].map((each) => ({ ...each, ranks: [...each.ranks] }));
  const { profile, plan } = build({ components, batch: 6, steps: 1, maxStaleness: 0, isTight: true, askSeconds: 0 });
  expect(isForest(profile)).toBe(false);
  const run = () => simulate({ profile, plan, steps: 1, seed: 1, capacity: 1 });
  expect(run).toThrow("this is a deadlock: 'c2/0' → 'c1/0' → 'c3/0' → 'c2/0'");
  expect(run).toThrow(expect.objectContaining({ code: "problem.invalid" }));
});

test("random flows on random ranks never come to a standstill, keep every invariant, and take a time that is possible", () => {
  fc.assert(
    fc.property(runSpec, (spec) => {
      const { profile, plan } = build(spec);
      const traits = Object.fromEntries(spec.components.map(({ gang }, i) => [`c${i}`, { gang }]));
      // Where two ways lead from one component to another, less than a step's items on one may keep the other waiting.
      const capacity = spec.isTight ? (isForest(profile) ? 1 : spec.batch) : undefined;
      const result = simulate({ profile, plan, steps: spec.steps, seed: 1, capacity, traits });
      expect(result.steps).toHaveLength(spec.steps);
      const work = spec.components.reduce((sum, { perItem }) => sum + perItem * spec.batch, 0) * spec.steps;
      const least =
        spec.components.reduce((sum, each) => sum + (each.perItem * spec.batch) / beside(each), 0) * spec.steps;
      if (spec.askSeconds === 0) {
        expect(result.totalSeconds).toBeGreaterThanOrEqual(least / numDevices - 1e-6);
        expect(result.totalSeconds).toBeLessThanOrEqual(work + 1e-6);
      }
      const sum = result.steps.reduce((total, { seconds }) => total + seconds, 0);
      expect(sum).toBeCloseTo(result.totalSeconds, 6);
    }),
    { numRuns: 300 },
  );
});
