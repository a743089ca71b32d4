import { RuntimeConfig } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { configOf, type Drawn, draw, smaller } from "./draw.ts";
import { Config } from "./run.ts";

type Stages = Record<string, { work: string; takes?: string[]; puts?: string[]; devicesPerRank?: number }>;

/** Throws where a configuration would be refused, or where an end of a channel is missing. */
function check(drawn: Drawn): void {
  const { batch, cluster, placement, ...own } = configOf(drawn) as {
    batch: number;
    cluster: { devices: number };
    placement: object;
    stages: Stages;
  };
  RuntimeConfig.parse({ batch, cluster, placement });
  Config.parse(own);
  const stages = Object.values(own.stages);
  const taken = stages.flatMap(({ takes = [] }) => takes);
  const put = [...stages.flatMap(({ puts = [] }) => puts), "prompts"];
  const first = stages.some(({ work }) => work === "simulate") ? [] : ["prompts"];
  expect(new Set(taken).size, "one consumer a channel").toBe(taken.length);
  expect([...taken].sort()).toEqual([...new Set([...put.filter((name) => name !== "prompts"), ...first])].sort());
  for (const { devicesPerRank = 1 } of stages) expect(devicesPerRank).toBeLessThanOrEqual(cluster.devices);
}

const drawn = fc.tuple(fc.nat(1e6), fc.nat(1e4)).map(([seed, index]) => draw(seed, index));

describe("drawn workloads", () => {
  test("are allowed, and every channel has both its ends", () => {
    fc.assert(fc.property(drawn, check), { numRuns: 300 });
  });

  test("are the same for the same seed, and have everything that they are drawn for", () => {
    expect(configOf(draw(3, 4))).toEqual(configOf(draw(3, 4)));
    const many = Array.from({ length: 300 }, (_, index) => draw(1, index));
    const has = (what: (one: Drawn) => boolean): number => many.filter(what).length / many.length;
    const features: Record<string, number> = {
      cycles: has(({ turns }) => turns !== undefined),
      joins: has(({ stages }) => stages.some(({ from }) => from.length > 1)),
      forks: has(({ stages }) =>
        stages.some(({ name }) => stages.filter(({ from }) => from.includes(name)).length > 1),
      ),
      sevenStages: has(({ stages }) => stages.length === 7),
      wideRanks: has(({ stages }) => stages.some(({ devicesPerRank }) => devicesPerRank === 4)),
      limits: has(({ stages }) => stages.some(({ mostRanks }) => mostRanks !== undefined)),
      gangs: has(({ stages }) => stages.at(-1)?.gang === true),
      swaps: has(({ stages }) => stages.some(({ engine }) => engine.residentBytes !== undefined)),
      tails: has(({ stages }) => (stages[0]?.lengthSpread ?? 0) > 0.4),
      varying: has(({ stages }) => stages.some(({ engine }) => engine.durationSpread !== undefined)),
      bases: has(({ stages }) => stages.some(({ baseSeconds }) => baseSeconds > 0)),
      oddDevices: has(({ devices }) => devices % 2 === 1),
      oddBatches: has(({ batch }) => batch % 2 === 1),
    };
    for (const [feature, share] of Object.entries(features)) expect(share, feature).toBeGreaterThan(0.02);
  });

  test("become smaller by things that they lack, until nothing is left to lack", () => {
    fc.assert(
      fc.property(drawn, fc.nat(), (one, pick) => {
        let current = one;
        for (let steps = 0; steps < 60; steps++) {
          const candidates = [...smaller(current)];
          for (const candidate of candidates) check(candidate);
          if (candidates.length === 0) return;
          current = candidates[pick % candidates.length] as Drawn;
        }
        expect.unreachable("it does not end");
      }),
      { numRuns: 40 },
    );
  });
});
