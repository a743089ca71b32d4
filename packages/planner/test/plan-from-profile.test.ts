import { Plan, TreadleError } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { PlannedMode } from "../src/auto/laid-plans.ts";
import { layoutOf, planFromProfile, planProblemOf, resolvePlacement, solvePlan } from "../src/index.ts";
import { chainProfile, cluster } from "./synthetic-profile.ts";

const GiB = 2 ** 30;
const three = (names: readonly string[] = ["rollout", "inference", "actor"]) => names.map((name) => ({ name }));
const plain = { batch: 64, maxStaleness: 0 };

/** The devices that a component's ranks use, by index. */
const devicesOf = (plan: Plan, name: string): number[] =>
  plan.components[name]!.ranks.flatMap((rank) => rank.devices.map((id) => Number(id.split(":")[1])));

describe("the problem", () => {
  test("has exactly what was measured, and the fit elsewhere", () => {
    const profile = chainProfile({ rollout: { base: 3, perItem: 2, alpha: 0.8 }, actor: { perItem: 1 } });
    const { problem } = planProblemOf(profile, { devices: cluster(32), ...plain });
    const at = (devices: number, batch: number): number =>
      solvePlan({ devices, batch, nodes: [{ ...problem.nodes[0]!, minDevices: devices }] }).time!;
    expect(at(8, 64)).toBeCloseTo(3 + (2 * 64) / 8 ** 0.8, 9);
    expect(at(32, 64)).toBeCloseTo(3 + (2 * 64) / 32 ** 0.8, 9);
    expect(at(2, 8)).toBeCloseTo(3 + (2 * 8) / 2 ** 0.8, 9);
  });

  test("a fit is moved to where the measurements nearby are", () => {
    const profile = chainProfile({ a: { perItem: 1 }, b: { perItem: 1 } });
    for (const sample of profile.components.a!.samples) sample.seconds *= 1.5;
    const { problem } = planProblemOf(profile, { devices: cluster(16), ...plain });
    const { time } = solvePlan({ devices: 16, batch: 64, nodes: [problem.nodes[0]!] });
    expect(time!).toBeCloseTo((1.5 * 64) / 16, 6);
  });

  test("without a fit more devices bring nothing and fewer take as much longer, and the notes say so", () => {
    const profile = chainProfile({ a: { perItem: 1 }, b: { perItem: 1 } });
    const { a } = profile.components;
    profile.components.a = { ...a!, fit: null, samples: a!.samples.filter((s) => s.devices === 4 && s.items === 64) };
    const { problem, notes } = planProblemOf(profile, { devices: cluster(8), ...plain });
    const at = (devices: number): number => solvePlan({ devices, batch: 64, nodes: [problem.nodes[0]!] }).time!;
    expect([at(2), at(4), at(8)]).toEqual([32, 16, 16]);
    expect(notes.join()).toContain("'a' was not measured on more than 4 devices");
  });

  test("more ranks than there are items to take bring nothing, and a rest of items costs as much as a whole round", () => {
    const profile = chainProfile({ a: { perItem: 1 }, b: { perItem: 1 } });
    const { problem } = planProblemOf(profile, { devices: cluster(512), ...plain });
    const at = (name: number, devices: number): number =>
      solvePlan({ devices, batch: 64, nodes: [problem.nodes[name]!] }).time!;
    // The first takes 64 items, the second four for each of them.
    expect([at(0, 64), at(0, 512), at(0, 48)]).toEqual([1, 1, 2]);
    expect([at(1, 256), at(1, 512)]).toEqual([0.25, 0.25]);
  });

  test("ranks and their width bound the devices", () => {
    const profile = chainProfile({ a: { perItem: 1 }, b: { perItem: 1 } });
    const components = [{ name: "a", devicesPerRank: 4, ranks: { min: 1, max: 2 } }, { name: "b" }];
    const { problem } = planProblemOf(profile, { devices: cluster(32), ...plain, components });
    expect(problem.nodes[0]).toMatchObject({ unit: 4, minDevices: 4, maxDevices: 8 });
    expect(problem.nodes[1]).toMatchObject({ unit: 1, minDevices: 1, maxDevices: 32 });
  });
});

