import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, describe, expect, test } from "vitest";
import { ActionServiceConfig, openActionService, StatisticsClient } from "../src/serve.ts";
import { connectActions, outputOf } from "./support/client.ts";

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

const profileOf = (kind: string, efficiencyOnTwo: number) => {
  const points = [
    { units: 1, efficiency: 1 },
    { units: 2, efficiency: efficiencyOnTwo },
  ];
  return JSON.stringify({
    ...{ version: 1, kind, command: ["suite", "{parallel}"], driver: "process", measuredAt: "2026-01-01T00:00:00Z" },
    samples: points.map(({ units, efficiency }) => ({
      ...{ units, seconds: 1 / (units * efficiency), accepted: 3, rejected: 0, contended: false },
    })),
    ...{ duration: 1, elasticity: { type: "table", points }, fit: { serialShare: 0, relativeError: 0 } },
    ...{ convex: true, wasteful: [] },
  });
};

async function serve(files: Record<string, string>, profiles: readonly string[], more: object = {}) {
  const folder = mkdtempSync(join(tmpdir(), "treadle-profiles-"));
  cleanups.push(() => rmSync(folder, { recursive: true }));
  for (const [name, text] of Object.entries(files)) writeFileSync(join(folder, name), text);
  const config = ActionServiceConfig.parse({
    ...{ listen: "127.0.0.1:0", drivers: ["process"], profiles },
    resources: { cpu: { type: "cpu", numa: [[0, 1]] } },
    ...more,
  });
  const service = await openActionService(config, folder);
  cleanups.push(service.close);
  const client = connectActions(service.address);
  const statistics = new StatisticsClient({ address: service.address });
  cleanups.push(client.close, () => statistics.close());
  return { ...client, statistics };
}

