import type { TagMemory } from "@treadle/contracts";
import { predictPlan } from "@treadle/planner";
import { describe, expect, test } from "vitest";
import { simulate } from "../src/index.ts";
import { chainProfile, placed, virtualDevices } from "./hand-made.ts";

const three = (batch: number) =>
  chainProfile(
    [
      { name: "rollout", perItem: 4 },
      { name: "inference", perItem: 1 },
      { name: "actor", perItem: 3 },
    ],
    batch,
  );

describe("a step takes what the schedule takes that is worked out by hand", () => {
  test("temporal: the sum of the stages, each spread over all devices", () => {
    const profile = three(8);
    for (const devices of [1, 2, 4, 8]) {
      const { steps } = simulate({ profile, plan: placed(profile, "temporal", devices), steps: 2, seed: 1 });
      for (const { seconds } of steps) expect(seconds).toBeCloseTo((8 * (4 + 1 + 3)) / devices, 9);
    }
  });

  test("temporal with a batch that does not divide: each stage lasts as long as its fullest rank", () => {
    const profile = three(7);
    const plan = placed(profile, "temporal", 4);
    expect(simulate({ profile, plan, steps: 1, seed: 1 }).stepSeconds.mean).toBeCloseTo(2 * (4 + 1 + 3), 9);
    // What was measured on these devices has the fullest rank in it.
    const { rollout } = profile.components as { rollout: NonNullable<(typeof profile.components)[string]> };
    const measured = { ...(rollout.samples[0] as (typeof rollout.samples)[number]), devices: 4, seconds: 9 };
    const components = { ...profile.components, rollout: { ...rollout, samples: [...rollout.samples, measured] } };
    const withSample = { ...profile, components };
    expect(simulate({ profile: withSample, plan, steps: 1, seed: 1 }).stepSeconds.mean).toBeCloseTo(9 + 2 * (1 + 3), 9);
  });

  test("more devices than items: no rank has less than one item", () => {
    const profile = three(8);
    const { stepSeconds } = simulate({ profile, plan: placed(profile, "temporal", 32), steps: 1, seed: 1 });
    expect(stepSeconds.mean).toBeCloseTo(4 + 1 + 3, 9);
  });

  test("spatial: the first chunk through all stages, then one chunk for each turn of the slowest", () => {
    const profile = three(8);
    const plan = placed(profile, "spatial", 3, { granularity: 2 });
    const { stepSeconds, components } = simulate({ profile, plan, steps: 1, seed: 1 });
    const [chunks, rollout, inference, actor] = [4, 8, 2, 6];
    expect(stepSeconds.mean).toBeCloseTo(rollout + inference + actor + (chunks - 1) * rollout, 9);
    expect(components["rollout"]?.shares.compute).toBeCloseTo((4 * 8) / 40, 9);
    expect(components["actor"]?.shares.channelWait).toBeCloseTo((40 - 4 * 6) / 40, 9);
  });

  test("messages take half of what asking does: each chunk has its own already, and a stage waits for those of others", () => {
    const stages = [
      { name: "rollout", perItem: 4, askSeconds: 0.2 },
      { name: "inference", perItem: 1, askSeconds: 0.2 },
    ];
    const profile = chainProfile(stages, 8);
    const plan = placed(profile, "spatial", 2, { granularity: 2 });
    const [message, ask, chunks] = [0.1, 0.2, 4];
    // The call, the lock and the first take; what is measured of a chunk has its take and its put.
    const rollout = message + ask + chunks * 8;
    // It asks for more, which commits the last chunk; inference is told, works, puts nothing, learns of the end when
    // rollout's last call is over, and says so.
    const inference = message + message + (2 - ask) + ask + message;
    const { stepSeconds } = simulate({ profile, plan, steps: 1, seed: 1 });
    expect(stepSeconds.mean).toBeCloseTo(rollout + inference, 9);
  });

  test("spatial without chunks: the stages one after the other, each on devices of its own", () => {
    const profile = three(8);
    const plan = placed(profile, "spatial", 3, { granularity: "all" });
    expect(simulate({ profile, plan, steps: 1, seed: 1 }).stepSeconds.mean).toBeCloseTo(8 * (4 + 1 + 3), 9);
  });

  test("hybrid: the first stage overlaps with the others, which take turns", () => {
    const profile = three(8);
    const explicit = { rollout: "0", "inference,actor": "1" };
    const plan = {
      ...placed(profile, "hybrid", 2, { explicit }),
      granularity: { default: 2, channels: { "to-actor": "all" as const } },
    };
    // Inference keeps pace with rollout's chunks of 8 s and ends 2 s after the last one; then the actor has the whole batch.
    expect(simulate({ profile, plan, steps: 1, seed: 1 }).stepSeconds.mean).toBeCloseTo(4 * 8 + 2 + 8 * 3, 9);
  });

  test("a fixed part is paid once a chunk", () => {
    const profile = chainProfile([{ name: "only", perItem: 1, base: 5 }], 8);
    const plan = placed(profile, "temporal", 2, { granularity: 2 });
    expect(simulate({ profile, plan, steps: 1, seed: 1 }).stepSeconds.mean).toBeCloseTo(2 * (5 + 2), 9);
  });

  test("calls that use no channel come first and overlap nothing of their step", () => {
    const profile = chainProfile(
      [
        { name: "rollout", perItem: 4, serialSeconds: 1 },
        { name: "actor", perItem: 3, serialSeconds: 2 },
      ],
      8,
    );
    const temporal = simulate({ profile, plan: placed(profile, "temporal", 1), steps: 2, seed: 1 });
    expect(temporal.stepSeconds.mean).toBeCloseTo(1 + 2 + 8 * 7, 9);
    const plan = placed(profile, "spatial", 2, { granularity: 4 });
    expect(simulate({ profile, plan, steps: 2, seed: 1 }).stepSeconds.mean).toBeCloseTo(2 + 16 + 12 + 16, 9);
  });

  test("a step begins with what it takes besides its components", () => {
    const profile = { ...three(8), overheadSeconds: 5 };
    const without = simulate({ profile: three(8), plan: placed(profile, "temporal", 1), steps: 2, seed: 1 });
    const { stepSeconds } = simulate({ profile, plan: placed(profile, "temporal", 1), steps: 2, seed: 1 });
    expect(stepSeconds.mean).toBeCloseTo(without.stepSeconds.mean + 5, 9);
  });

  test("staleness overlaps steps: after the first one, a step takes as long as the slowest stage", () => {
    const profile = three(8);
    const plan = placed(profile, "spatial", 3, { granularity: 2, maxStaleness: 1 });
    const { steps } = simulate({ profile, plan, steps: 5, seed: 1 });
    expect(steps[0]?.seconds).toBeCloseTo(40, 9);
    for (const { seconds } of steps.slice(1)) expect(seconds).toBeCloseTo(32, 9);
  });
});