describe("the plan", () => {
  test("takes turns on all devices where everything scales and swaps are free", () => {
    const profile = chainProfile({ rollout: { perItem: 4 }, inference: { perItem: 1 }, actor: { perItem: 2 } });
    const { plan, predicted } = planFromProfile(profile, { devices: cluster(8), ...plain, components: three() });
    expect(Plan.parse(plan).mode).toBe("temporal");
    expect(predicted.stepSeconds).toBeCloseTo((64 * 7) / 8, 9);
    expect(plan.granularity).toEqual({ default: "all", channels: {} });
  });

  test("pipelines on disjoint devices where more devices do not help, in chunks of each channel's own items", () => {
    const costs = { base: 0, perItem: 1, alpha: 0 };
    const profile = chainProfile({ rollout: costs, inference: costs, actor: costs });
    const { plan, predicted, alternatives } = planFromProfile(profile, {
      devices: cluster(8),
      ...plain,
      components: three(),
    });
    expect(plan.mode).toBe("spatial");
    const sets = ["rollout", "inference", "actor"].map((name) => devicesOf(plan, name));
    expect(new Set(sets.flat()).size).toBe(sets.flat().length);
    expect(predicted.stepSeconds).toBeLessThan(0.5 * alternatives.find((a) => a.mode === "temporal")!.stepSeconds);
    const { channels } = plan.granularity;
    const items = (name: string): number => channels[name] as number;
    expect(items("input")).toBe(Math.ceil(1 / sets[0]!.length));
    // A channel of four responses a prompt carries four times the chunk, shared out among the ranks that take.
    expect(items("rollout-out")).toBe(Math.ceil(4 / sets[1]!.length));
  });

  test("serial seconds, and what steps take besides their components, are part of every prediction", () => {
    const costs = { perItem: 1, serialSeconds: 2 };
    const profile = { ...chainProfile({ a: costs, b: costs }), overheadSeconds: 1 };
    const without = chainProfile({ a: { perItem: 1 }, b: { perItem: 1 } });
    const options = { devices: cluster(4), ...plain, components: three(["a", "b"]) };
    const { predicted } = planFromProfile(profile, options);
    expect(predicted.serialSeconds).toBe(5);
    expect(predicted.stepSeconds).toBeCloseTo(planFromProfile(without, options).predicted.stepSeconds + 5, 9);
  });

  test("slots that share cores bring no more than the cores can do", () => {
    const costs = { perItem: 1, processorSeconds: 64 };
    const measured = chainProfile({ rollout: costs, actor: costs });
    const devices = cluster(8).map((device) => ({ ...device, kind: "cpu" }));
    const onSlots = (coresPerSlot?: number) =>
      planFromProfile(
        { ...measured, hardware: { ...measured.hardware, coresPerSlot } },
        { devices, batch: 64, maxStaleness: 0, components: [{ name: "rollout" }, { name: "actor" }] },
      );
    expect(onSlots(1).predicted.stepSeconds).toBe(onSlots().predicted.stepSeconds);
    const shared = onSlots(0.25); // two cores
    expect(shared.predicted.stepSeconds).toBeCloseTo(128 / 2);
    expect(shared.boundSeconds).toBeCloseTo(128 / 2);
    expect(shared.limits.join()).toContain("the cores, which slots share, need 64.0 s");
    // Everything is bounded alike: the order is that of the schedules.
    expect(shared.alternatives.map(({ mode }) => mode)).toEqual(onSlots().alternatives.map(({ mode }) => mode));
  });

  test("cores that one turn leaves idle are no help to the next", () => {
    const one = { perItem: 1, alpha: 0, maxDevices: 1, processorSeconds: 64 };
    const profile = chainProfile({ rollout: { perItem: 1, processorSeconds: 64 }, inference: one, actor: one });
    const devices = cluster(8).map((device) => ({ ...device, kind: "cpu" }));
    const components = [{ name: "rollout" }, ...["inference", "actor"].map((name) => ({ name, ranks: { max: 1 } }))];
    const { alternatives } = planFromProfile(
      { ...profile, hardware: { ...profile.hardware, coresPerSlot: 0.25 } }, // two cores
      { devices, batch: 64, maxStaleness: 0, components },
    );
    const [temporal] = alternatives.filter(({ mode }) => mode === "temporal");
    // The first keeps both cores busy for 32 s; each of the others one core for 64 s.
    expect(temporal?.stepSeconds).toBeCloseTo(32 + 64 + 64, 9);
    // Beside each other they cannot do more than two cores can.
    for (const { stepSeconds } of alternatives) expect(stepSeconds).toBeGreaterThanOrEqual((3 * 64) / 2);
  });

  test("what chunks cost besides their items keeps shared cores busy as well", () => {
    // On one slot 2 s a call and 1 s an item: a batch of 64 takes 66 s, in eight chunks 80.
    const one = { base: 2, perItem: 1, alpha: 0, maxDevices: 1, processorSeconds: 66 };
    const profile = chainProfile({ rollout: one, actor: one });
    const components = ["rollout", "actor"].map((name) => ({ name, ranks: { max: 1 } }));
    const devices = cluster(4).map((device) => ({ ...device, kind: "cpu" }));
    const onCores = (coresPerSlot: number) =>
      planFromProfile(
        { ...profile, hardware: { ...profile.hardware, coresPerSlot } },
        { devices, batch: 64, maxStaleness: 0, components },
      ).alternatives.find(({ mode }) => mode === "spatial");
    const plan = onCores(1);
    if (plan?.schedule.op !== "pipeline") throw new Error("two components side by side are a pipeline");
    const chunks = 64 / plan.schedule.chunk;
    expect(chunks).toBeGreaterThan(1);
    expect(onCores(0.25)?.stepSeconds, "on one core").toBeCloseTo(2 * (64 + 2 * chunks), 9);
  });

  test("turns cost their messages one after the other, components that own devices theirs side by side", () => {
    const both = (askSeconds: number) => {
      const profile = chainProfile({ rollout: { perItem: 1, askSeconds }, actor: { perItem: 1, askSeconds } });
      const components = [{ name: "rollout" }, { name: "actor" }];
      const { alternatives } = planFromProfile(profile, { devices: cluster(8), ...plain, components });
      return Object.fromEntries(alternatives.map(({ mode, stepSeconds }) => [mode, stepSeconds]));
    };
    const [without, withMessages] = [both(0), both(0.5)];
    expect(withMessages["temporal"]! - without["temporal"]!).toBeCloseTo(2 * 3 * 0.5, 9);
    expect(withMessages["spatial"]! - without["spatial"]!).toBeCloseTo(3 * 0.5, 9);
  });

  test("a plan whose devices hold all that is on them swaps nothing, though all components together would not fit", () => {
    const gibibytes = (count: number) => [{ devices: 1, bytesPerDevice: count * 2 ** 30 }];
    const one = { maxDevices: 1, alpha: 0, onloadSeconds: 5, offloadSeconds: 5 };
    const profile = chainProfile({
      left: { perItem: 0.1, ...one, memory: gibibytes(4) },
      right: { perItem: 0.1, ...one, memory: gibibytes(4) },
      actor: { perItem: 8, memory: gibibytes(3), onloadSeconds: 5, offloadSeconds: 5 },
    });
    const components = ["left", "right"].map((name) => ({ name, ranks: { max: 1 } }));
    const devices = cluster(8).map((device) => ({ ...device, memoryBytes: 8 * 2 ** 30 }));
    const options = { devices, ...plain, components: [...components, { name: "actor" }] };
    const { alternatives } = planFromProfile(profile, options);
    const apart = alternatives.find(
      ({ placement }) => placement["left"] !== placement["right"] && placement["actor"] === "0-7",
    );
    // Eight gigabytes on a device hold two of the three, and no device has more than two of them.
    expect(apart?.stepSeconds).toBeCloseTo(65 * 0.1 + (64 * 8) / 8, 9);
  });

  test("what a run would choose by what it has measured, or try first, comes first", () => {
    const profile = chainProfile({ rollout: { perItem: 1 }, actor: { perItem: 1 } });
    const options = { devices: cluster(8), ...plain, components: [{ name: "rollout" }, { name: "actor" }] };
    const { alternatives: predicted } = planFromProfile(profile, options);
    const [first, second] = predicted as [PlannedMode, PlannedMode];
    const step = ({ plan, mode }: PlannedMode, seconds: number) => {
      const { name: layout, devices, granularity } = layoutOf(plan);
      return { layout, mode, devices, granularity, seconds, deviation: 0.1, samples: 3 };
    };
    const known = { ...profile, steps: [step(first, 100), step(second, 50)] };
    const chosenBy = (trialTolerance?: number, steps = known.steps) =>
      planFromProfile({ ...known, steps }, { ...options, trialTolerance });
    const near = second.stepSeconds / first.stepSeconds - 1 + 1e-6;
    expect(chosenBy().alternatives.map(({ mode }) => mode)).toEqual(predicted.map(({ mode }) => mode));
    expect(chosenBy(near).plan.mode).toBe(second.mode);
    expect(chosenBy(near).alternatives[0]?.measured).toEqual({ seconds: 50, deviation: 0.1, samples: 3 });
    const firstTook = (seconds: number) => chosenBy(near / 2, [step(first, seconds)]).plan.mode;
    expect(firstTook(first.stepSeconds), "the other is too far from the best to be tried").toBe(first.mode);
    expect(firstTook(second.stepSeconds), "the other may be as fast").toBe(second.mode);
    const other = planFromProfile(known, { ...options, batch: 32, trialTolerance: 10 });
    expect(other.alternatives.map(({ measured }) => measured)).toEqual(other.alternatives.map(() => undefined));
  });

  test("who owns devices gets no more of them than its ranks can use", () => {
    const profile = chainProfile({ rollout: { perItem: 1 }, actor: { perItem: 1 } });
    const components = ["rollout", "actor"].map((name) => ({ name, ranks: { max: 2 } }));
    const { alternatives } = planFromProfile(profile, { devices: cluster(64), ...plain, components });
    const [spatial] = alternatives.filter(({ mode }) => mode === "spatial");
    const sizes = Object.values(spatial!.plan.components).map(({ ranks }) =>
      ranks.map(({ devices }) => devices.length),
    );
    expect(sizes).toEqual([
      [1, 1],
      [1, 1],
    ]);
  });

  test("whatever its ranks and memory, what fits alone can be planned: ranks that share a device need memory each", () => {
    const component = fc.record({
      perItem: fc.double({ min: 0.01, max: 4, noNaN: true }),
      base: fc.double({ min: 0, max: 4, noNaN: true }),
      alpha: fc.double({ min: -0.5, max: 1, noNaN: true }),
      ranks: fc.oneof(
        fc.record({ fixed: fc.integer({ min: 1, max: 6 }) }),
        fc.record({ min: fc.integer({ min: 1, max: 3 }), max: fc.integer({ min: 3, max: 8 }) }),
      ),
      gibibytes: fc.integer({ min: 0, max: 100 }),
      isDeclared: fc.boolean(),
    });
    fc.assert(
      fc.property(
        fc.array(component, { minLength: 1, maxLength: 4 }),
        fc.integer({ min: 1, max: 8 }),
        (drawn, numDevices) => {
          const named = drawn.map((each, i) => ({ ...each, name: `c${i}` }));
          const costs = named.map(({ name, perItem, base, alpha, gibibytes }) => {
            const memory = [1, 2, 4, 8].map((devices) => ({ devices, bytesPerDevice: gibibytes * GiB }));
            return [name, { perItem, base, alpha, memory, onloadSeconds: 0.1, offloadSeconds: 0.1 }] as const;
          });
          const components = named.map(({ name, ranks, isDeclared, gibibytes }) => ({
            name,
            ranks,
            ...(isDeclared ? { memoryBytesPerDevice: gibibytes * GiB } : {}),
          }));
          const fits = named.every(({ ranks, gibibytes }) => {
            const least = "fixed" in ranks ? ranks.fixed : ranks.min;
            return Math.ceil(least / numDevices) * gibibytes <= 100;
          });
          const devices = cluster(numDevices, "gpu", 100);
          const plan = () =>
            planFromProfile(chainProfile(Object.fromEntries(costs)), { devices, ...plain, components });
          if (fits) for (const { plan: found } of plan().alternatives) Plan.parse(found);
          else expect(plan).toThrow(/too little even when it is alone/);
        },
      ),
    );
  });

  test("wide ranks never cross nodes, whatever shares the others get", () => {
    const profile = chainProfile({
      sim: { base: 5, perItem: 1, alpha: 0.2 },
      policy: { perItem: 3 },
      actor: { perItem: 2 },
    });
    const components = [{ name: "sim" }, { name: "policy", devicesPerRank: 4 }, { name: "actor", devicesPerRank: 8 }];
    const { plan } = planFromProfile(profile, { devices: cluster(32), ...plain, components });
    for (const { ranks } of Object.values(plan.components)) {
      for (const { devices } of ranks) {
        expect(new Set(devices.map((id) => Math.floor(Number(id.split(":")[1]) / 8))).size).toBe(1);
      }
    }
  });

  test("every alternative is a plan that can run, the fastest first", () => {
    const profile = chainProfile({
      rollout: { base: 6, perItem: 10, alpha: 0.6, offloadSeconds: 2 },
      inference: { perItem: 2 },
      actor: { perItem: 3, onloadSeconds: 3 },
    });
    const { alternatives, predicted, plan } = planFromProfile(profile, {
      devices: cluster(16),
      ...plain,
      components: three(),
    });
    expect(alternatives.length).toBeGreaterThan(1);
    expect(alternatives[0]!.stepSeconds).toBe(predicted.stepSeconds);
    expect(alternatives[0]!.mode).toBe(plan.mode);
    for (const [i, alternative] of alternatives.entries()) {
      Plan.parse(alternative.plan);
      if (i > 0) expect(alternative.stepSeconds).toBeGreaterThanOrEqual(alternatives[i - 1]!.stepSeconds);
    }
  });
});