// Commands are bound to cores 0 and 1.
describe.skipIf(availableParallelism() < 2)("stored profiles", () => {
  test("scale a command of their kind that says nothing but where its number goes; what it says itself comes first", async () => {
    const { call, submit, statistics } = await serve({ "suite.json": profileOf("suite", 1) }, ["suite.json"]);
    const { trajectory } = await call("OpenTrajectory", {});
    const run = async (message: object) => {
      const action = submit({ trajectory, command: ["sh", "-c", "echo {parallel}"], ...message });
      expect(await action.ended).toBeUndefined();
      return {
        units: action.events.find(({ started }) => started)!.started!.allocation["cpu"],
        printed: outputOf(action),
      };
    };
    expect(await run({ kind: "suite", cost: {} })).toEqual({ units: 2, printed: "2\n" });
    expect(await run({ kind: "suite", cost: { cpu: { fixed: 1 } } })).toMatchObject({ units: 1 });
    const range = { cpu: { range: { min: 1, max: 2 } } };
    expect(await run({ kind: "suite", cost: range, key: "cpu" })).toMatchObject({ units: 2 });
    expect(await run({ kind: "suite", cost: range, key: "cpu", elasticity: { amdahl: 1 } })).toMatchObject({
      units: 1,
    });
    expect(await run({ kind: "suite", cost: {}, command: ["true"] })).toMatchObject({ units: 1 });
    expect(await run({ kind: "other", cost: {} })).toMatchObject({ units: 1 });
    const { kinds } = await statistics.read();
    expect(kinds["other"]).toMatchObject({ curve: null, predictionError: null });
  });

  test("that were measured on more cores than there are scale over what there is, and are of cores alone", async () => {
    const profile = JSON.parse(profileOf("suite", 1));
    profile.samples = profile.samples.map((sample: object, i: number) => ({ ...sample, units: 4 * (i + 1) }));
    profile.elasticity.points = [4, 8].map((units) => ({ units, efficiency: 0.9 }));
    const resources = { cpu: { type: "cpu", numa: [[0, 1]] }, q: { type: "quota", concurrency: 8 } };
    const { call, submit } = await serve({ "suite.json": JSON.stringify(profile) }, ["suite.json"], { resources });
    const { trajectory } = await call("OpenTrajectory", {});
    const run = async (message: object) => {
      const action = submit({ trajectory, kind: "suite", cost: {}, command: ["echo", "{parallel}"], ...message });
      expect(await action.ended).toBeUndefined();
      return action.events.find(({ started }) => started)!.started!.allocation;
    };
    expect(await run({})).toEqual({ cpu: 2 });
    expect(await run({ key: "q", cost: { q: { range: { min: 1, max: 4 } } } })).toEqual({ cpu: 1, q: 1 });
  });

  test("that are wrong lose to what executions show: grants follow the truth, for better and for worse", async () => {
    const files = { "gains.json": profileOf("gains", 0.5), "flat.json": profileOf("flat", 1) };
    const { call, submit, statistics } = await serve(files, Object.keys(files));
    const { trajectory } = await call("OpenTrajectory", {});
    const run = async (kind: string, command: string) => {
      const action = submit({ trajectory, kind, cost: {}, command: ["sh", "-c", command] });
      expect(await action.ended).toBeUndefined();
      return action.events.find(({ started }) => started)!.started!;
    };
    const follow = async (kind: string, command: string) => {
      const first = await run(kind, command);
      for (let i = 0; i < 200; i++) {
        const { allocation, why } = await run(kind, command);
        const { curve, predictionError } = (await statistics.read()).kinds[kind]!;
        if (why.includes("still holds") || curve?.source !== "measured") continue;
        return { curve, predictionError, first: first.allocation["cpu"], last: allocation["cpu"] };
      }
      throw new Error("its curve is not measured");
    };
    const gains = await follow("gains", "if [ {parallel} = 1 ]; then sleep 0.3; else sleep 0.12; fi");
    expect(gains).toMatchObject({ first: 1, last: 2 });
    expect(gains.curve.efficiency[1]!.efficiency).toBeGreaterThan(0.75);
    const flat = await follow("flat", "sleep 0.15; : {parallel}");
    expect(flat.first).toBe(2);
    expect(flat.curve.efficiency).toMatchObject([{ units: 1 }, { units: 2 }]);
    expect(flat.curve.efficiency[1]!.efficiency).toBeLessThan(0.7);
    expect(flat.predictionError).toBeGreaterThan(0);
  });

  test("learn nothing of what a limit cut short, or of a program that is not there", async () => {
    const { call, submit, statistics } = await serve({ "flat.json": profileOf("flat", 1) }, ["flat.json"]);
    const { trajectory } = await call("OpenTrajectory", {});
    const asked = { trajectory, kind: "flat", cost: {} };
    for (const message of [
      { command: ["sh", "-c", "sleep 60; : {parallel}"], timeout_ms: 50 },
      { command: ["no-such-suite", "{parallel}"] },
    ])
      expect(await submit({ ...asked, ...message }).ended).toBeUndefined();
    expect((await statistics.read()).kinds["flat"]).toMatchObject({ completed: 2, failed: 2, predictionError: null });
    expect(await submit({ ...asked, command: ["sh", "-c", "exit {parallel}"] }).ended).toBeUndefined();
    expect((await statistics.read()).kinds["flat"]!.predictionError).toBeGreaterThan(0);
  });

  test("under a policy without curves nothing is tried", async () => {
    const { call, submit } = await serve({ "flat.json": profileOf("flat", 1) }, ["flat.json"], {
      policy: "fixed-dop",
      dop: 2,
    });
    const { trajectory } = await call("OpenTrajectory", {});
    const granted: unknown[] = [];
    for (let i = 0; i < 12; i++) {
      const action = submit({ trajectory, kind: "flat", cost: {}, command: ["sh", "-c", "true {parallel}"] });
      expect(await action.ended).toBeUndefined();
      granted.push(action.events.find(({ started }) => started)!.started!.allocation["cpu"]);
    }
    expect(granted).toEqual(granted.map(() => 2));
  });

  test.each([
    ["is not there", {}, ["gone.json"], /^profiles\.0: 'gone\.json' cannot be read: /],
    ["is no JSON", { "a.json": "{" }, ["a.json"], /^profiles\.0: 'a\.json' is no JSON: .*; measure it with 'treadle/],
    ["is no profile", { "a.json": "{}" }, ["a.json"], /^profiles\.0: 'a\.json' is no profile: version: .*; measure/],
    [
      "is the second of its kind",
      { "a.json": profileOf("k", 1), "b.json": profileOf("k", 1) },
      ["a.json", "b.json"],
      /^profiles\.1: 'b\.json' is of kind 'k', as 'a\.json' is; name one of them/,
    ],
  ])("one that %s is refused at the start", async (_, files, profiles, message) => {
    await expect(serve(files as unknown as Record<string, string>, profiles)).rejects.toMatchObject({
      code: "config.invalid",
      message: expect.stringMatching(message),
    });
  });
});
