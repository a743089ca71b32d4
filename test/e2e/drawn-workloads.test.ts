import { readFileSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { parse } from "yaml";
import { childrenOf, isAlive } from "../support/cluster.ts";
import { startTreadle, treadle, until } from "../support/treadle.ts";

test("drawn workloads that no plan fits, and wishes that make no sense, are told of one by one, each with its reason", async () => {
  const { code, stdout } = await treadle(
    ["compare", "test/support/workflows/impossible-draws", "--random", "5", "--seed", "3", "--shrink", "0"].concat([
      "--parallel",
      "2",
    ]),
  );
  expect(code, "what cannot run keeps no promise").toBe(1);
  for (const [index, reason] of [
    "component 'last' spans 3 devices a rank, but there are only 2 devices for it",
    "'first' and 'last' cannot be kept both apart and together; drop one of the two wishes",
    "placement.wishes.maxRanks.last: too small: expected number to be >0; got '0'",
    "stages.last.ranks.max: too small: expected number to be >0; got '0'",
    "'0-1' leaves none of 2 devices to run on; keep fewer free",
  ].entries()) {
    const line = stdout.split(`- 3-${index} did not run: `)[1]?.split("\n- ")[0];
    expect(line).toContain(reason);
  }
}, 60_000);

test("what cannot run is made as small as it can be while it fails in the same way, and printed as a configuration", async () => {
  const { stderr } = await treadle([
    "compare",
    "test/support/workflows/impossible-draws",
    "--random",
    "2",
    "--seed",
    "3",
    "--shrink",
    "20",
  ]);
  for (const [index, reason] of [
    "component 'last' spans 3 devices a rank",
    "'first' and 'last' cannot be kept both apart and together",
  ].entries()) {
    const printed = stderr.split(`# 3-${index}: did not run: `)[1]?.split(/\n(?:# )?3-/)[0] ?? "";
    expect(printed).toContain(reason);
    const { batch, stages } = parse(printed.slice(printed.indexOf("\n"))) as { batch: number; stages: object };
    expect(batch).toBe(1);
    expect(Object.keys(stages)).toEqual(["first", "last"]);
    expect(printed).not.toContain("dream");
  }
}, 120_000);

test("a file of results that cannot be written is refused before anything is measured", async () => {
  for (const file of ["no/such/folder/results.jsonl", "test"]) {
    const { code, stderr } = await treadle([
      "compare",
      "test/support/workflows/small-draws",
      "--random",
      "1",
      "--results",
      file,
    ]);
    expect(code).not.toBe(0);
    expect(stderr).toContain(`--results '${file}' cannot be `);
    expect(stderr).toContain("give a file that can be written, in a folder that exists");
    expect(stderr).not.toContain("0-0: profile");
  }
}, 60_000);

test("a drawn workload is measured in every mode, as planned and automatically, judged, kept, and not measured twice", async () => {
  const folder = await mkdtemp(join(tmpdir(), "treadle-test-"));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  const file = join(folder, "results.jsonl");
  const small = ["compare", "test/support/workflows/small-draws", "--random", "1", "--shrink", "0", "--steps", "2"];
  // Which promises two steps keep on a busy machine says nothing: what is judged, and that it is told, does.
  const { stdout, code } = await treadle([...small, "--repeats", "1", "--results", file]);
  const [row] = stdout.split("\n").filter((line) => line.startsWith("| 0-0 "));
  expect(row?.split("|").slice(2, 8).join("|")).toMatch(/^ 2 +\| 2 +(\| [\d.]+ m?s +){3}\| [\d.]+ m?s \(\w+\) +$/);
  expect(stdout).toContain("1 of 1 workloads ran.");
  const missed = stdout.includes("| missed |");
  expect(code).toBe(missed ? 1 : 0);
  const [kept] = readFileSync(file, "utf8")
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line));
  const plans = kept.compared.plans as { by: string; mode: string; stepSeconds: number }[];
  expect(plans.filter(({ by }) => by === "default").map(({ mode }) => mode)).toEqual(["temporal", "spatial", "hybrid"]);
  expect(plans.some(({ by }) => by === "planned")).toBe(true);
  expect(plans.at(-1)?.by).toBe("auto");
  for (const { stepSeconds } of plans) expect(stepSeconds).toBeGreaterThan(0.03);
  const again = await treadle([...small, "--results", file]);
  expect(again.stderr).not.toContain("profile");
  expect(again.stdout.split("\n").find((line) => line.startsWith("| 0-0 "))).toBe(row);
}, 240_000);

test("kept results are judged again without measuring, say so, and leave the file as it is", async () => {
  const file = "test/support/results/one-drawn-workload.jsonl";
  const before = readFileSync(file, "utf8");
  const { code, stdout } = await treadle(["compare", "workflows/emulated", "--results", file, "--again"]);
  expect(code).toBe(0);
  expect(stdout).toContain("| 21-0, judged again |");
  expect(stdout).toContain("its predictions and simulations are of the code as it is now");
  // Hybrid plans, whose swaps come in another order than their schedule has them: they were once predicted 12.7 % too high.
  expect(stdout).toContain("| others predicted within 5 % | 90 % | 2 of 2, 100 % |");
  expect(stdout).toContain("| simulated within 3 % | 90 % | 3 of 3, 100 % |");
  expect(readFileSync(file, "utf8")).toBe(before);
}, 60_000);

test("judging again needs a file of results, and nothing that draws or configures", async () => {
  const alone = await treadle(["compare", "workflows/emulated", "--seed", "3"]);
  expect(alone).toMatchObject({ code: 2 });
  expect(alone.stderr).toContain("--seed is of drawn workloads: add --random, or leave out --seed");
  const needs = "--again needs --results with a file of results, and neither --random nor --config";
  for (const flags of [[], ["--results", "results.jsonl", "--random", "2"]]) {
    const { code, stderr } = await treadle(["compare", "workflows/emulated", "--again", ...flags]);
    expect(code).not.toBe(0);
    expect(stderr).toContain(needs);
  }
  const none = await treadle(["compare", "workflows/emulated", "--again", "--results", "nowhere/results.jsonl"]);
  expect(none.code).not.toBe(0);
  expect(none.stderr).toContain("'nowhere/results.jsonl' has no results");
}, 60_000);

const pair = ["compare", "test/support/workflows/small-draws", "--random", "2", "--shrink", "0", "--steps", "2"].concat(
  ["--parallel", "2"],
);
const processesOf = (runner: number): number[] =>
  childrenOf(runner, "--apart").flatMap((pid) => [pid, ...childrenOf(pid, "/worker/main.")]);

test("each workload has a process of its own: one that is killed has failed, the other is measured", async () => {
  const { child, finished } = startTreadle(pair);
  await until(() => processesOf(child.pid as number).length >= 4);
  const [first] = childrenOf(child.pid as number, "--apart");
  const workers = processesOf(child.pid as number).filter((pid) => pid !== first);
  process.kill(first as number, "SIGKILL");
  const { code, stdout } = await finished;
  expect(code).toBe(1);
  expect(stdout).toMatch(/- 0-[01] did not run: the process that compared it was ended by SIGKILL/);
  expect(stdout).toContain("1 of 2 workloads ran.");
  await until(() => !workers.some(isAlive));
}, 240_000);

test.each(["SIGKILL", "SIGINT"] as const)(
  "no process stays when a comparison ends by %s",
  async (signal) => {
    const { child, finished } = startTreadle(pair);
    await until(() => processesOf(child.pid as number).length >= 4);
    const processes = processesOf(child.pid as number);
    child.kill(signal);
    await finished;
    await until(() => !processes.some(isAlive));
  },
  240_000,
);
