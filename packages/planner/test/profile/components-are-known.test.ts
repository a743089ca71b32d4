import type { FlowGraph, Profile } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { knownComponents, knownIn, withKnown } from "../../src/profile/known-components.ts";
import { planProbes } from "../../src/profile/profile-probes.ts";

const chain = (names: readonly string[], batch: number): FlowGraph => ({
  batch,
  components: Object.fromEntries(
    names.map((name, i) => [
      name,
      { methods: { flow: { callsPerStep: 1, takes: [`to-${i}`], puts: names[i + 1] ? [`to-${i + 1}`] : [] } } },
    ]),
  ),
  channels: Object.fromEntries(
    names.map((name, i) => [
      `to-${i}`,
      { producers: i > 0 ? [names[i - 1]!] : [], consumers: [name], itemsPerStep: batch, bytesPerStep: 0 },
    ]),
  ),
  edges: names
    .slice(1)
    .map((to, i) => ({ from: names[i]!, to, channel: `to-${i + 1}`, itemsPerStep: batch, bytesPerStep: 0 })),
  calls: [],
  cycles: [],
});

const componentOf = (key: string, seconds: number) => ({
  key,
  devicesPerRank: 1,
  minDevices: 1,
  maxDevices: 4,
  samples: [
    { devices: 4, items: 8, seconds, spread: 0, accepted: 3, rejected: 0, contended: false, processorShare: 0 },
  ],
  fit: { base: 0, perItem: seconds / 2, alpha: 1, relativeError: 0 },
  memory: [],
  onloadSeconds: 0,
  offloadSeconds: 0,
  serialSeconds: seconds,
});

const profileOf = (
  workflow: string,
  keys: Record<string, string>,
  seconds: number,
  createdAt = "2026-01-01",
): Profile =>
  ({
    version: 1,
    workflow,
    createdAt,
    hardware: { key: "machine", description: "" },
    graph: chain(Object.keys(keys), 8),
    components: Object.fromEntries(Object.entries(keys).map(([name, key]) => [name, componentOf(key, seconds)])),
    overheadSeconds: 0,
    steps: [],
  }) as Profile;

const traitsOf = (keys: Record<string, string>) =>
  new Map(Object.entries(keys).map(([name, key]) => [name, { key, devicesPerRank: 1, minDevices: 1, maxDevices: 2 }]));
const here = { hardwareKey: "machine", batch: 8 };

describe("what other workflows have measured", () => {
  const shared = { rollout: "r", reward: "w", actor: "a" };

  test("counts for components of the same key, under whatever name, the latest first", () => {
    const profiles = [profileOf("old", shared, 1), profileOf("new", { generator: "r", actor: "b" }, 2, "2026-02-02")];
    const known = knownComponents(profiles, { traits: traitsOf(shared), ...here });
    expect([...known].map(([name, { measuredBy }]) => [name, measuredBy.workflow])).toEqual([
      ["rollout", "new"],
      ["reward", "old"],
      ["actor", "old"],
    ]);
  });

  test("does not count on other machines, for another batch, or where a component does something else", () => {
    const profiles = [profileOf("old", shared, 1)];
    expect(knownComponents(profiles, { traits: traitsOf(shared), ...here, hardwareKey: "other" }).size).toBe(0);
    expect(knownComponents(profiles, { traits: traitsOf(shared), ...here, batch: 16 }).size).toBe(0);
    const known = knownComponents(profiles, { traits: traitsOf(shared), ...here });
    // Without the reward, the rollout does what it did; the actor, which is now between two others, does not.
    const graph = chain(["rollout", "actor", "critic"], 8);
    expect([...knownIn(graph, known).keys()]).toEqual(["rollout"]);
  });

  test("counts where somewhat more or less flows, as from step to step it does, and not where much does", () => {
    const known = knownComponents([profileOf("old", shared, 1)], { traits: traitsOf(shared), ...here });
    const flowing = (items: number): FlowGraph => {
      const graph = chain(Object.keys(shared), 8);
      return { ...graph, channels: { ...graph.channels, "to-2": { ...graph.channels["to-2"]!, itemsPerStep: items } } };
    };
    for (const items of [7.7, 8, 8.3]) expect(knownIn(flowing(items), known).size).toBe(3);
    for (const items of [4, 12]) expect([...knownIn(flowing(items), known).keys()]).toEqual(["rollout", "reward"]);
  });

  test("does not count where items are of another kind, which more or fewer bytes show", () => {
    const before = profileOf("old", shared, 1);
    const ofBytes = (graph: FlowGraph, bytesPerStep: number): FlowGraph => ({
      ...graph,
      channels: { ...graph.channels, "to-1": { ...graph.channels["to-1"]!, bytesPerStep } },
    });
    const known = knownComponents([{ ...before, graph: ofBytes(before.graph, 8000) }], {
      traits: traitsOf(shared),
      ...here,
    });
    const namesAt = (bytes: number) => [...knownIn(ofBytes(chain(Object.keys(shared), 8), bytes), known).keys()];
    for (const bytes of [6400, 8000, 9600]) expect(namesAt(bytes)).toEqual(["rollout", "reward", "actor"]);
    // The rollout puts what the reward takes.
    for (const bytes of [0, 800, 80_000]) expect(namesAt(bytes)).toEqual(["actor"]);
  });

  test("is not measured again: only what tells the others apart is, and it is in the profile as it was", () => {
    fc.assert(
      fc.property(fc.subarray(Object.keys(shared)), (old) => {
        const traits = traitsOf(shared);
        const before = profileOf(
          "old",
          Object.fromEntries(old.map((name) => [name, shared[name as keyof typeof shared]])),
          1,
        );
        const graph = chain(Object.keys(shared), 8);
        // A part of a chain ends where the whole goes on, so its last one does something else.
        const known = knownIn(graph, knownComponents([before], { traits, ...here }));
        const devices = [0, 1, 2, 3].map((index) => ({
          id: `gpu:${index}`,
          index,
          node: "n",
          kind: "gpu",
          memoryBytes: 1,
        }));
        const components = Object.keys(shared).map((name) => ({ name }));
        const probes = planProbes({ devices, components, graph, isKnown: (name) => known.has(name) });
        for (const { devices: given } of probes) for (const name of known.keys()) expect(given[name]).toBe(4);
        const all = planProbes({ devices, components, graph });
        if (known.size === 0) expect(probes).toEqual(all);
        if (known.size === components.length) expect(probes).toHaveLength(1);
        else expect(probes.length).toBeGreaterThan(1);
        const whole = withKnown(profileOf("this", shared, 5), known, traits);
        for (const name of Object.keys(shared)) {
          const seconds = whole.components[name]?.samples[0]?.seconds;
          expect(seconds).toBe(known.has(name) ? 1 : 5);
          // Calls besides the flow are this workflow's own.
          expect(whole.components[name]?.serialSeconds).toBe(5);
          if (known.has(name)) expect(whole.components[name]?.maxDevices).toBe(2);
        }
      }),
    );
  });
});
