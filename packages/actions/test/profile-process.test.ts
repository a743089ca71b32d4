import { execFile } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, test } from "vitest";
import { ActionSpec, ElasticityProfile } from "../src/index.ts";

const treadle = fileURLToPath(new URL("../../cli/bin/treadle.js", import.meta.url));
const run = (args: string[]) =>
  promisify(execFile)(process.execPath, [treadle, "actions", "profile", "--driver", "process", ...args]).catch(
    (error: { code: number; stdout: string; stderr: string }) => error,
  );

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "treadle-profile-"));
  for (const name of ["a", "b"])
    writeFileSync(
      join(folder, `${name}.test.mjs`),
      `import { test } from "node:test"; test("${name}", () => { for (let i = 0; i < 1e6; i++); });`,
    );
});
afterAll(() => rmSync(folder, { recursive: true }));

test("a test suite's profile is kept as fields that an action takes", async () => {
  const out = join(folder, "suite.json");
  const once = ["--samples", "1", "--tries", "1", "--units", "1,2"];
  const { stdout } = await run([...once, "--kind", "suite", "--folder", folder, "--out", out, "--", "node", "--test"]);
  expect(stdout).toContain("node --test --test-concurrency={parallel} on 1, 2 cores");
  const profile = ElasticityProfile.parse(JSON.parse(readFileSync(out, "utf8")));
  expect(profile.samples.map(({ units }) => units)).toEqual([1, 2]);
  const { kind, duration, elasticity } = profile;
  const spec = ActionSpec.parse({ kind, duration, elasticity, cost: { cpu: { min: 1, max: 2 } }, key: "cpu" });
  expect(spec.duration).toBe(profile.samples[0]!.seconds);
});

test.each([
  [["--", "make", "test"], "'make test' has no place for the number of cores"],
  [["--units", "1,4096", "--", "pytest"], "'4096' is more than this machine's"],
  [["--folder", "/nowhere/at/all", "--", "pytest"], "'/nowhere/at/all' cannot be packed"],
  [["--samples", "none", "--", "pytest"], "samples"],
])("%j is refused with the remedy", async (args, message) => {
  const { code, stderr } = (await run(args)) as { code: number; stderr: string };
  expect(code).toBe(2);
  expect(stderr.replace(/\s+/g, " ")).toContain(message);
  expect(stderr).not.toContain("    at ");
});
