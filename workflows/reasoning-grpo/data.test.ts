/** The workflow runs on a file's problems, with the tokenizer of a folder and a reward in Python, by configuration alone. */
import { appendFile, copyFile, mkdir, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { type CompletionRecord, completionFolder, type RunEvent } from "@treadle/contracts";
import { resumeRun, runWorkflow } from "@treadle/runtime/runner";
import { afterAll, beforeAll, expect, test } from "vitest";

const projectRoot = fileURLToPath(new URL("../..", import.meta.url));
const workflow = fileURLToPath(new URL(".", import.meta.url));
const configFile = join(workflow, "data.yaml");

/** Below the project's root, as data have to be. */
let folder: string;
let runsRoot: string;
beforeAll(async () => {
  await mkdir(join(projectRoot, ".treadle"), { recursive: true });
  folder = await mkdtemp(join(projectRoot, ".treadle", "data-test-"));
  runsRoot = await mkdtemp(join(tmpdir(), "treadle-data-runs-"));
  await copyFile(join(workflow, "problems.jsonl"), join(folder, "problems.jsonl"));
  await writeFile(
    join(folder, "rewards.py"),
    "def score(prompt, completion, answer, metadata):\n    assert prompt.endswith('='), prompt\n    return len(completion) / 4 + (completion == answer)\n",
  );
});
afterAll(async () => {
  await rm(folder, { recursive: true, force: true });
  await rm(runsRoot, { recursive: true, force: true });
});

const overrides = () => [
  ...[
    "steps=6",
    "batch=32",
    "maxRanks=1",
    "cluster.devices=1",
    "trace=false",
    "observe={trackers: [{kind: tensorboard}]}",
    "checkpoints.everySteps=1000",
  ],
  ...[
    "model.layers=1",
    "model.width=16",
    "model.heads=2",
    "evaluation={problems: 4, validationProblems: 4, everySteps: 1000}",
  ],
  ...["imitation={problems: 20, learningRate: 0.002, rows: 32, updates: 2, untilAccuracy: 1, maxRounds: 1}"],
  ...[`data.train=${join(folder, "problems.jsonl").slice(projectRoot.length)}`],
  ...[`reward={name: python, function: "${join(folder, "rewards.py")}:score"}`],
];

test("a run that was stopped goes on with the file's next problems, and with another file it is refused", async () => {
  const stop = new AbortController();
  const stopAt = (step: number) => (event: RunEvent) => {
    if (event.type === "step-started" && event.step === step) stop.abort();
  };
  const options = { workflow, configFile, projectRoot, runsRoot, overrides: overrides() };
  const { summary: whole } = await runWorkflow({ ...options, onEvent: () => {} });
  const { summary: begun } = await runWorkflow({ ...options, onEvent: stopAt(3), stop: stop.signal });
  expect(begun.steps).toBeLessThan(6);

  const changed = await readFile(join(folder, "problems.jsonl"));
  await appendFile(join(folder, "problems.jsonl"), '{"problem": "1+1=", "answer": "2"}\n');
  const resume = { runId: begun.runId, runsRoot, projectRoot, onEvent: () => {} };
  await expect(resumeRun(resume)).rejects.toThrow("not those that the run began with");
  await writeFile(join(folder, "problems.jsonl"), changed);
  const { summary } = await resumeRun(resume);
  expect(summary.steps).toBe(6);

  const rewardsOf = async (runId: string) => {
    const lines = (await readFile(join(runsRoot, runId, "metrics.jsonl"), "utf8")).trim().split("\n");
    // Scores arrive in any order, so sums of floating point differ in their last bits; those of rewards are exact.
    return lines
      .map((line) => JSON.parse(line) as { step: number; reward: number })
      .map(({ step, reward }) => [step, reward]);
  };
  expect(await rewardsOf(summary.runId)).toEqual(await rewardsOf(whole.runId));

  const eventFiles = await readdir(join(runsRoot, whole.runId, "tensorboard"));
  expect(eventFiles).toEqual([expect.stringMatching(/^events\.out\.tfevents\./)]);

  const kept = join(runsRoot, whole.runId, "artifacts", completionFolder, "step-000001-rollout-0.jsonl");
  const records = (await readFile(kept, "utf8"))
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line) as CompletionRecord);
  const problems = changed.toString();
  for (const { turns, answer } of records) {
    expect(problems).toContain(
      JSON.stringify({ problem: turns[0]?.text, answer }).replace(",", ", ").replaceAll('":', '": '),
    );
  }
}, 600_000);
