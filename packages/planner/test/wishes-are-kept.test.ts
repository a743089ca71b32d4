/** Every plan of every mode is held against every wish, by one that knows nothing of how plans are found. */
import { PlacementMode, type PlacementWishes, type Plan, TreadleError } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";
import { checkWishes, planFromProfile, resolvePlacement } from "../src/index.ts";
import { chainProfile, cluster } from "./synthetic-profile.ts";

const names = ["a", "b", "c"] as const;
const components = names.map((name) => ({ name }));
const pair = fc.uniqueArray(fc.constantFrom(...names), { minLength: 2, maxLength: 2 });
const most = fc.option(fc.integer({ min: 1, max: 2 }), { nil: undefined });
const drawn = fc.record({
  numDevices: fc.integer({ min: 1, max: 5 }),
  free: fc.uniqueArray(fc.integer({ min: 0, max: 4 }), { maxLength: 2 }),
  modes: fc.option(fc.uniqueArray(fc.constantFrom(...PlacementMode.options), { minLength: 1, maxLength: 3 }), {
    nil: undefined,
  }),
  useAllDevices: fc.boolean(),
  maxRanks: fc.record({ a: most, b: most, c: most }),
  together: fc.array(pair, { maxLength: 1 }),
  apart: fc.array(pair, { maxLength: 2 }),
  perItem: fc.array(fc.integer({ min: 1, max: 9 }), { minLength: 3, maxLength: 3 }),
});
type Drawn = typeof drawn extends fc.Arbitrary<infer T> ? T : never;

function wishesOf({ numDevices, free, maxRanks, ...others }: Drawn): PlacementWishes {
  const kept = free.filter((index) => index < numDevices);
  const limits = Object.entries(maxRanks).filter(([, count]) => count !== undefined) as [string, number][];
  const { modes, useAllDevices, together, apart } = others;
  return {
    ...{ useAllDevices, together, apart, maxRanks: Object.fromEntries(limits) },
    ...(modes === undefined ? {} : { modes }),
    ...(kept.length === 0 ? {} : { freeDevices: kept.join(",") }),
  };
}

type Sets = Readonly<Record<string, readonly number[]>>;

/** A sentence of what is not kept; `sets`: devices of each component by number. */
function missed(sets: Sets, mode: PlacementMode, { numDevices, free, ...wanted }: Drawn): string[] {
  const used = new Set(Object.values(sets).flat());
  const share = (a: string, b: string) => sets[a]!.some((device) => sets[b]!.includes(device));
  const isWithin = (a: string, b: string) => sets[a]!.every((device) => sets[b]!.includes(device));
  const usable = Array.from({ length: numDevices }, (_, i) => i).filter((index) => !free.includes(index));
  return [
    ...free.filter((index) => used.has(index)).map((index) => `${index} is not free`),
    ...names.filter((name) => sets[name]!.length > (wanted.maxRanks[name] ?? 99)).map((name) => `${name} has too many`),
    ...wanted.apart.filter(([a, b]) => share(a!, b!)).map((group) => `${group} share`),
    ...wanted.together
      .filter(([a, b]) => !isWithin(a!, b!) && !isWithin(b!, a!))
      .map((group) => `${group} do not share`),
    ...(wanted.useAllDevices ? usable.filter((index) => !used.has(index)).map((index) => `${index} is idle`) : []),
    ...(wanted.modes === undefined || wanted.modes.includes(mode) ? [] : [`it is ${mode}`]),
  ];
}

const setsOf = (plan: Plan): Sets =>
  Object.fromEntries(
    names.map((name) => [
      name,
      plan.components[name]!.ranks.flatMap(({ devices }) => devices.map((id) => Number(id.split(":")[1]))),
    ]),
  );

/** All ways in which a chain of three shares so many devices: turns of all, rows of parts, and both at once. */
function* layouts(
  numDevices: number,
): Generator<readonly [PlacementMode, Readonly<Record<string, readonly [number, number]>>]> {
  const all = [0, numDevices] as const;
  yield ["temporal", { a: all, b: all, c: all }];
  for (let first = 1; first < numDevices; first++) {
    const [left, right] = [[0, first] as const, [first, numDevices] as const];
    yield ["hybrid", { a: left, b: right, c: right }];
    yield ["hybrid", { a: left, b: left, c: right }];
    yield ["hybrid", { a: left, b: right, c: left }];
    yield ["hybrid", { a: all, b: left, c: right }];
    yield ["hybrid", { a: left, b: right, c: all }];
    for (let second = first + 1; second < numDevices; second++)
      yield ["spatial", { a: left, b: [first, second], c: [second, numDevices] }];
  }
}

