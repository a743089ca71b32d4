/**
 * What is learnt, and do execution modes learn the same? Trains the same seeds in each mode, one run at a time: a row a run,
 * with held-out accuracy untrained, after imitation and at the end. Then it compares each mode with the first, seed by seed.
 *
 *     node --conditions=source --import tsx workflows/reasoning-grpo/compare-modes.ts
 *     node --conditions=source --import tsx workflows/reasoning-grpo/compare-modes.ts --modes temporal,auto --steps 100
 */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { runWorkflow } from "treadle/runner";
import { z } from "zod";
import { comparePairs, meanAndError } from "./paired-comparison.ts";
import { readOptions } from "./read-options.ts";

const split = z.string().transform((text) => text.split(","));
const Options = z.strictObject({
  /** one says nothing about how much runs of a mode differ */
  seeds: split.pipe(z.array(z.string().regex(/^\d+$/)).min(2)).default(["1", "2", "3", "4", "5"]),
  modes: split
    .pipe(z.array(z.enum(["temporal", "spatial", "hybrid", "auto"])).min(1))
    .default(["temporal", "spatial", "hybrid", "auto"]),
  /** by default those of the workflow's configuration */
  steps: z.coerce.number().int().positive().optional(),
  set: z.array(z.string()).default([]),
  /** a folder of another workflow that reports accuracies and has `model.seed` */
  workflow: z.string().default(fileURLToPath(new URL(".", import.meta.url))),
  /** by default the workflow's `config.yaml` */
  config: z.string().optional(),
});

const { seeds, modes, steps, set, workflow, config: configFile } = readOptions(Options, ["set"]);

const projectRoot = fileURLToPath(new URL("../..", import.meta.url));
const runsRoot = await mkdtemp(join(tmpdir(), "treadle-compare-"));
const percent = (share: number) => `${(100 * share).toFixed(1)} %`;

/** Held-out accuracy after training. */
async function train(mode: string, seed: string): Promise<number> {
  const overrides = [`seed=${seed}`, `model.seed=${seed}`, `placement.mode=${mode}`, "trace=false"];
  const fewer = steps === undefined ? [] : [`steps=${steps}`];
  const all = [...overrides, ...fewer, ...set];
  const options = { workflow, configFile, projectRoot, runsRoot, overrides: all };
  const { summary } = await runWorkflow({ ...options, onEvent: () => {} });
  const { evalBefore, evalAtStart, evalAfter, seconds } = summary;
  if (evalBefore === null || evalAtStart === null || evalAfter === null) {
    throw new Error(`the run of seed '${seed}' was not evaluated`);
  }
  const accuracies = [evalBefore, evalAtStart, evalAfter].map(percent).join(" | ");
  console.log(`| ${mode} | ${seed} | ${accuracies} | ${seconds.toFixed(0)} |`);
  return evalAfter;
}

try {
  console.log("| mode | seed | untrained | imitated | final | seconds |\n| --- | --- | --- | --- | --- | --- |");
  const accuracies = new Map<string, number[]>(modes.map((mode) => [mode, []]));
  // Seed by seed, so that whatever else the machine does meets all modes alike.
  for (const seed of seeds) for (const mode of modes) accuracies.get(mode)?.push(await train(mode, seed));
  console.log(`\n| ${seeds.length} seeds | final |\n| --- | --- |`);
  for (const [mode, each] of accuracies) {
    const { mean, standardError } = meanAndError(each);
    console.log(`| ${mode} | ${percent(mean)} ± ${percent(standardError)} |`);
  }
  const [first, ...others] = modes as [string, ...string[]];
  for (const other of others) {
    const { difference, low, high, pValue } = comparePairs(accuracies.get(other) ?? [], accuracies.get(first) ?? []);
    const verdict = low <= 0 && high >= 0 ? "no difference shown" : "different";
    const interval = `95 % interval ${percent(low)} to ${percent(high)}`;
    console.log(
      `| ${other} less ${first} | ${percent(difference)}, ${interval}, p = ${pValue.toFixed(2)}: ${verdict} |`,
    );
  }
} finally {
  await rm(runsRoot, { recursive: true, force: true });
}