describe("devices that not everyone can use", () => {
  const embodied = () => {
    const profile = chainProfile({
      simulator: { base: 1, perItem: 1, alpha: 0.9, deviceKind: "cpu" },
      policy: { perItem: 2, deviceKind: "gpu" },
      actor: { perItem: 3, deviceKind: "gpu", onloadSeconds: 1, offloadSeconds: 1 },
    });
    profile.graph.edges.push({
      from: "policy",
      to: "simulator",
      channel: "actions",
      itemsPerStep: 64,
      bytesPerStep: 0,
    });
    return profile;
  };
  const devices = [...cluster(8, "cpu"), ...cluster(8, "gpu")];

  test("components of different kinds are never put together, and each kind is split by itself", () => {
    const { plan, alternatives } = planFromProfile(embodied(), {
      devices,
      ...plain,
      components: three(["simulator", "policy", "actor"]),
    });
    for (const alternative of [...alternatives.map((a) => a.plan), plan]) {
      const ids = (name: string): string[] => alternative.components[name]!.ranks.flatMap((rank) => rank.devices);
      expect(ids("simulator").every((id) => id.startsWith("cpu:"))).toBe(true);
      expect([...ids("policy"), ...ids("actor")].every((id) => id.startsWith("gpu:"))).toBe(true);
    }
    expect(devicesOf(plan, "simulator")).toHaveLength(8);
  });

  test("pinned components get exactly their devices, and nobody else does", () => {
    const profile = chainProfile({ rollout: { perItem: 4 }, inference: { perItem: 1 }, actor: { perItem: 2 } });
    const options = { devices: cluster(8), ...plain, components: three(), pinned: { rollout: "2-4" } };
    const { plan } = planFromProfile(profile, options);
    expect(devicesOf(plan, "rollout")).toEqual([2, 3, 4]);
    for (const name of ["inference", "actor"]) {
      expect(devicesOf(plan, name).length).toBeGreaterThan(0);
      expect(devicesOf(plan, name).filter((index) => index >= 2 && index <= 4)).toEqual([]);
    }
    const all = planFromProfile(profile, { ...options, pinned: { "rollout,actor": "0-3", inference: "4-7" } }).plan;
    expect([devicesOf(all, "rollout"), devicesOf(all, "actor"), devicesOf(all, "inference")]).toEqual([
      [0, 1, 2, 3],
      [0, 1, 2, 3],
      [4, 5, 6, 7],
    ]);
    expect(all.sharing.map((group) => group.components)).toEqual([["rollout", "actor"]]);
  });

  test.each([
    [{ rollot: "0" }, "placement.invalid", "names component 'rollot'"],
    [{ rollout: "0-9" }, "placement.invalid", "names device 9"],
    [{ rollout: "0-3", actor: "2-5" }, "placement.impossible", "overlap on 'gpu:2'"],
    [{ rollout: "all" }, "placement.impossible", "leave no 'gpu' device for 'inference', 'actor'"],
  ])("pins %j are refused", (pinned, code, message) => {
    const profile = chainProfile({ rollout: { perItem: 4 }, inference: { perItem: 1 }, actor: { perItem: 2 } });
    try {
      planFromProfile(profile, { devices: cluster(8), ...plain, components: three(), pinned: pinned as never });
      expect.unreachable();
    } catch (error) {
      if (!(error instanceof TreadleError)) throw error;
      expect(error.message).toContain(message);
      expect(error.code).toBe(code);
    }
  });
});