describe("swaps", () => {
  const swapping = chainProfile(
    [
      { name: "rollout", perItem: 4, onloadSeconds: 2, offloadSeconds: 1, bytes: 60 },
      { name: "actor", perItem: 3, onloadSeconds: 5, offloadSeconds: 3, bytes: 60 },
    ],
    4,
  );
  const plan = placed(swapping, "temporal", 2);
  const work = (4 * (4 + 3)) / 2;

  test("are paid at every change of hands where memory is short", () => {
    const result = simulate({ profile: swapping, plan, devices: virtualDevices(2, 100), steps: 3, seed: 1 });
    const perStep = [2 + 1 + 5 + work, 3 + 2 + 1 + 5 + work, 3 + 2 + 1 + 5 + work];
    expect(result.steps.map(({ seconds }) => seconds)).toEqual(perStep.map((seconds) => expect.closeTo(seconds, 9)));
    expect(result.swaps).toMatchObject({ onloads: 12, offloads: 10 });
  });

  test("MT2, MT3: are of single tags where engines tell them, and predicted so", () => {
    const tag = (name: TagMemory["tag"], bytes: number, releaseSeconds: number, restoreSeconds: number): TagMemory => {
      return { tag: name, bytes, releaseSeconds, restoreSeconds };
    };
    const rollout = [tag("weights", 30, 0.5, 1), tag("cache", 25, 0, 0.1)];
    const actor = [tag("weights", 20, 1, 2), tag("optimiser", 30, 1, 4)];
    const profile = chainProfile(
      [
        { name: "rollout", perItem: 4, bytes: 60, tags: rollout },
        { name: "actor", perItem: 3, bytes: 60, tags: actor },
      ],
      4,
    );
    // 20 of 120 bytes are missing: the actor's weights and the rollout's cache are cheaper to move than the rest.
    const devices = virtualDevices(2, 100);
    const result = simulate({ profile, plan, devices, steps: 3, seed: 1 });
    const perStep = [1.1 + 6 + work, 1 + 0.1 + 2 + work, 1 + 0.1 + 2 + work];
    expect(result.steps.map(({ seconds }) => seconds)).toEqual(perStep.map((seconds) => expect.closeTo(seconds, 9)));
    expect(predictPlan(profile, plan, { devices, batch: 4 })).toBeCloseTo(perStep[2] as number, 9);
    // Where what stays of the one, and all of the other, is more than there is: component, tag, and what is missing.
    expect(() => simulate({ profile, plan, devices: virtualDevices(2, 62), steps: 3, seed: 1 })).toThrow(
      /'actor\/0' \(weights 20, optimiser 30, residual 10\) need 60 .*: 3 too many, and no room for optimiser of 'actor\/0'/,
    );
  });

  test("end with the first onload where all fit", () => {
    const result = simulate({ profile: swapping, plan, devices: virtualDevices(2, 120), steps: 3, seed: 1 });
    expect(result.steps.map(({ seconds }) => seconds)).toEqual(
      [2 + 5 + work, work, work].map((s) => expect.closeTo(s, 9)),
    );
    expect(result.swaps).toMatchObject({ onloads: 4, offloads: 0 });
  });

  test("a component that fits nowhere is refused with how much is missing", () => {
    expect(() => simulate({ profile: swapping, plan, devices: virtualDevices(2, 50), steps: 1, seed: 1 })).toThrow(
      /'rollout\/0' need 60 bytes on device 'gpu:0', which has 50: 10 too many/,
    );
  });
});