/** Whether one of them keeps all wishes, with as many ranks of one device as each component may have. */
function isPossible(all: Drawn): boolean {
  const usable = Array.from({ length: all.numDevices }, (_, i) => i).filter((index) => !all.free.includes(index));
  if (usable.length === 0) return false;
  return [...layouts(usable.length)].some(([mode, ranges]) => {
    const sets = names.map((name) => {
      const [from, to] = ranges[name]!;
      return [name, usable.slice(from, Math.min(to, from + (all.maxRanks[name] ?? 99)))] as const;
    });
    // Who takes turns with whom is judged by the devices of the turn, however few of them ranks fill.
    const isSame = ([x, y]: readonly string[]) => ranges[x!]!.join() === ranges[y!]!.join();
    const isDisjoint = ([x, y]: readonly string[]) =>
      ranges[x!]![1] <= ranges[y!]![0] || ranges[y!]![1] <= ranges[x!]![0];
    const isTogether = all.together.every(isSame) && all.apart.every(isDisjoint);
    return isTogether && missed(Object.fromEntries(sets), mode, all).length === 0;
  });
}

test("by every plan from a profile, and where none is made, none is possible", () => {
  let refused = 0;
  fc.assert(
    fc.property(drawn, (all) => {
      const costs = names.map((name, i) => [name, { perItem: all.perItem[i]! }] as const);
      const profile = chainProfile(Object.fromEntries(costs), 64);
      const asked = { devices: cluster(all.numDevices), batch: 64, maxStaleness: 0, components, wishes: wishesOf(all) };
      try {
        const { plan, alternatives } = planFromProfile(profile, asked);
        for (const each of [plan, ...alternatives.map((one) => one.plan)])
          expect(missed(setsOf(each), each.mode, all)).toEqual([]);
        expect(isPossible(all)).toBe(true);
      } catch (error) {
        if (!(error instanceof TreadleError)) throw error;
        refused++;
        expect(error.message.length).toBeGreaterThan(30);
        expect(isPossible(all)).toBe(false);
      }
    }),
    { numRuns: 150 },
  );
  expect(refused).toBeLessThan(145);
});

test("by every plan that a mode makes of itself, or it is refused with the reason", () => {
  fc.assert(
    fc.property(drawn, fc.constantFrom(...PlacementMode.options), (all, mode) => {
      try {
        const devices = cluster(all.numDevices);
        const plan = resolvePlacement({ mode, components, devices, maxStaleness: 0, wishes: wishesOf(all) });
        expect(missed(setsOf(plan), mode, all)).toEqual([]);
      } catch (error) {
        if (!(error instanceof TreadleError)) throw error;
        expect(error.code).toMatch(/^placement\.(invalid|impossible)$/);
        const nearest = error.details["nearest"] as
          | { mode: PlacementMode; components: Record<string, string> }
          | undefined;
        if (!nearest) return;
        const { modes: _, ...others } = wishesOf(all);
        const remedy = { mode: nearest.mode, explicit: nearest.components, devices: cluster(all.numDevices) };
        const plan = resolvePlacement({ ...remedy, components, maxStaleness: 0, wishes: others });
        expect(missed(setsOf(plan), nearest.mode, all)).toEqual([]);
      }
    }),
    { numRuns: 400 },
  );
});

