import type { Plan } from "@treadle/contracts";
import fc from "fast-check";
import { expect, test } from "vitest";
import { planFromProfile, predictPlan, resolvePlacement } from "../src/index.ts";
import { type Costs, chainProfile, cluster } from "./synthetic-profile.ts";

const GiB = 2 ** 30;
const memory = (gib: number): Pick<Costs, "memory"> => ({ memory: [{ devices: 1, bytesPerDevice: gib * GiB }] });
const devicesOf = ({ components }: Plan, name: string): string[] =>
  [...new Set(components[name]!.ranks.flatMap((rank) => rank.devices))].sort();

test("two components share devices while the one between them, which fits beside neither, has one of its own", () => {
  const swap = { onloadSeconds: 0.2, offloadSeconds: 0.2 };
  const profile = chainProfile(
    {
      rollout: { perItem: 0.04, ...swap, ...memory(22) },
      scorer: { perItem: 0.004, ...swap, ...memory(61) },
      actor: { perItem: 0.08, ...swap, ...memory(36) },
    },
    12,
  );
  const components = [{ name: "rollout" }, { name: "scorer", ranks: { max: 1 } }, { name: "actor", devicesPerRank: 2 }];
  const { plan, alternatives } = planFromProfile(profile, {
    devices: cluster(3),
    batch: 12,
    maxStaleness: 0,
    components,
  });
  expect(devicesOf(plan, "rollout")).toEqual(devicesOf(plan, "actor"));
  expect(devicesOf(plan, "actor")).not.toContain(devicesOf(plan, "scorer")[0]);
  const [best] = alternatives;
  expect(best!.stepSeconds).toBeLessThan(0.6 * best!.movedFromSeconds!);
  expect(best).toMatchObject({ mode: "hybrid", proven: false });
  // Ranks of two devices do nothing on one.
  expect(best!.boundSeconds).toBeGreaterThan(0);
  expect(best!.boundSeconds).toBeLessThan(best!.stepSeconds);
  expect(plan.explanation).toContainEqual(expect.stringMatching(/other devices than the search gave them/));
  // Not what its schedule gave them.
  expect(plan.explanation[0]).toMatch(/'rollout' on '(.*?)', 'actor' on '\1', 'scorer' on '.'$/);
});

test("no layout of runs of devices is better with whole batches, and few are with the chunks of the plan", () => {
  const cost = fc.record({
    perItem: fc.integer({ min: 1, max: 6 }).map((n) => n / 10),
    alpha: fc.constantFrom(1, 0.7, 0),
    onloadSeconds: fc.constantFrom(0, 0.3, 2),
    offloadSeconds: fc.constantFrom(0, 0.5),
    gib: fc.constantFrom(0, 20, 35, 60),
    most: fc.constantFrom(3, 3, 1),
  });
  const gaps: number[] = [];
  fc.assert(
    fc.property(fc.array(cost, { minLength: 3, maxLength: 3 }), (costs) => {
      const names = ["a", "b", "c"];
      const devices = cluster(3);
      const batch = 12;
      const profile = chainProfile(
        Object.fromEntries(costs.map(({ most: _, gib, ...own }, i) => [names[i]!, { ...own, ...memory(gib) }])),
        batch,
      );
      const components = names.map((name, i) => ({ name, devicesPerRank: 1, ranks: { max: costs[i]!.most } }));
      const found = planFromProfile(profile, { devices, batch, maxStaleness: 0, components });
      const { granularity, capacity } = found.plan;
      const runs = ["0", "1", "2", "0-1", "1-2", "0-2"];
      const predicted = runs.flatMap((a) =>
        runs.flatMap((b) =>
          runs.map((c) => {
            const explicit = { a, b, c };
            const asked = {
              mode: "hybrid" as const,
              components,
              devices,
              explicit,
              batchItems: batch,
              maxStaleness: 0,
            };
            const whole = resolvePlacement({ ...asked, granularity: "all" });
            const seconds = (plan: Plan) => predictPlan(profile, plan, { devices, batch, components }) ?? 1e9;
            return [seconds(whole), seconds({ ...whole, granularity, capacity })] as const;
          }),
        ),
      );
      const { stepSeconds } = found.predicted;
      expect(stepSeconds).toBeLessThan(1.02 * Math.min(...predicted.map(([inWhole]) => inWhole)));
      gaps.push(stepSeconds / Math.min(...predicted.map(([, inChunks]) => inChunks)) - 1);
    }),
    { numRuns: 10 },
  );
  expect(gaps.filter((gap) => gap < 0.03).length).toBeGreaterThanOrEqual(0.8 * gaps.length);
});

test("a mode that some plan has is not refused when it alone is wanted", () => {
  const cost = fc.record({
    perItem: fc.integer({ min: 1, max: 6 }).map((n) => n / 10),
    alpha: fc.constantFrom(1, 0.7, 0),
    onloadSeconds: fc.constantFrom(0, 0.3),
    gib: fc.constantFrom(0, 35, 60),
  });
  fc.assert(
    fc.property(fc.array(cost, { minLength: 2, maxLength: 3 }), fc.integer({ min: 2, max: 4 }), (costs, count) => {
      const names = ["a", "b", "c"].slice(0, costs.length);
      const profile = chainProfile(
        Object.fromEntries(costs.map(({ gib, ...own }, i) => [names[i]!, { ...own, ...memory(gib) }])),
        8,
      );
      const components = names.map((name) => ({ name, devicesPerRank: 1 }));
      const asked = { devices: cluster(count), batch: 8, maxStaleness: 0, components };
      for (const { mode } of planFromProfile(profile, asked).alternatives) {
        const { plan } = planFromProfile(profile, { ...asked, wishes: { modes: [mode] } });
        expect(plan.mode).toBe(mode);
      }
    }),
    { numRuns: 30 },
  );
});
