import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type DeviceSpec, type ObservedCall, type Plan, type Profile, RuntimeConfig } from "@treadle/contracts";
import { certaintyOf, describeCertainty, planFromProfile } from "@treadle/planner";
import { expect, onTestFinished, test } from "vitest";
import { observed } from "../../../../planner/test/profile/observed-calls.ts";
import { Worker } from "../../../src/author/worker.ts";
import { AutoPlacement } from "../../../src/runner/placement/auto-placement.ts";
import type { PlannedChange } from "../../../src/runner/placement/placement-facts.ts";

const names = ["maker", "trainer"];
const devices: DeviceSpec[] = [0, 1, 2, 3].map((index) => {
  return { id: `cpu:${index}`, index, node: "here", kind: "cpu", memoryBytes: 2 ** 30 };
});

class Idle extends Worker<object> {}

function automatic(over: object = {}) {
  const root = mkdtempSync(join(tmpdir(), "treadle-auto-"));
  onTestFinished(() => rmSync(root, { recursive: true, force: true }));
  const config = RuntimeConfig.parse({ ...{ steps: 1000, batch: 8 }, placement: { mode: "auto", ...over } });
  const warn = () => {};
  let profile: Profile | undefined;
  const placement = new AutoPlacement(
    { workflow: "made", folder: join(root, "made"), projectRoot: root, config },
    { learnt: (learnt) => (profile = learnt.profile), warn },
  );
  const launched = names.map((name) => {
    return { name, workerClass: Idle, config: {}, options: {}, module: name, exportName: "Idle", methods: ["work"] };
  });
  const facts = { components: names.map((name) => ({ name })), devices, batchItems: 8, maxStaleness: 0 };
  const planNow = () => planFromProfile(profile!, { ...facts, batch: 8 });
  return { placement, planNow, start: () => placement.plan(facts, launched as never) };
}

/** What each rank of the plan takes for its part of the batch. */
function callsOf({ components }: Plan, step: number, busyMs: (name: string) => number): ObservedCall[] {
  return Object.entries(components).flatMap(([component, { ranks }]) => {
    const channel = component === "maker" ? "tasks" : "results";
    const takes = [{ channel, items: 8 / ranks.length }];
    const puts = component === "maker" ? [{ channel: "results", items: 8 / ranks.length }] : [];
    const call = { component, step, cpuMs: 0, busyMs: busyMs(component) / ranks.length };
    return ranks.map((_, rank) => observed({ ...call, rank }, { takes, puts }));
  });
}

test("what finding a plan has cost is said once it is found, of the first one and of each that follows, and how certain it is, as plans are told later", async () => {
  const { placement, planNow, start } = automatic({ auto: { warmupSteps: 1, measuredSteps: 2, driftWindow: 3 } });
  let current: PlannedChange = start();
  const found: { readonly why: readonly string[]; readonly step: number; readonly certainty: string }[] = [];
  const target = {
    measureSwaps: async () => new Map(),
    adopt: async (next: PlannedChange) => {
      current = next;
      return true;
    },
  };
  /** as `treadle plan` tells it of the profile that is kept */
  const certaintyNow = (): string => {
    const measured = planNow().alternatives.flatMap((each) => each.measured ?? []);
    const [chosen, ...others] = measured.toSorted((a, b) => a.seconds - b.seconds);
    return describeCertainty(Math.min(...others.map((each) => certaintyOf(chosen!, each))));
  };
  let step = 0;
  const goOn = async (numSteps: number, trainerMs: number): Promise<void> => {
    for (let left = numSteps; left > 0; left--) {
      step++;
      const calls = callsOf(current.plan, step, (name) => (name === "trainer" ? trainerMs : 4000));
      for (const call of calls) placement.observer?.(call);
      const seconds = calls.reduce((sum, { busyMs }) => sum + busyMs, 0) / 1000;
      placement.committed(step, seconds * (1 + 0.1 * Math.sin(7 * step)));
      const change = placement.between(target);
      await change?.();
      if (change && current.phase === "chosen") found.push({ why: current.why, step, certainty: certaintyNow() });
    }
  };
  await goOn(80, 4000);
  expect(found).toHaveLength(1);
  const numDrifting = 80;
  await goOn(numDrifting, 40_000);
  expect(found).toHaveLength(2);
  for (const { why, step: foundIn, certainty } of found) {
    expect(why.join("; ")).toContain(`is the fastest of those that were tried with ${certainty}`);
    const [, steps] = why.at(-1)?.match(/^finding the plan took \d+\.\d s and (\d+) steps of this run$/) ?? [];
    expect(Number(steps)).toBeGreaterThan(0);
    expect(Number(steps)).toBeLessThanOrEqual(foundIn > 80 ? foundIn - 80 : foundIn);
  }
});