test("by ranks that span several devices, on nodes that those do not divide", () => {
  const wide = fc.record({
    perNode: fc.integer({ min: 2, max: 5 }),
    numDevices: fc.integer({ min: 2, max: 9 }),
    widths: fc.array(fc.constantFrom(1, 2, 2, 3), { minLength: 3, maxLength: 3 }),
    base: fc.array(fc.integer({ min: 0, max: 3 }), { minLength: 3, maxLength: 3 }),
    perItem: fc.array(fc.integer({ min: 1, max: 9 }), { minLength: 3, maxLength: 3 }),
    alpha: fc.constantFrom(1, 0.5, 0),
    gigabytes: fc.constantFrom(0, 30, 120),
    maxRanks: fc.option(fc.constantFrom(1, 2), { nil: undefined }),
  });
  let planned = 0;
  fc.assert(
    fc.property(wide, ({ perNode, numDevices, widths, base, perItem, alpha, gigabytes, maxRanks }) => {
      const devices = cluster(numDevices).map((one, i) => ({ ...one, node: `n${Math.floor(i / perNode)}` }));
      const memory = [{ devices: 1, bytesPerDevice: gigabytes * 2 ** 30 }];
      const costs = names.map((name, i) => {
        const unit = { devicesPerRank: widths[i]!, ...(i === 0 && gigabytes > 0 ? { memory } : {}) };
        return [name, { base: base[i]!, perItem: perItem[i]!, alpha, ...unit }] as const;
      });
      const asked = {
        ...{ devices, batch: 64, maxStaleness: 0 },
        components: names.map((name, i) => ({ name, devicesPerRank: widths[i]! })),
        wishes: { useAllDevices: true, ...(maxRanks === undefined ? {} : { maxRanks: { a: maxRanks } }) },
      };
      try {
        const { alternatives } = planFromProfile(chainProfile(Object.fromEntries(costs), 64), asked);
        for (const { plan } of alternatives)
          expect(new Set(Object.values(setsOf(plan)).flat()).size, JSON.stringify(setsOf(plan))).toBe(numDevices);
        planned++;
      } catch (error) {
        if (!(error instanceof TreadleError)) throw error;
        expect(error.code).toBe("placement.impossible");
      }
    }),
    { numRuns: 40 },
  );
  expect(planned).toBeGreaterThan(5);
});

/** All runs of devices of one kind, in the grammar of `placement.components`. */
const runsOf = (from: number, to: number): string[] =>
  Array.from({ length: to - from }, (_, i) => from + i).flatMap((first) =>
    Array.from({ length: to - first }, (_, i) => (i === 0 ? `${first}` : `${first}-${first + i}`)),
  );

test("of modes: what is refused before anything is measured nobody can write, and what passes is planned", () => {
  const drawnKinds = fc.record({
    gpus: fc.integer({ min: 1, max: 3 }),
    cpus: fc.integer({ min: 0, max: 2 }),
    onCpu: fc.array(fc.boolean(), { minLength: 3, maxLength: 3 }),
    numComponents: fc.integer({ min: 2, max: 3 }),
    modes: fc.uniqueArray(fc.constantFrom(...PlacementMode.options), { minLength: 1, maxLength: 2 }),
    perItem: fc.array(fc.integer({ min: 1, max: 9 }), { minLength: 3, maxLength: 3 }),
  });
  const counts = { refused: 0, planned: 0 };
  fc.assert(
    fc.property(drawnKinds, ({ gpus, cpus, onCpu, numComponents, modes, perItem }) => {
      const used = names.slice(0, numComponents);
      const processors = cluster(cpus, "cpu").map((one, i) => ({ ...one, id: `cpu:${gpus + i}`, index: gpus + i }));
      const kindOf = (i: number) => (cpus > 0 && onCpu[i] ? "cpu" : "gpu");
      const asked = {
        ...{ devices: [...cluster(gpus), ...processors], wishes: { modes } },
        components: used.map((name, i) => ({ name, deviceKind: kindOf(i) })),
      };
      const costs = used.map((name, i) => [name, { perItem: perItem[i]! }] as const);
      let placements: Record<string, string>[] = [{}];
      for (const [i, name] of used.entries()) {
        const runs = kindOf(i) === "gpu" ? runsOf(0, gpus) : runsOf(gpus, gpus + cpus);
        placements = placements.flatMap((before) => runs.map((run) => ({ ...before, [name]: run })));
      }
      const isWritten = placements.some((explicit) =>
        modes.some((mode) => isKept(() => resolvePlacement({ ...asked, mode, explicit, maxStaleness: 0 }))),
      );
      expect(isKept(() => checkWishes(asked))).toBe(isWritten);
      counts[isWritten ? "planned" : "refused"]++;
      if (!isWritten) return;
      const { alternatives } = planFromProfile(chainProfile(Object.fromEntries(costs), 64), {
        ...{ ...asked, batch: 64, maxStaleness: 0 },
      });
      for (const { mode, plan } of alternatives) {
        expect(modes).toContain(mode);
        expect(plan.mode).toBe(mode);
      }
    }),
    { numRuns: 60 },
  );
  expect(counts.refused).toBeGreaterThan(3);
  expect(counts.planned).toBeGreaterThan(3);
});

function isKept(ask: () => unknown): boolean {
  try {
    ask();
    return true;
  } catch (error) {
    if (!(error instanceof TreadleError) || error.code !== "placement.impossible") throw error;
    return false;
  }
}

