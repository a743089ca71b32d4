import { type DeviceSpec, type Plan, Profile } from "@treadle/contracts";
import { planFromProfile, predictPlan } from "@treadle/planner";
import fc from "fast-check";
import { expect, test } from "vitest";
import { simulate } from "../src/index.ts";
import { chainProfile } from "./hand-made.ts";

const horizon = 10;

type Shape = {
  readonly observations?: number;
  readonly actions?: number;
  readonly takes?: { readonly observations: number; readonly actions: number };
  readonly seconds?: { readonly rollout: number; readonly simulator: number };
};

/** Simulator ⇄ policy for a horizon, then training on the trajectories, as in `workflows/embodied-ppo`. */
function embodied({
  observations = horizon + 1,
  actions = horizon,
  takes,
  seconds = { rollout: 30, simulator: 60 },
}: Shape = {}): Profile {
  const base = chainProfile(
    [
      { name: "rollout", perItem: seconds.rollout, serialSeconds: 1 },
      { name: "simulator", perItem: seconds.simulator },
      { name: "actor", perItem: 20 },
    ],
    1,
  );
  const moved = (itemsPerStep: number) => ({ itemsPerStep, bytesPerStep: 0 });
  const taken = (takesPerStep: number | undefined) => (takesPerStep === undefined ? {} : { takesPerStep });
  const method = (takes: string[], puts: string[]) => ({ callsPerStep: 1, takes, puts });
  const components = Object.fromEntries(
    Object.entries(base.components).map(([name, component]) => [name, { ...component, maxDevices: 1 }]),
  );
  return Profile.parse({
    ...base,
    components,
    graph: {
      batch: 1,
      components: {
        rollout: {
          methods: { pullWeights: method([], []), act: method(["observations"], ["actions", "trajectories"]) },
        },
        simulator: { methods: { simulate: method(["actions"], ["observations"]) } },
        actor: { methods: { train: method(["trajectories"], []) } },
      },
      channels: {
        observations: {
          producers: ["simulator"],
          consumers: ["rollout"],
          ...moved(observations),
          ...taken(takes?.observations),
        },
        actions: { producers: ["rollout"], consumers: ["simulator"], ...moved(actions), ...taken(takes?.actions) },
        trajectories: { producers: ["rollout"], consumers: ["actor"], ...moved(8) },
      },
      edges: [
        { from: "simulator", to: "rollout", channel: "observations", ...moved(observations) },
        { from: "rollout", to: "simulator", channel: "actions", ...moved(actions) },
        { from: "rollout", to: "actor", channel: "trajectories", ...moved(8) },
      ],
      cycles: [["rollout", "simulator"]],
    },
  });
}

const planOn = (devices: Readonly<Record<string, string>>): Plan => ({
  mode: "hybrid",
  components: Object.fromEntries(
    Object.entries(devices).map(([name, device]) => [name, { ranks: [{ devices: [device], node: "n" }] }]),
  ),
  granularity: { default: "all", channels: {} },
  maxStaleness: 0,
  sharing: [],
  explanation: [],
});

test.each([
  ["shared devices", { rollout: "gpu:0", simulator: "gpu:0", actor: "gpu:0" }],
  ["devices of their own", { rollout: "gpu:0", simulator: "cpu:0", actor: "gpu:1" }],
])("one round after the other on %s: the sum of both, whoever waits for whom", (_, devices) => {
  const { steps, components } = simulate({ profile: embodied(), plan: planOn(devices), steps: 2, seed: 1 });
  for (const { seconds } of steps) expect(seconds).toBeCloseTo(1 + 30 + 60 + 20, 6);
  expect(components["simulator"]?.busySeconds).toBeCloseTo(60, 6);
});

test("where all put as many as they take, somebody begins nevertheless", () => {
  const plan = planOn({ rollout: "gpu:0", simulator: "cpu:0", actor: "gpu:1" });
  const { stepSeconds } = simulate({ profile: embodied({ observations: horizon }), plan, steps: 1, seed: 1 });
  expect(stepSeconds.mean).toBeCloseTo(1 + 30 + 60 + 20, 6);
});

/** Two that answer each other, each one part of what goes round after the other: by hand, with neither channels nor devices. */
function byHand(parts: readonly number[], turns: number, rollout: number, simulator: number): number {
  const shown = parts.map(() => 0);
  let [policyAt, simulatorAt] = [0, 0];
  for (let turn = 0; turn <= turns; turn++) {
    for (const [part, items] of parts.entries()) {
      policyAt = Math.max(policyAt, shown[part] as number) + items * rollout;
      if (turn === turns) continue;
      simulatorAt = Math.max(simulatorAt, policyAt) + items * simulator;
      shown[part] = simulatorAt;
    }
  }
  return policyAt;
}

