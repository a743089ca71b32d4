/** What Treadle runs on beside the oldest Node that it takes. `npm run test:node -- 22 24` runs far more by others. */
import { spawn } from "node:child_process";
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { expect, test } from "vitest";
import { command, projectRoot } from "../support/project.ts";
import { secondNode } from "../support/second-node.ts";
import { type Finished, temporaryRuns } from "../support/treadle.ts";

const newestMajor = 24;
/** `npm run test:node` names the one that it tests. */
const program = process.env["TREADLE_NODE"] ?? (await secondNode(newestMajor));

function byOther(args: readonly string[]): Promise<Finished> {
  const child = spawn(program as string, [command, ...args], { cwd: projectRoot, stdio: ["ignore", "pipe", "pipe"] });
  const said = { stdout: "", stderr: "" };
  for (const name of ["stdout", "stderr"] as const) {
    child[name].on("data", (bytes) => {
      said[name] += bytes;
    });
  }
  return new Promise((resolve) => child.on("close", (code) => resolve({ code, ...said })));
}

// Node's own words for what it will not do much longer.
const warning = /\[DEP\d+\]|(Deprecation|Experimental)?Warning:/;

const little = ["maxRanks=1", "batch=8", "evaluation.problems=8", "evaluation.validationProblems=8"];
const untaught = ["imitation.problems=8", "imitation.rows=8", "imitation.updates=1", "imitation.maxRounds=1"];
const settings = ["steps=2", ...little, ...untaught].flatMap((set) => ["--set", set]);

test.skipIf(program === undefined)(
  "the reasoning workflow runs by another Node, which warns of nothing (needs the package registry)",
  async () => {
    await using runs = await temporaryRuns();
    const args = ["run", "workflows/reasoning-grpo", "--plain", "--runs", runs.path, ...settings];
    const { code, stdout, stderr } = await byOther(args);
    expect(stderr).not.toMatch(warning);
    expect(stdout).toMatch(/finished 2 steps/);
    expect(code).toBe(0);
    const [runId] = (await readdir(runs.path)) as [string];
    const logs = await readdir(join(runs.path, runId, "logs"));
    expect(logs.length).toBeGreaterThan(2); // of each worker
    for (const log of logs)
      expect(await readFile(join(runs.path, runId, "logs", log), "utf8"), log).not.toMatch(warning);
  },
);

test.skipIf(program === undefined)(
  "a project is written by another Node, which warns of nothing (needs the package registry)",
  async () => {
    await using folder = await temporaryRuns();
    const written = join(folder.path, "project");
    const { code, stderr } = await byOther(["init", written, "--template", "own", "--no-install"]);
    expect(stderr).not.toMatch(warning);
    expect(code).toBe(0);
    expect(await readdir(written)).toEqual(expect.arrayContaining(["package.json", "workflows"]));
  },
);