test("to use all devices: by turns on all of them, also where those of a component take less on fewer", () => {
  const wide = { perItem: 0.01, base: 1, alpha: 0, devicesPerRank: 2 };
  const profile = chainProfile({ a: { perItem: 2, alpha: 0.8 }, b: wide }, 16);
  const asked = {
    ...{ devices: cluster(5), batch: 16, maxStaleness: 0 },
    components: [{ name: "a" }, { name: "b", devicesPerRank: 2 }],
  };
  const { plan, alternatives } = planFromProfile(profile, {
    ...asked,
    wishes: { modes: ["temporal"], useAllDevices: true },
  });
  expect(plan.components["a"]!.ranks).toHaveLength(5);
  expect(alternatives.map(({ proven }) => proven)).toEqual([false]);
  // Limits of ranks are no matter of costs.
  const few = { modes: ["temporal" as const], useAllDevices: true, maxRanks: { a: 3, b: 2 } };
  expect(() => planFromProfile(profile, { ...asked, wishes: few })).toThrow(
    /no plan is possible: .*1 of 5 devices.*let devices be idle \(useAllDevices\)/,
  );
  const called = {
    ...asked,
    components: asked.components.map((each) => (each.name === "a" ? { ...each, name: "useAll" } : each)),
  };
  const named = chainProfile({ useAll: { perItem: 2 }, b: wide }, 16);
  expect(() => planFromProfile(named, { ...called, wishes: { ...few, maxRanks: { useAll: 3, b: 2 } } })).toThrow(
    /give 'useAll' more than '3' ranks \(maxRanks\)/,
  );
});

test("to be together: beside one between them, where that is faster than turns of all", () => {
  const costs = { a: { perItem: 1 }, b: { perItem: 8, alpha: 0 }, c: { perItem: 1, alpha: 0 } };
  const profile = chainProfile(costs, 64);
  const asked = { devices: cluster(3), batch: 64, maxStaleness: 0, components };
  const wishes: PlacementWishes = { together: [["a", "c"]] };
  const { plan, predicted, alternatives, missing, explanation } = planFromProfile(profile, { ...asked, wishes });
  expect(plan.mode).toBe("hybrid");
  const turns = alternatives.find(({ mode }) => mode === "temporal")!;
  expect(predicted.stepSeconds).toBeLessThan(turns.stepSeconds * 0.99);
  const byHand = planFromProfile(profile, { ...asked, pinned: { "a,c": "0", b: "1" } });
  expect(predicted.stepSeconds).toBeLessThanOrEqual(byHand.predicted.stepSeconds * (1 + 1e-9));
  expect(alternatives[0]).toMatchObject({ proven: false });
  expect(alternatives[0]!.boundSeconds).toBeGreaterThan(0);
  expect(explanation.join()).toContain("'a' and 'c' were pinned to the same devices, of which some numbers were tried");
  expect(missing.map(({ mode }) => mode)).toEqual(["spatial"]);
});

test("to use all devices of two kinds: what one component may not use goes to another one of its kind", () => {
  const gpus = cluster(4);
  const cpus = cluster(3, "cpu").map((device, i) => ({ ...device, id: `cpu:${4 + i}`, index: 4 + i }));
  const kinds = { rollout: "gpu", sim: "cpu", env: "cpu", actor: "gpu" } as const;
  const profile = chainProfile(
    { rollout: { perItem: 3 }, sim: { perItem: 1 }, env: { perItem: 2 }, actor: { perItem: 2 } },
    64,
  );
  const asked = {
    ...{ devices: [...gpus, ...cpus], batch: 64, maxStaleness: 0 },
    components: Object.entries(kinds).map(([name, deviceKind]) => ({ name, deviceKind })),
  };
  const wishes = (sim: number, env: number): PlacementWishes => ({ useAllDevices: true, maxRanks: { sim, env } });
  const { plan, predicted } = planFromProfile(profile, { ...asked, wishes: wishes(2, 1) });
  const usedBy = (name: string) => plan.components[name]!.ranks.flatMap(({ devices }) => devices);
  expect(usedBy("sim")).toHaveLength(2);
  expect(new Set([...usedBy("sim"), ...usedBy("env")]).size).toBe(3);
  const pinned = { sim: "4-5", env: "6" };
  const byHand = planFromProfile(profile, { ...asked, wishes: wishes(2, 1), pinned });
  expect(predicted.stepSeconds).toBeLessThanOrEqual(byHand.predicted.stepSeconds * (1 + 1e-9));
  expect(() => planFromProfile(profile, { ...asked, wishes: wishes(1, 1) })).toThrow(
    /no plan is possible: .*1 of 3 devices of pool 'cpu' idle.*give 'sim' more than '1' ranks.*let devices be idle/,
  );
});
