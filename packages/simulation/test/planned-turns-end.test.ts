import { planFromProfile } from "@treadle/planner";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { simulate } from "../src/index.ts";
import { chainProfile, placed, virtualDevices } from "./hand-made.ts";

describe("parts that take turns within a pipeline", () => {
  const profile = chainProfile(
    [
      { name: "rollout", perItem: 1 },
      { name: "inference", perItem: 1 },
      { name: "actor", perItem: 2 },
    ],
    8,
  );
  const plan = placed(profile, "hybrid", 2, {
    explicit: { "rollout,inference": "0", actor: "1" },
    granularity: 1,
  });

  test("go through the whole batch one after the other where the channel between them has room for it", () => {
    const { stepSeconds } = simulate({ profile, plan, steps: 1, seed: 1 });
    expect(stepSeconds.mean).toBeCloseTo(8 + 1 + 8 * 2, 9);
  });

  test("take turns with every chunk where the plan bounds that channel", () => {
    const bounded = { ...plan, capacity: { "to-inference": 1 } };
    // The first chunk takes 1 + 1 until the actor begins on its eight; the producer may be a chunk or two ahead.
    const { mean } = simulate({ profile, plan: bounded, steps: 1, seed: 1 }).stepSeconds;
    expect(mean).toBeGreaterThanOrEqual(2 + 8 * 2);
    expect(mean).toBeLessThanOrEqual(4 + 8 * 2);
  });
});

const stage = fc.record({
  perItem: fc.integer({ min: 1, max: 9 }),
  base: fc.integer({ min: 0, max: 3 }),
  bytes: fc.integer({ min: 1, max: 9 }),
  onloadSeconds: fc.integer({ min: 0, max: 2 }),
  offloadSeconds: fc.integer({ min: 0, max: 2 }),
});

const runSpec = fc.record({
  stages: fc.array(stage, { minLength: 2, maxLength: 4 }),
  /** besides the chain, from one stage to a later one */
  shortcuts: fc.array(fc.tuple(fc.nat(2), fc.nat(2)), { maxLength: 2 }),
  batch: fc.constantFrom(4, 6, 8),
  devices: fc.integer({ min: 2, max: 5 }),
  memory: fc.integer({ min: 9, max: 20 }),
  gang: fc.boolean(),
  maxStaleness: fc.nat(2),
});

test("the best plan of every mode runs to its end on virtual time, whatever the flow and the memory", () => {
  const bounded: number[] = [];
  fc.assert(
    fc.property(runSpec, ({ stages, shortcuts, batch, devices: numDevices, memory, gang, maxStaleness }) => {
      const names = stages.map((_, i) => `c${i}`);
      const profile = chainProfile(
        stages.map((each, i) => ({ ...each, name: names[i] as string })),
        batch,
      );
      const { graph } = profile;
      for (const [from, over] of shortcuts) {
        const to = from + 2 + over;
        const [producer, consumer] = [names[from], names[to]];
        const channel = `${producer}-${consumer}`;
        if (!producer || !consumer || graph.channels[channel]) continue;
        const moved = { itemsPerStep: batch, bytesPerStep: 0 };
        graph.channels[channel] = { producers: [producer], consumers: [consumer], ...moved };
        graph.edges.push({ from: producer, to: consumer, channel, ...moved });
        graph.components[producer]?.methods[`do-${producer}`]?.puts.push(channel);
        graph.components[consumer]?.methods[`do-${consumer}`]?.takes.push(channel);
      }
      const devices = virtualDevices(numDevices, memory);
      const components = names.map((name) => ({ name }));
      const { alternatives } = planFromProfile(profile, { devices, batch, maxStaleness, components });
      const traits = Object.fromEntries(names.map((name) => [name, { gang }]));
      for (const { plan } of alternatives) {
        if (plan.capacity) bounded.push(maxStaleness);
        const steps = maxStaleness + 2;
        expect(simulate({ profile, plan, devices, steps, seed: 1, traits }).steps).toHaveLength(steps);
      }
    }),
    { numRuns: 150, seed: 11 },
  );
  expect(bounded).toEqual(expect.arrayContaining([0, 1]));
});