describe("bad input", () => {
  const profile = chainProfile({ a: { perItem: 1 }, b: { perItem: 1 } });
  const options = { devices: cluster(4), ...plain, components: three(["a", "b"]) };
  const withA = (change: object) => ({
    ...profile,
    components: { ...profile.components, a: { ...profile.components.a!, ...change } },
  });
  const sample = profile.components.a!.samples[0]!;

  test.each([
    [
      withA({ samples: [] }),
      {},
      "problem.invalid",
      "component 'a' has no samples; measure again with 'treadle profile w'",
    ],
    [
      withA({ samples: [{ ...sample, seconds: -1 }] }),
      {},
      "problem.invalid",
      "components.a.samples.0.seconds: '-1' is not allowed",
    ],
    [withA({ onloadSeconds: Number.NaN }), {}, "problem.invalid", "components.a.onloadSeconds: 'NaN' is not allowed"],
    [profile, { components: three(["a", "c"]) }, "problem.invalid", "is of 'a', 'b' and does not know 'c'"],
    [profile, { components: three(["a"]) }, "problem.invalid", "knows 'b', which the workflow does not launch"],
    [
      { ...profile, components: { ...profile.components, c: profile.components.a! } },
      {},
      "problem.invalid",
      "'c' is measured but not in the flow graph of 'a', 'b'",
    ],
    [
      { ...profile, graph: { ...profile.graph, edges: [] } },
      {},
      "problem.invalid",
      "has no edges, but channel 'a-out' leads from 'a' to 'b'",
    ],
    [profile, { batch: 0 }, "problem.invalid", "batch '0' is not allowed"],
    [withA({ devicesPerRank: 8 }), {}, "placement.impossible", "'a' spans 8 devices a rank, but there are only 4"],
    [withA({ devicesPerRank: 16 }), { devices: cluster(32) }, "placement.impossible", "no node has more than 8 for it"],
    [
      withA({
        memory: [
          { devices: 1, bytesPerDevice: 640 * GiB },
          { devices: 2, bytesPerDevice: 320 * GiB },
        ],
      }),
      {},
      "placement.impossible",
      "component 'a' needs 160 GiB on each of 4 devices, which have 80 GiB: 80 GiB too little even when it is alone; it would fit on 8 devices",
    ],
    [
      withA({ memory: [{ devices: 4, bytesPerDevice: 90 * GiB }] }),
      {},
      "placement.impossible",
      "10 GiB too little even when it is alone; no number of devices makes it fit",
    ],
  ])("%# is refused with what would help", (wrong, change, code, message) => {
    try {
      planFromProfile(wrong as typeof profile, { ...options, ...change });
      expect.unreachable();
    } catch (error) {
      if (!(error instanceof TreadleError)) throw error;
      expect(error.message).toContain(message);
      expect(error.code).toBe(code);
    }
  });
});

