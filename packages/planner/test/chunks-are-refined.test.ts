import { Plan } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";
import { planFromProfile, predictPlan } from "../src/index.ts";
import { chainProfile, cluster } from "./synthetic-profile.ts";

const stage = fc.record({
  perItem: fc.double({ min: 0.01, max: 0.2, noNaN: true }),
  base: fc.constantFrom(0, 0.01, 0.05),
  streams: fc.boolean(),
});

test("halving or doubling the chunks of a plan gains nothing, on drawn chains, in whole items of the step", () => {
  let [numChunked, numRefined] = [0, 0];
  fc.assert(
    fc.property(
      fc.array(stage, { minLength: 2, maxLength: 3 }),
      fc.integer({ min: 3, max: 9 }),
      fc.integer({ min: 12, max: 40 }),
      fc.constantFrom(0.5, 1, 1, 2),
      fc.constantFrom(1, 1, 0.55), // of what is passed on some is left out, on average
      (stages, numDevices, measuredBatch, scale, kept) => {
        const named = Object.fromEntries(stages.map((each, at) => [`s${at}`, each]));
        const profile = chainProfile(named, measuredBatch, [1, 2, 4]);
        for (const moved of [...Object.values(profile.graph.channels).slice(1), ...profile.graph.edges])
          moved.itemsPerStep = (moved.itemsPerStep * kept) / 4;
        const batch = Math.round(measuredBatch * scale);
        const devices = cluster(numDevices);
        const components = Object.keys(named).map((name) => ({ name }));
        const { alternatives } = planFromProfile(profile, { devices, batch, maxStaleness: 0, components });
        for (const { plan, stepSeconds, mode, refinedFromSeconds, boundSeconds, proven } of alternatives) {
          const { channels } = plan.granularity;
          Plan.parse({ ...plan, explanation: [] });
          if (refinedFromSeconds === undefined) continue;
          numRefined++;
          expect(proven).toBe(false);
          expect(stepSeconds).toBeLessThan(refinedFromSeconds);
          expect(boundSeconds).toBeLessThanOrEqual(stepSeconds);
          for (const [name, items] of Object.entries(channels)) {
            if (items === "all") continue;
            numChunked++;
            const most = Math.floor((profile.graph.channels[name]!.itemsPerStep * batch) / measuredBatch);
            expect(items).toBeLessThanOrEqual(Math.max(1, most));
            for (const factor of [0.5, 2]) {
              const other = Math.max(1, Math.min(Math.round(items * factor), most));
              const granularity = { ...plan.granularity, channels: { ...channels, [name]: other } };
              const seconds = predictPlan(profile, { ...plan, granularity }, { devices, batch, components })!;
              expect(seconds, `${mode}: '${name}' ${other} in place of ${items}`).toBeGreaterThan(0.989 * stepSeconds);
              expect(seconds).toBeGreaterThanOrEqual(boundSeconds * (1 - 1e-9));
            }
          }
        }
      },
    ),
    { numRuns: 100 },
  );
  expect(numRefined).toBeGreaterThan(10);
  expect(numChunked).toBeGreaterThan(20);
});

test("who takes from two channels takes as much from each, however chunks are refined", () => {
  let numRefined = 0;
  fc.assert(
    fc.property(
      fc.tuple(stage, stage, stage, stage),
      fc.integer({ min: 4, max: 9 }),
      fc.integer({ min: 12, max: 40 }),
      (stages, numDevices, batch) => {
        const names = ["gen", "a", "b", "actor"] as const;
        const costs = names.map(
          (name, at) => [name, { ...stages[at]!, streams: at === 0 && stages[0].streams }] as const,
        );
        const chain = chainProfile(Object.fromEntries(costs), batch, [1, 2, 4]);
        const flows = [
          ["gen", "a"],
          ["gen", "b"],
          ["a", "actor"],
          ["b", "actor"],
        ] as const;
        const moved = { itemsPerStep: batch, bytesPerStep: 0 };
        const methods = names.map((name) => {
          const takes = flows.flatMap(([from, to]) => (to === name ? [`${from}-${to}`] : []));
          const puts = flows.flatMap(([from, to]) => (from === name ? [`${from}-${to}`] : []));
          const run = { callsPerStep: 1, takes: name === "gen" ? ["input"] : takes, puts };
          return [name, { methods: { run } }] as const;
        });
        const profile = {
          ...chain,
          graph: {
            ...chain.graph,
            components: Object.fromEntries(methods),
            channels: {
              input: { producers: [], consumers: ["gen"], ...moved },
              ...Object.fromEntries(
                flows.map(([from, to]) => [`${from}-${to}`, { producers: [from], consumers: [to], ...moved }]),
              ),
            },
            edges: flows.map(([from, to]) => ({ from, to, channel: `${from}-${to}`, ...moved })),
          },
        };
        const components = names.map((name) => ({ name }));
        const { alternatives } = planFromProfile(profile, {
          devices: cluster(numDevices),
          batch,
          maxStaleness: 0,
          components,
        });
        for (const { plan, refinedFromSeconds } of alternatives) {
          if (refinedFromSeconds === undefined) continue;
          numRefined++;
          const { channels, default: usual } = plan.granularity;
          expect(channels["a-actor"] ?? usual).toBe(channels["b-actor"] ?? usual);
        }
      },
    ),
    { numRuns: 60 },
  );
  expect(numRefined).toBeGreaterThan(5);
});
