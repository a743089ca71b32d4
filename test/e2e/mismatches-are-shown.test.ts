/** From an alarm to the tokens on which sampler and trainer differ: `treadle mismatch`, on the shipped workflow. */
import { mkdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { runWorkflow } from "@treadle/runtime/runner";
import { expect, test } from "vitest";
import { projectRoot } from "../support/project.ts";
import { temporaryRuns, treadle } from "../support/treadle.ts";

type Told = {
  readonly step: number;
  readonly numKept: number;
  readonly numEpisodes: number;
  readonly policyVersion: number;
  readonly samplerAndTrainer: { readonly meanKl: number; readonly maxKl: number; readonly tokens: number };
  readonly samplerAndRescored?: { readonly meanKl: number };
  readonly trainerAndRescored?: { readonly maxKl: number; readonly tokens: number };
  readonly rescored?: { readonly checkpoint: number; readonly policyVersion: number };
  readonly worst: readonly {
    readonly divergence: number;
    readonly sampler: number;
    readonly trainer?: number;
    readonly rescored?: number;
  }[];
};

test("a batch of stale samples is kept by the alarm, shown, and scored again with the weights that the trainer had", async () => {
  await using runs = await temporaryRuns();
  const { summary } = await runWorkflow({
    workflow: join(projectRoot, "workflows/reasoning-grpo"),
    projectRoot,
    runsRoot: runs.path,
    overrides: [
      ...["steps=6", "batch=32", "placement.mode=hybrid", "flow.maxStaleness=1", "rolloutCorrection.alarm=1e-9"],
      ...[
        "evaluation.problems=10",
        "evaluation.validationProblems=10",
        "checkpoints.everySteps=1",
        "checkpoints.keepLast=9",
      ],
      ...["imitation.maxRounds=1", "learningRate=0.01", `seed=${process.env["TREADLE_SEED"] ?? 1}`],
    ],
    onEvent: () => {},
  });
  const ask = async (...words: string[]) => treadle(["mismatch", summary.runId, "--runs", runs.path, ...words]);
  const json = async (...words: string[]) => {
    const { code, stdout, stderr } = await ask("--json", ...words);
    expect(code, stderr).toBe(0);
    return JSON.parse(stdout) as Told;
  };
  const kept = await json();
  // Which steps train on samples of earlier weights depends on who is quicker; the newest of them has two checkpoints before it.
  const { step } = kept;
  expect(step).toBeGreaterThanOrEqual(3);
  const [before, beforeThat] = [String(step - 1), String(step - 2)];
  expect(kept.numKept).toBe(kept.numEpisodes);
  expect(kept.samplerAndTrainer.maxKl).toBeGreaterThan(0);
  expect(kept.worst).toHaveLength(Math.min(20, kept.samplerAndTrainer.tokens));
  expect(kept).not.toHaveProperty("rescored");

  const newest = await json("--checkpoint", before, "--top", "3");
  expect(newest.rescored).toEqual({ checkpoint: step - 1, policyVersion: kept.policyVersion });
  // Inference has scored them, with these weights or, as the run allows it, with those before.
  const own = newest.trainerAndRescored?.maxKl === 0 ? newest : await json("--checkpoint", beforeThat, "--top", "3");
  expect(own.trainerAndRescored).toMatchObject({ maxKl: 0, tokens: own.samplerAndTrainer.tokens });
  for (const { divergence, sampler, trainer, rescored } of own.worst) {
    expect(rescored).toBe(trainer);
    expect(divergence).toBeCloseTo(Math.expm1(trainer! - sampler) - (trainer! - sampler), 6);
  }
  const later = await json("--checkpoint", "last");
  expect(later.trainerAndRescored!.maxKl).toBeGreaterThan(0);

  const { stdout } = await ask("--checkpoint", beforeThat, "--top", "2");
  expect(stdout).toMatch(
    new RegExp(`^step ${step}: all \\d+ episodes, \\d+ tokens of the policy; trained by embedded from policy version`),
  );
  expect(stdout).toMatch(
    new RegExp(
      `scored again with the checkpoint of step ${beforeThat}, policy version \\d+; these are other weights than the trainer's, by \\d+ version`,
    ),
  );
  expect(stdout.trim().split("\n").slice(-3)).toEqual([
    expect.stringMatching(/^ *nats +sampler +trainer +rescored +token +position +version {2}prompt$/),
    ...Array(2).fill(expect.stringMatching(/^ *[\d.e-]+ +-[\d.]+ +-[\d.]+ +-[\d.]+ +\d+ +\d+ +\d+ {2}\S/)),
  ]);

  for (const [words, said] of [
    [["--step", "9"], new RegExp(`has no batch of step '9'.*it has those of .*${step}`, "s")],
    [["--step", "x"], /--step 'x' is not allowed/],
    [["--checkpoint", "best-ever"], /'--checkpoint' is 'best-ever'.*allowed are 'last', 'best'/s],
    [["--checkpoint", "17"], /keeps no checkpoint of step '17'.*name one/s],
    [["--checkpoint", "last", "--dtype", "bfloat16"], /the embedded engine has one type of numbers/],
  ] as const) {
    const refused = await ask(...words);
    expect(refused.code).not.toBe(0);
    expect(refused.stderr).toMatch(said);
  }
  const batches = join(runs.path, summary.runId, "artifacts/mismatch");
  await mkdir(join(batches, "step-000099"));
  expect(await json()).toMatchObject({ step, missingRanks: [], strayFiles: [], passedOver: [99] });
  expect((await ask()).stdout).toMatch(/newer, but not whole: step 99/);
  const empty = await ask("--step", "99");
  expect(empty.code).not.toBe(0);
  expect(empty.stderr).toMatch(/holds no\s+batch\s+of\s+this\s+step/);
  expect(empty.stderr).not.toMatch(/ENOENT/);

  const path = join(batches, `step-00000${step}/rank-0-1.safetensors`);
  const file = await readFile(path);
  file[file.length - 1]! ^= 1;
  await writeFile(path, file);
  const damaged = await ask();
  expect(damaged.code).not.toBe(0);
  expect(damaged.stderr).toMatch(/rank-0-1\.safetensors'\s+has checksum/);
}, 300_000);
