import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { treadle } from "../support/treadle.ts";

let folder: string;
let file: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-simulate-actions-"));
  file = join(folder, "scenario.yaml");
  await writeFile(
    file,
    `points: [{ batch: 20, cores: 20 }, { batch: 40, cores: 20 }]
nodes: 2
fixedDegrees: [1, 4]
coding: { turns: [3], tools: [{ p90Seconds: 2, meanSeconds: 3 }], rewardMedianSeconds: [30], serialShare: [[0.005, 0.3]] }
services: { models: 2, gpusPerModel: [4], taskSpread: [0], batch: [16], skew: [1], requestMedianSeconds: [5], restoreSeconds: [1], serverSlots: [1] }
`,
  );
});
afterAll(() => rm(folder, { recursive: true, force: true }));

test("a scenario's policies, pods and GPUs are compared in a table and a page, with the best fixed degree beside", async () => {
  const page = join(folder, "page.html");
  const { code, stdout, stderr } = await treadle(["simulate", "actions", "--scenario", file, "--html", page]);
  expect(code, stderr).toBe(0);
  expect(stdout.match(/^\| 3 turns.*\|$/gm)).toHaveLength(2);
  expect(stdout).toContain("best fixed");
  expect(stdout).toMatch(/\| \d+ of 8 \||more than 8/);
  const html = await readFile(page, "utf8");
  for (const name of ["unit-aware", "best fixed", "pods, 4 at work", "<svg"]) expect(html).toContain(name);
});

test("pods start more slowly where the control plane is slow", async () => {
  const tool = async (...args: string[]): Promise<number> => {
    const { stdout } = await treadle(["simulate", "actions", "--scenario", file, "--json", ...args]);
    return JSON.parse(stdout).coding[0].pods[0].figures.tool;
  };
  expect(await tool("--pod-rate", "0.05")).toBeGreaterThan(await tool("--pod-rate", "50"));
});

test.each([
  [["--scenario", "none"], "'none' cannot be read"],
  [["--pod-rate", "fast"], "pods.podsPerSecond"],
  [["--seed", "-1"], "seed"],
])("%j is refused with what is wrong", async (args, message) => {
  const { code, stderr } = await treadle(["simulate", "actions", ...args]);
  expect(code).toBe(2);
  expect(stderr).toContain(message);
  expect(stderr).not.toContain("    at ");
});
