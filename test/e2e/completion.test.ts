/** What a shell gets to choose from at a TAB. */
import { spawnSync } from "node:child_process";
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { expect, test } from "vitest";
import { startTreadle, temporaryRuns, treadle } from "../support/treadle.ts";

async function completed(folder: string, ...words: string[]): Promise<(string | undefined)[]> {
  const { code, stdout } = await startTreadle(["complete", "--", ...words], "", folder).finished;
  expect(code).toBe(0);
  const lines = stdout.split("\n").filter((line) => line !== "" && !line.startsWith(":"));
  return lines.map((line) => line.split("\t")[0]);
}

test("commands and options are completed, and workflows and runs of the project, of which there may be none", async () => {
  await using project = await temporaryRuns();
  const { path } = project;
  await writeFile(join(path, "package-lock.json"), "{}");
  expect(await completed(path, "ru")).toEqual(["run", "runs"]);
  expect(await completed(path, "run", "--se")).toEqual(["--set"]);
  expect(await completed(path, "run", "")).toEqual([]);
  expect(await completed(path, "trace", "")).toEqual([]);
  for (const name of ["one", "two", "no-workflow"]) await mkdir(join(path, "workflows", name), { recursive: true });
  for (const name of ["one", "two"]) await writeFile(join(path, "workflows", name, "config.yaml"), "");
  for (const run of ["20260101-one", "20260102-two"]) await mkdir(join(path, "runs", run), { recursive: true });
  expect(await completed(path, "run", "wo")).toEqual([join("workflows", "one"), join("workflows", "two")]);
  expect(await completed(path, "trace", "")).toEqual(["20260102-two", "20260101-one"]);
}, 360_000);

test("bash takes the script that it is given", async () => {
  const { stdout } = await treadle(["completion", "bash"]);
  expect(stdout).toContain("treadle");
  expect(spawnSync("bash", ["-n"], { input: stdout, encoding: "utf8" })).toMatchObject({ status: 0, stderr: "" });
});