test("components that no channel connects are planned, be they two or three", () => {
  for (const names of [
    ["a", "b"],
    ["a", "b", "c"],
  ]) {
    const profile = chainProfile(Object.fromEntries(names.map((name) => [name, { perItem: 1 }])));
    const channels = Object.fromEntries(
      names.map((name) => [`to-${name}`, { producers: [], consumers: [name], itemsPerStep: 64, bytesPerStep: 0 }]),
    );
    const flowing = Object.fromEntries(
      names.map((name) => [name, { methods: { work: { callsPerStep: 1, takes: [`to-${name}`], puts: [] } } }]),
    );
    const graph = { ...profile.graph, components: flowing, channels, edges: [] };
    const components = names.map((name) => ({ name }));
    const target = { devices: cluster(4), batch: 64, maxStaleness: 0, components };
    const { alternatives } = planFromProfile({ ...profile, graph }, target);
    // Side by side each has fewer devices, and for as long.
    expect(alternatives[0]?.stepSeconds).toBeCloseTo((64 * names.length) / 4);
    expect(alternatives.map(({ mode }) => mode)).toEqual(expect.arrayContaining(["temporal", "spatial"]));
  }
});

test("a cycle passes nothing on before its end, so nothing overlaps with it", () => {
  const measured = chainProfile({ simulator: { perItem: 1 }, policy: { perItem: 1 }, actor: { perItem: 1 } });
  const back = { from: "policy", to: "simulator", channel: "actions", itemsPerStep: 64, bytesPerStep: 0 };
  const profile = {
    ...measured,
    graph: { ...measured.graph, edges: [...measured.graph.edges, back], cycles: [["simulator", "policy"]] },
  };
  const devices = cluster(3);
  const components = Object.keys(profile.components).map((name) => ({ name, ranks: { fixed: 1 } }));
  const { predicted } = planFromProfile(profile, { devices, batch: 64, maxStaleness: 0, components });
  expect(predicted.stepSeconds).toBeCloseTo(3 * 64, 6);
});

