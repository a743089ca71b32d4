import { type Plan, Profile } from "@treadle/contracts";
import { expect, test } from "vitest";
import { simulate } from "../src/index.ts";
import { chainProfile } from "./hand-made.ts";

const horizon = 10;

/** Simulator ⇄ policy for a horizon, then training on the trajectories, as in `workflows/embodied-ppo`. */
function embodied(observations = horizon + 1): Profile {
  const base = chainProfile(
    [
      { name: "rollout", perItem: 30, serialSeconds: 1 },
      { name: "simulator", perItem: 60 },
      { name: "actor", perItem: 20 },
    ],
    1,
  );
  const moved = (itemsPerStep: number) => ({ itemsPerStep, bytesPerStep: 0 });
  const method = (takes: string[], puts: string[]) => ({ callsPerStep: 1, takes, puts });
  return Profile.parse({
    ...base,
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
        observations: { producers: ["simulator"], consumers: ["rollout"], ...moved(observations) },
        actions: { producers: ["rollout"], consumers: ["simulator"], ...moved(horizon) },
        trajectories: { producers: ["rollout"], consumers: ["actor"], ...moved(8) },
      },
      edges: [
        { from: "simulator", to: "rollout", channel: "observations", ...moved(observations) },
        { from: "rollout", to: "simulator", channel: "actions", ...moved(horizon) },
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
  const { stepSeconds } = simulate({ profile: embodied(horizon), plan, steps: 1, seed: 1 });
  expect(stepSeconds.mean).toBeCloseTo(1 + 30 + 60 + 20, 6);
});
