import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { FlowGraph, PlanPrediction, Profile } from "@treadle/contracts";
import { listRunIds } from "@treadle/runtime/runner";
import { expect, test } from "vitest";
import { ledgerWorkflow } from "../support/ledger.ts";
import { temporaryRuns, treadle } from "../support/treadle.ts";

test("a run finds its plan by itself, keeps what it measured, and the next one measures nothing", async () => {
  await using runs = await temporaryRuns();
  const profile = join(runs.path, "profile.json");
  const settings = [
    ...["placement.mode=auto", `placement.auto.profile=${profile}`, "placement.auto.trialRounds=2"],
    ...["cluster.devices=4", "steps=40"],
  ];
  const run = () =>
    treadle(["run", ledgerWorkflow, "--plain", "--runs", runs.path, ...settings.flatMap((each) => ["--set", each])]);
  const first = await run();
  expect(first).toMatchObject({ code: 0 });
  expect(first.stdout).toContain("no profile of 'ledger' is known");
  expect(first.stdout).toMatch(/chosen: (temporal|spatial|hybrid), expected to take/);
  expect(first.stdout).not.toContain("still looked for a plan");
  const kept = Profile.parse(JSON.parse(await readFile(profile, "utf8")));
  expect(Object.keys(kept.components).toSorted()).toEqual(["maker", "trainer"]);
  expect(kept.graph.edges).toMatchObject([{ from: "maker", to: "trainer", channel: "results", itemsPerStep: 12 }]);
  const again = await run();
  expect(again).toMatchObject({ code: 0 });
  expect(again.stdout).toContain("the profile of an earlier run matches");
  expect(again.stdout).not.toContain("measuring");
  const newest = (await listRunIds(runs.path)).at(-1) as string;
  const left = async (name: string) => JSON.parse(await readFile(join(runs.path, newest, name), "utf8"));
  const { components } = PlanPrediction.parse(await left("prediction.json"));
  expect(Object.entries(components).map(([name, seconds]) => [name, seconds > 0])).toEqual([
    ["maker", true],
    ["trainer", true],
  ]);
  expect(FlowGraph.parse(await left("graph.json"))).toEqual(kept.graph);
}, 480_000);

test("a run that ends while it measures says what that took, and that nothing came of it", async () => {
  await using runs = await temporaryRuns();
  const settings = ["placement.mode=auto", `placement.auto.profile=${join(runs.path, "profile.json")}`, "steps=2"];
  const flags = ["cluster.devices=4", ...settings].flatMap((each) => ["--set", each]);
  const short = await treadle(["run", ledgerWorkflow, "--plain", "--runs", runs.path, ...flags]);
  expect(short).toMatchObject({ code: 0 });
  expect(short.stdout + short.stderr).toMatch(
    /ended while automatic placement still looked for a plan, on which 2 steps and \d+\.\d s went; nothing is kept/,
  );
}, 480_000);

test("the flow graph of a workflow is traced and drawn", async () => {
  await using runs = await temporaryRuns();
  const file = join(runs.path, "flow.svg");
  const settings = [`placement.auto.profile=${join(runs.path, "profile.json")}`, "cluster.devices=2"];
  const flags = settings.flatMap((each) => ["--set", each]);
  const drawn = await treadle(["graph", ledgerWorkflow, "--svg", file, ...flags]);
  expect(drawn).toMatchObject({ code: 0 });
  expect(drawn.stdout).toContain("make  takes tasks (12 items");
  const svg = await readFile(file, "utf8");
  for (const word of ["<svg", "maker", "trainer", "results", "train()"]) expect(svg).toContain(word);
  const json = await treadle(["graph", ledgerWorkflow, "--json", ...flags]);
  expect(FlowGraph.parse(JSON.parse(json.stdout)).channels["results"]?.producers).toEqual(["maker"]);
}, 480_000);

test("a profile that is missing is said to be, with the remedy", async () => {
  const missing = await treadle(["graph", ledgerWorkflow, "--profile"]);
  expect(missing.code).toBe(2);
  expect(missing.stderr).toContain("make one with 'treadle profile'");
});