const drawnCycle = fc.record({
  population: fc.integer({ min: 1, max: 12 }),
  stages: fc.integer({ min: 1, max: 4 }),
  turns: fc.integer({ min: 1, max: 12 }),
  rollout: fc.double({ min: 0.5, max: 60, noNaN: true }),
  simulator: fc.double({ min: 0.5, max: 60, noNaN: true }),
});
type DrawnCycle = typeof drawnCycle extends fc.Arbitrary<infer T> ? T : never;

function staged({ population, stages: asked, turns, rollout, simulator }: DrawnCycle) {
  const stages = Math.min(asked, population);
  const [observations, actions] = [population * (turns + 1), population * turns];
  const profile = embodied({
    ...{ observations, actions, seconds: { rollout, simulator } },
    takes: { observations: stages * (turns + 1), actions: stages * turns },
  });
  const until = (part: number) => Math.floor((part * population) / stages);
  const parts = Array.from({ length: stages }, (_, part) => until(part + 1) - until(part));
  return { profile, bothSeconds: byHand(parts, turns, rollout / observations, simulator / actions) };
}

const deviceOf = (id: string): DeviceSpec => ({
  ...{ id, kind: "gpu", node: "n", memoryBytes: 1e12 },
  index: Number(id.split(":")[1]),
});

const both = (profile: Profile, plan: Plan) => {
  const ids = new Set(Object.values(plan.components).flatMap(({ ranks }) => ranks.flatMap(({ devices }) => devices)));
  const predicted = predictPlan(profile, plan, { devices: [...ids].map(deviceOf), batch: 1 });
  return [predicted, simulate({ profile, plan, steps: 1, seed: 1 }).stepSeconds.mean];
};

test("in stages, the policy works on one part while the simulator has another: predicted and simulated as by hand", () => {
  const plan = planOn({ rollout: "gpu:0", simulator: "gpu:1", actor: "gpu:2" });
  fc.assert(
    fc.property(drawnCycle, (drawn) => {
      const { profile, bothSeconds } = staged(drawn);
      const [predicted, simulated] = both(profile, plan);
      expect(simulated).toBeCloseTo(1 + bothSeconds + 20, 5);
      expect(predicted).toBeCloseTo(1 + bothSeconds + 20, 5);
    }),
  );
});

test("stages bring nothing on shared devices, and at most what the shorter of both takes on devices of their own", () => {
  fc.assert(
    fc.property(drawnCycle, (drawn) => {
      const { profile, bothSeconds } = staged(drawn);
      const { rollout, simulator } = drawn;
      expect(bothSeconds).toBeGreaterThanOrEqual(Math.max(rollout, simulator) - 1e-9);
      expect(bothSeconds).toBeLessThanOrEqual(rollout + simulator + 1e-9);
      const [predicted, simulated] = both(profile, planOn({ rollout: "gpu:0", simulator: "gpu:0", actor: "gpu:0" }));
      expect(simulated).toBeCloseTo(1 + rollout + simulator + 20, 5);
      expect(predicted).toBeCloseTo(1 + rollout + simulator + 20, 5);
    }),
  );
});

test("where stages pay, members of a cycle are planned on devices of their own, and no bound of schedules is claimed", () => {
  const cycle = { population: 8, turns: 10, rollout: 30, simulator: 30 };
  const devices = ["gpu:0", "gpu:1", "gpu:2"].map(deviceOf);
  const planned = (stages: number) => {
    const { profile, bothSeconds } = staged({ ...cycle, stages });
    const onMoreAsLong = Object.entries(profile.components).map(([name, own]) => {
      return [name, { ...own, fit: own.fit && { ...own.fit, alpha: 0 } }] as const;
    });
    const components = onMoreAsLong.map(([name]) => ({ name, ranks: { fixed: 1 } }));
    const found = planFromProfile(
      { ...profile, components: Object.fromEntries(onMoreAsLong) },
      { devices, batch: 1, maxStaleness: 0, components },
    );
    return { ...found, bothSeconds };
  };
  const halves = planned(2);
  expect(halves.predicted.stepSeconds).toBeCloseTo(1 + halves.bothSeconds + 20, 5);
  expect(halves.predicted.stepSeconds).toBeLessThan(0.7 * planned(1).predicted.stepSeconds);
  expect(halves.alternatives[0]?.mode).not.toBe("temporal");
  expect(halves.boundSeconds).toBeLessThan(halves.predicted.stepSeconds);
  for (const { proven, boundSeconds } of halves.alternatives) {
    expect(proven).toBe(false);
    expect(boundSeconds).toBeLessThanOrEqual(halves.boundSeconds);
  }
});