describe("what a schedule becomes on devices", () => {
  const onNodes = (nodes: number, each: number) =>
    cluster(nodes * each).map((device) => ({ ...device, node: `n${Math.floor(device.index / each)}` }));

  test("a mode whose ranks do not fit the nodes is left out, and said to be", () => {
    const profile = chainProfile(
      { rollout: { perItem: 3, devicesPerRank: 2 }, reward: { perItem: 1 }, actor: { perItem: 2, devicesPerRank: 2 } },
      24,
    );
    const components = [
      { name: "rollout", devicesPerRank: 2 },
      { name: "reward" },
      { name: "actor", devicesPerRank: 2 },
    ];
    const found = planFromProfile(profile, { devices: onNodes(2, 3), batch: 24, maxStaleness: 0, components });
    expect(found.alternatives.map(({ mode }) => mode)).toContain("temporal");
    expect(found.explanation.join()).toContain("the spatial schedule cannot be laid out: component 'actor' needs 2");
  });

  test("there is a plan wherever a named mode has one, whatever nodes and ranks are like", () => {
    const names = ["a", "b", "c"];
    const rank = fc.constantFrom(1, 1, 2, 3);
    fc.assert(
      fc.property(
        fc.array(fc.record({ width: rank, perItem: fc.integer({ min: 1, max: 5 }), alpha: fc.constantFrom(1, 0.5) }), {
          minLength: 3,
          maxLength: 3,
        }),
        fc.integer({ min: 1, max: 3 }),
        fc.integer({ min: 2, max: 5 }),
        (drawn, nodes, each) => {
          const components = names.map((name, i) => ({ name, devicesPerRank: drawn[i]!.width }));
          const devices = onNodes(nodes, each);
          const isPossible = (["temporal", "spatial", "hybrid"] as const).some((mode) => {
            try {
              resolvePlacement({ mode, components, devices, maxStaleness: 0, batchItems: 24 });
              return true;
            } catch {
              return false;
            }
          });
          if (!isPossible) return;
          const costs = names.map((name, i) => {
            const { width, ...cost } = drawn[i]!;
            return [name, { ...cost, devicesPerRank: width }] as const;
          });
          const profile = chainProfile(Object.fromEntries(costs), 24);
          const found = planFromProfile(profile, { devices, batch: 24, maxStaleness: 0, components });
          expect(found.alternatives.length).toBeGreaterThan(0);
        },
      ),
      { numRuns: 150 },
    );
  });

  test("turns are on all devices, also of a component that is faster on fewer, which is a hybrid beside them", () => {
    const profile = chainProfile({ rollout: { perItem: 3 }, reward: { perItem: 1, alpha: 0 } }, 24);
    const asked = { devices: cluster(5), batch: 24, maxStaleness: 0, components: three(["rollout", "reward"]) };
    const only = planFromProfile(profile, { ...asked, wishes: { modes: ["temporal"] } });
    expect(only.plan.mode).toBe("temporal");
    expect([devicesOf(only.plan, "rollout").length, devicesOf(only.plan, "reward").length]).toEqual([5, 5]);
    const { alternatives } = planFromProfile(profile, asked);
    expect(alternatives.map(({ mode }) => mode).sort()).toEqual(["hybrid", "spatial", "temporal"]);
  });

  test("devices of a kind that no component runs on are not idle, and idle ones are named with their kind", () => {
    const profile = chainProfile({ rollout: { perItem: 3 }, actor: { perItem: 2 } }, 64);
    const processors = cluster(16, "cpu").map((device) => ({ ...device, index: device.index + 8 }));
    const devices = [...cluster(8), ...processors];
    const asked = { devices, maxStaleness: 0, wishes: { useAllDevices: true } };
    const components = ["rollout", "actor"].map((name) => ({ name, deviceKind: "gpu" }));
    expect(planFromProfile(profile, { ...asked, batch: 64, components }).plan.mode).toBe("temporal");
    const narrow = components.map((component) => ({ ...component, devicesPerRank: 1, ranks: { max: 2 } }));
    const placed = () => resolvePlacement({ ...asked, mode: "temporal", components: narrow });
    expect(placed).toThrow(/it leaves gpu 2-7 idle/);
  });
});

