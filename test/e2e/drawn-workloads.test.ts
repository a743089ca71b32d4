import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { treadle } from "../support/treadle.ts";

test("drawn workloads that no plan fits, and wishes that make no sense, are told of one by one, each with its reason", async () => {
  const { code, stdout } = await treadle(
    ["compare", "test/support/workflows/impossible-draws", "--random", "5", "--seed", "3", "--shrink", "0"].concat([
      "--parallel",
      "2",
    ]),
  );
  expect(code).toBe(0);
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
