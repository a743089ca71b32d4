/** The same run, which nobody strikes: what a struck one has to have learnt. */
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { expect } from "vitest";
import { readRecords } from "../../packages/runtime/src/runner/run/journal.ts";
import { startTreadle } from "../support/treadle.ts";

/** `runs`: a folder for its own. */
export type Learnt = { readonly workflow: string; readonly runs: string; readonly overrides: readonly string[] };

/** Of a step, what work counts and earns, and by which weights; the rest sums floats in the order in which ranks come. */
const counted = ["tokens", "reward", "episodes", "samples", "policyVersion"];

/** Every step was given the same prompts, answered them with the same tokens, and made the same version of the weights. */
export async function expectLearntAsUndisturbed(folder: string, steps: number, of: Learnt): Promise<void> {
  const struck = await stepsIn(folder);
  expect(struck).toHaveLength(steps);
  const alone = await undisturbed(steps, of);
  const known = counted.filter((name) => name in (alone[0]?.metrics ?? {}));
  expect(known.length).toBeGreaterThan(1);
  for (const [at, { items, metrics }] of alone.slice(0, steps).entries()) {
    expect(struck[at]!.items, `items of step ${at + 1}`).toEqual(items);
    for (const name of known)
      expect(struck[at]!.metrics[name], `'${name}' of step ${at + 1}`).toBeCloseTo(metrics[name]!, 6);
  }
}

/** As many steps at least; those that a judge asks for later are few, and made at once. */
const few = 8;
const made = new Map<string, Promise<Awaited<ReturnType<typeof stepsIn>>>>();

async function undisturbed(steps: number, { workflow, runs: root, overrides }: Learnt) {
  const known = await made.get(root);
  if (known && known.length >= steps) return known;
  const run = async () => {
    const runs = join(root, `undisturbed-${steps}`);
    const set = [`steps=${steps + few}`, ...overrides].flatMap((override) => ["--set", override]);
    const { finished } = startTreadle(["run", workflow, "--runs", runs, "--json", ...set]);
    const { code, stderr } = await finished;
    if (code !== 0) throw new Error(`the run that nobody struck ended with ${code}: ${stderr.slice(-2000)}`);
    const [runId] = (await readdir(runs)).filter((name) => !name.startsWith("."));
    return stepsIn(join(runs, runId as string));
  };
  const making = run();
  made.set(root, making);
  return making;
}

async function stepsIn(folder: string) {
  const path = join(folder, "journal.jsonl");
  const { records } = readRecords(await readFile(path, "utf8"), path);
  return records.filter((record) => record.type === "step");
}