test("the explanation is of the plan that is chosen, and no plan is below its bound", () => {
  const cost = fc.record({
    base: fc.integer({ min: 0, max: 3 }),
    perItem: fc.integer({ min: 1, max: 5 }),
    alpha: fc.constantFrom(1, 0.8, 0.4, 0),
    onloadSeconds: fc.constantFrom(0, 0.5),
    most: fc.constantFrom(undefined, undefined, 1, 2, 3),
  });
  const drawn = fc.array(cost, { minLength: 3, maxLength: 3 });
  fc.assert(
    fc.property(drawn, fc.integer({ min: 3, max: 10 }), fc.integer({ min: 1, max: 5 }), (costs, count, eighths) => {
      const batch = 8 * eighths;
      const names = ["a", "b", "c"];
      const ofEach = names.map((name, i) => {
        const { most: _, ...own } = costs[i]!;
        return [name, own] as const;
      });
      const profile = chainProfile(Object.fromEntries(ofEach), batch);
      const components = names.map((name, i) => {
        const { most } = costs[i]!;
        return { name, devicesPerRank: 1, ...(most === undefined ? {} : { ranks: { max: most } }) };
      });
      const found = planFromProfile(profile, { devices: cluster(count), batch, maxStaleness: 0, components });
      expect(found.explanation[0]).toMatch(new RegExp(`^${found.plan.mode}: `));
      expect(found.boundSeconds).toBeLessThanOrEqual(found.predicted.stepSeconds);
      for (const { stepSeconds, boundSeconds, movedFromSeconds, refinedFromSeconds } of found.alternatives) {
        expect(boundSeconds).toBeLessThanOrEqual(stepSeconds);
        const fromSeconds = movedFromSeconds ?? refinedFromSeconds;
        // What was moved or refined is bounded by the work alone, what was searched for by the search.
        if (fromSeconds === undefined) expect(boundSeconds).toBeGreaterThanOrEqual(found.boundSeconds);
        else expect(stepSeconds).toBeLessThan(fromSeconds);
      }
    }),
    { numRuns: 60 },
  );
});
