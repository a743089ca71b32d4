import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { build, capacityBytes, component, randomOf, workflowSpec } from "./drawn-workflows.ts";
import { type Program, WorkflowWorld } from "./workflow-world.ts";

describe("workflows on shared devices, in any placement, order and granularity", () => {
  test("finish with everything delivered once, whichever way devices are shared (C1–C6, L1–L4)", () => {
    fc.assert(
      fc.property(workflowSpec, (spec) => {
        const { world, expected } = build(spec, true);
        world.run();
        expect(world.consumed.sort()).toEqual(expected);
        expect(world.lock.snapshot()).toMatchObject({ holds: [], waiting: [] });
      }),
      { numRuns: 800 },
    );
  });

  test("grant every consumer only after its producers on the same devices have had their turn (L2)", () => {
    fc.assert(
      fc.property(workflowSpec, (spec) => {
        const { world, expected } = build({ ...spec, channelItems: 1000 }, false);
        world.isOrderStrict = true;
        world.run();
        expect(world.consumed.sort()).toEqual(expected);
      }),
      { numRuns: 400 },
    );
  });

  test("survive deaths at any instant: nothing is lost, nothing comes twice, every device is freed (C1, C6, L3)", () => {
    fc.assert(
      fc.property(
        workflowSpec,
        fc.array(fc.tuple(fc.nat(120), fc.nat(4), fc.nat(1)), { minLength: 1, maxLength: 4 }),
        (spec, deaths) => {
          const { world, expected } = build(spec, false);
          world.run((event) => {
            for (const [at, component, rank] of deaths) if (at === event) world.kill(`c${component}/${rank}`);
          });
          expect(world.consumed.sort()).toEqual(expected);
          expect(world.lock.snapshot()).toMatchObject({ holds: [], waiting: [] });
        },
      ),
      { numRuns: 800 },
    );
  });

  test("simulator and generator that feed each other finish on shared and on separate devices (L2)", () => {
    const spec = fc.record({
      seed: fc.integer(),
      rounds: fc.integer({ min: 1, max: 5 }),
      numEnvs: fc.integer({ min: 1, max: 4 }),
      isShared: fc.boolean(),
      isGeneratorFirst: fc.boolean(),
      locksWhole: fc.tuple(fc.boolean(), fc.boolean()),
      residentBytes: fc.constantFrom(30, 90),
      channelItems: fc.constantFrom(4, 100),
    });
    fc.assert(
      fc.property(
        spec,
        ({ seed, rounds, numEnvs, isShared, isGeneratorFirst, locksWhole, residentBytes, channelItems }) => {
          const world = new WorkflowWorld({
            random: randomOf(seed),
            devices: ["d0", "d1"],
            capacityBytes,
            channelItems,
            channels: ["observations", "actions"],
          });
          const envs = Array.from({ length: numEnvs }, (_, i) => `env ${i}`);
          function* simulator(): Program {
            if (locksWhole[0]) yield { op: "lock" };
            yield { op: "put", channel: "observations", items: envs };
            for (let left = rounds * numEnvs; left > 0; ) {
              const actions = yield { op: "take", channel: "actions", max: numEnvs };
              if (!actions) throw new Error("the generator ended before the simulator");
              left -= actions.length;
              if (!locksWhole[0]) yield { op: "lock" };
              yield { op: "work" };
              if (!locksWhole[0]) yield { op: "release" };
              if (left > 0) yield { op: "put", channel: "observations", items: actions.slice(0, left) };
            }
            if (locksWhole[0]) yield { op: "release" };
          }
          const common = { residentBytes, stream: 0 };
          const calls = [
            {
              ...common,
              worker: "simulator",
              devices: ["d0"],
              source: "actions",
              sinks: ["observations"],
              program: simulator,
            },
            {
              ...common,
              worker: "generator",
              devices: [isShared ? "d0" : "d1"],
              source: "observations",
              sinks: ["actions"],
              program: () =>
                component(locksWhole[1] ? "whole" : "around-work", true, "observations", ["actions"], numEnvs),
            },
          ];
          if (isGeneratorFirst) calls.reverse();
          for (const { worker, devices } of calls) world.addWorker(worker, devices, residentBytes);
          for (const [sequence, call] of calls.entries()) world.call({ ...call, sequence });
          world.run();
        },
      ),
      { numRuns: 400 },
    );
  });
});
