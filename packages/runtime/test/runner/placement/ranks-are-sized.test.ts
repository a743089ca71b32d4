import type { DeviceSpec, PlacementMode, Plan } from "@treadle/contracts";
import { resolvePlacement } from "@treadle/planner";
import { expect, test } from "vitest";
import { z } from "zod";
import type { RankSizer, RankSizing } from "../../../src/author/rank-sizer.ts";
import { ChangeCosts } from "../../../src/runner/placement/change-costs.ts";
import type { Component } from "../../../src/runner/placement/component.ts";
import type { PlacementFacts, PlannedChange } from "../../../src/runner/placement/placement-facts.ts";
import { SizedRanks } from "../../../src/runner/placement/sized-ranks.ts";

const devices: DeviceSpec[] = Array.from({ length: 8 }, (_, index) => ({
  ...{ id: `cpu:${index}`, index, node: `n${Math.floor(index / 4)}`, kind: "cpu", memoryBytes: 1e9 },
}));

/** A run of two groups, of which one is sized by `answers`, one a step. */
function world(mode: PlacementMode, answers: readonly (readonly number[] | string | undefined)[]) {
  const lines: string[] = [];
  const asked: RankSizing[] = [];
  const heard: (readonly unknown[])[] = [];
  const sizer: RankSizer = {
    devicesPerRank: 1,
    report: z.strictObject({ seen: z.int() }),
    stepEnded: (reports) => heard.push(reports),
    *look(sizing) {
      asked.push(sizing);
      yield;
      const answer = answers[asked.length - 1];
      if (answer === undefined) return undefined;
      return typeof answer === "string" ? { why: answer } : { degrees: answer, why: "because" };
    },
  };
  const component = { name: "rollout", workerClass: { degrees: () => sizer }, config: {} } as unknown as Component;
  const sized = new SizedRanks({ mode, totalSteps: 10, tell: (line) => lines.push(line) });
  const facts = (): PlacementFacts => ({
    components: [{ name: "rollout", ...sized.of(component) }, { name: "actor" }],
    ...{ devices, batchItems: 16, granularity: "auto", maxStaleness: 0 },
  });
  let plan: Plan = resolvePlacement({ mode, ...facts() });
  const adopted: PlannedChange[] = [];
  let isOpen = false;
  const cluster = {
    get placementFacts() {
      return facts();
    },
    place: () => plan,
    adopt: async (planned: PlannedChange) => {
      if (isOpen) return false;
      adopted.push(planned);
      plan = planned.plan;
      return true;
    },
  };
  const open = (calls: boolean) => {
    isOpen = calls;
  };
  return { sized, cluster, lines, asked, heard, adopted, open };
}

const sizesOf = (planned: PlannedChange | undefined) =>
  planned?.plan.components["rollout"]?.ranks.map((rank) => rank.devices.length);

test("a step's reports reach the sizer once each, and what it decides is the plan once no call is open", async () => {
  const { sized, cluster, asked, heard, adopted, open } = world("temporal", [[4, 2, 1]]);
  sized.told("rollout", 0, 1, { seen: 1 });
  sized.told("rollout", 1, 1, { seen: 2 });
  sized.told("rollout", 0, 2, { seen: 9 }); // of a step that is not over
  sized.told("rollout", 1, 1, { seen: 3 }); // a call that was made again
  await sized.committed(1, 5, cluster);
  expect(heard).toEqual([[{ seen: 1 }, { seen: 3 }]]);
  expect(asked[0]).toMatchObject({ current: [1, 1, 1, 1, 1, 1, 1, 1], devices: 8, stepsLeft: 9, changeSeconds: 1 });
  open(true);
  await sized.between(cluster)?.();
  expect(adopted).toEqual([]);
  open(false);
  await sized.between(cluster)?.();
  expect(adopted.map(sizesOf)).toEqual([[4, 2, 1]]);
  expect(adopted[0]?.why).toEqual(["'rollout': because"]);
  expect(sized.between(cluster)).toBeUndefined();
  await sized.committed(2, 5, cluster);
  expect(asked[1]).toMatchObject({ current: [4, 2, 1], devices: 8, stepsLeft: 8 });
});

test("sizes that no node holds, or for which others would move, are not for the sizer to choose", async () => {
  const lone = world("temporal", ["stays"]);
  lone.sized.told("rollout", 0, 1, { seen: 1 });
  await lone.sized.committed(1, 5, lone.cluster);
  const [{ canPlace }] = lone.asked as [RankSizing];
  expect([[4, 4], [4, 2, 1], [2, 2, 2, 2], [8], [4, 4, 1]].map((list) => canPlace(list))).toEqual([
    ...[true, true, true, false, false],
  ]);
  expect(lone.lines).toEqual(["'rollout': stays"]);
  expect(lone.sized.between(lone.cluster)).toBeUndefined();
  const apart = world("spatial", ["stays"]);
  apart.sized.told("rollout", 0, 1, { seen: 1 });
  await apart.sized.committed(1, 5, apart.cluster);
  const [sizing] = apart.asked as [RankSizing];
  expect(sizing.devices).toBe(4);
  expect([[4], [2, 2], [2, 1, 1], [2, 1]].map((list) => sizing.canPlace(list))).toEqual([true, true, true, false]);
});

test("a report that the class does not know is refused with what was expected, and so is one of a group that sizes none", () => {
  const { sized } = world("temporal", []);
  expect(() => sized.told("rollout", 2, 7, { seen: "much" })).toThrow(
    /'rollout\/2' reports of step 7 what its class does not size ranks by: .*expected number.*seen/s,
  );
  expect(() => sized.told("actor", 0, 7, { seen: 1 })).toThrow(/'actor\/0' reports of step 7 .*: it sizes none/);
  sized.ended("rollout");
  expect(() => sized.told("rollout", 0, 7, { seen: 1 })).toThrow("it sizes none");
});

test("a change costs what the first step under it took longer than the second", () => {
  const costs = new ChangeCosts();
  expect(costs.seconds).toBe(1);
  costs.stepEnded(4, 1000);
  expect(costs.seconds).toBe(1);
  costs.began(2000);
  costs.stepEnded(9, 11_000);
  costs.stepEnded(4, 15_000);
  expect(costs.seconds).toBe(5);
  costs.stepEnded(40, 55_000);
  expect(costs.seconds).toBe(5);
});
