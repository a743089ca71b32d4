import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { treadle } from "../support/treadle.ts";

let folder: string;
let file: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-simulate-multiplex-"));
  file = join(folder, "scenario.yaml");
  await writeFile(
    file,
    "steps: 3\ndraws: 2\nruns: [[tools, tools]]\nmaxSlowdown: [null, 1.2]\nplacement: [temporal]\n",
  );
});
afterAll(() => rm(folder, { recursive: true, force: true }));

test("runs that share devices are compared with other ways to have them both, in a table and as one object", async () => {
  const args = ["simulate", "multiplex", "--scenario", file, "--seed", "3"];
  const { code, stdout, stderr } = await treadle(args);
  expect(code, stderr).toBe(0);
  expect(stdout.match(/^\| tools \+ tools \| 4 \| temporal .*\|$/gm)).toHaveLength(2);
  expect(stdout).toMatch(/^\| whole steps \| [\d.]+ \|/m);
  expect(stdout).toContain("with seed 3");
  const { comparisons } = JSON.parse((await treadle([...args, "--json"])).stdout) as {
    comparisons: { maxSlowdown: number | null; draws: { first: number; serial: number; leases: number }[] }[];
  };
  expect(comparisons.map(({ maxSlowdown }) => maxSlowdown)).toEqual([null, 1.2]);
  for (const { draws } of comparisons) expect(draws).toHaveLength(2);
});

test.each([
  [["--scenario", "none"], "'none' cannot be read"],
  [["--seed", "-1"], "seed"],
])("%j is refused with what is wrong", async (args, message) => {
  const { code, stderr } = await treadle(["simulate", "multiplex", ...args]);
  expect(code).toBe(2);
  expect(stderr).toContain(message);
  expect(stderr).not.toContain("    at ");
});

test("a bound below 1 and a single run are refused, by their keys", async () => {
  const wrong = join(folder, "wrong.yaml");
  await writeFile(wrong, "runs: [[tools]]\nmaxSlowdown: [0.5]\n");
  const { code, stderr } = await treadle(["simulate", "multiplex", "--scenario", wrong]);
  expect(code).toBe(2);
  expect(stderr).toContain("runs");
  expect(stderr).toContain("maxSlowdown");
});
