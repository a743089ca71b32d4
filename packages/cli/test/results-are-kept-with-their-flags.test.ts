import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { stringify } from "yaml";
import { compareDrawn, type DrawnOptions, type DrawnResult } from "../src/comparison/drawn-workloads.ts";

const measuredWith = { settings: ["a.b=1", "c=2"], steps: 4, precision: 0.01 };

/** A file with one result of a workflow whose every draw is the same, so that nothing is left to be measured. */
async function kept(row: object) {
  const folder = await mkdtemp(join(tmpdir(), "treadle-test-"));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  const drawer = "const configOf = () => ({ batch: 1 });\nexport { configOf };\n";
  await writeFile(join(folder, "package.json"), '{ "type": "module" }');
  await writeFile(
    join(folder, "draw.js"),
    `${drawer}export const draw = () => ({});\nexport const smaller = () => [];\n`,
  );
  const resultsFile = join(folder, "results.jsonl");
  const result = { seed: 3, index: 0, configuration: stringify({ batch: 1 }), failure: "it was never meant to" };
  await writeFile(resultsFile, `${JSON.stringify({ ...result, ...row })}\n`);
  const printed: string[] = [];
  const again = async (more: Partial<DrawnOptions> = {}): Promise<DrawnResult[]> => {
    const results: DrawnResult[] = [];
    const flags = { overrides: ["c=2", "a.b=0", "a.b=1"], steps: 4, precision: 0.01, repeats: 0 };
    const drawn = { count: 1, seeds: [3], parallel: 1, mostShrinks: 0, script: "none" };
    const options = { workflow: folder, projectRoot: folder, resultsFile, ...flags, ...drawn, ...more };
    await compareDrawn({ ...options, print: (text) => printed.push(text) } as DrawnOptions, (one) => results.push(one));
    return results;
  };
  return { resultsFile, again, printed };
}

test("a result is not measured again where it was with the same flags, whatever their order", async () => {
  const { again, printed, resultsFile } = await kept({ measuredWith });
  const before = await readFile(resultsFile, "utf8");
  expect(await again()).toMatchObject([{ seed: 3, index: 0, measuredWith }]);
  expect(printed).toEqual([]);
  expect(await readFile(resultsFile, "utf8")).toBe(before);
});

test.each([{ steps: 5 }, { precision: 0.02 }, { overrides: ["a.b=1"] }, { overrides: ["a.b=1", "c=3"] }])(
  "a result that was measured in another way than %j is refused, with what to do",
  async (flags) => {
    const { again } = await kept({ measuredWith });
    await expect(again(flags)).rejects.toThrow(
      /has workload 0 of seed 3 as measured with '--set a\.b=1 --set c=2 --steps 4 --precision 0\.01', and asked for is '.*'; give the same flags, or another file/,
    );
  },
);

test("of results that do not say how they were measured, as those of earlier versions, that is said", async () => {
  const { again, printed } = await kept({});
  expect(await again({ steps: 9 })).toHaveLength(1);
  expect(printed.join()).toMatch(
    /1 of the results in '.*' are of an earlier version, which did not keep --set, --steps/,
  );
});
