/** Every algorithm trains the policy in real processes, by configuration alone; and what it computes can be repeated. */
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { RunEvent } from "@treadle/contracts";
import { algorithmNames } from "@treadle/learning";
import { resumeRun, runWorkflow } from "@treadle/runtime/runner";
import { afterAll, beforeAll, expect, test } from "vitest";

const steps = 40;
const projectRoot = fileURLToPath(new URL("../..", import.meta.url));
const workflow = fileURLToPath(new URL(".", import.meta.url));

/** One-digit addition and a policy of one layer: an algorithm needs seconds to show that it learns. */
const small = [
  ...["task.minOperand=0", "task.maxOperand=9", "model.layers=1", "model.width=32", "model.contextLength=8"],
  ...["imitation.updates=5", "imitation.rows=64"],
  ...[
    "imitation.problems=20",
    "task.heldOutFraction=0.1",
    "task.validationFraction=0.1",
    "groupSize=8",
    "temperature=1",
    "weightDecay=0",
  ],
  ...["reward={name: arithmetic}", "evaluation.validationProblems=2"],
  ...["evaluation.problems=3", "evaluation.everySteps=1000", "maxRanks=1", "cluster.devices=1"],
  ...["batch=32", `steps=${steps}`, "learningRate=0.004", "checkpoints.everySteps=1000", "trace=false"],
];
const settings: Readonly<Record<string, readonly string[]>> = {
  ppo: ["algorithm={name: ppo}", "epochs=2", "minibatches=2", "learningRate={peak: 0.006, final: 0.004}"],
};
const overridesOf = (name: string) => [...small, ...(settings[name] ?? [`algorithm={name: "${name}"}`])];

let runsRoot: string;
beforeAll(async () => {
  runsRoot = await mkdtemp(join(tmpdir(), "treadle-algorithms-"));
});
afterAll(() => rm(runsRoot, { recursive: true, force: true }));

type Metrics = { [name: string]: number; reward: number; kl: number; valueLoss: number; policyVersion: number };

/** What each step reported, without what it took. */
async function metricsOf(runId: string): Promise<Metrics[]> {
  const lines = (await readFile(join(runsRoot, runId, "metrics.jsonl"), "utf8")).trim().split("\n");
  return lines.map((line) => {
    const { seconds: _, ...metrics } = JSON.parse(line);
    return metrics as Metrics;
  });
}

async function train(name: string, onEvent: (event: RunEvent) => void = () => {}, stop?: AbortSignal) {
  const overrides = overridesOf(name);
  const { summary } = await runWorkflow({ workflow, projectRoot, runsRoot, overrides, onEvent, stop });
  return summary.runId;
}

const meanReward = (metrics: readonly Metrics[]) =>
  metrics.reduce((sum, { reward }) => sum + reward, 0) / metrics.length;
const versionOf = (metrics: Metrics | undefined) => metrics?.policyVersion ?? 0;

const undisturbed = new Map<string, Metrics[]>();

test.each(algorithmNames)(
  "%s raises the reward",
  async (name) => {
    const metrics = await metricsOf(await train(name));
    undisturbed.set(name, metrics);
    expect(metrics).toHaveLength(steps);
    const [before, after] = [meanReward(metrics.slice(0, 2)), meanReward(metrics.slice(-5))];
    expect(before).toBeLessThan(0.2);
    expect(after).toBeGreaterThan(1.8 * before);
    const optimiserSteps = versionOf(metrics.at(-1)) - versionOf(metrics[0]);
    expect(optimiserSteps).toBe((steps - 1) * (name === "ppo" ? 4 : 1));
  },
  240_000,
);

test("ppo's critic comes to know what episodes are worth", () => {
  const metrics = undisturbed.get("ppo") ?? [];
  // Half the squared error against what it would be for a critic that always says the mean reward.
  const errorOf = (part: readonly Metrics[]) =>
    part.reduce((sum, { valueLoss, reward }) => sum + valueLoss / (reward * (1 - reward) * 0.5), 0) / part.length;
  expect(errorOf(metrics.slice(-10))).toBeLessThan(0.85);
});

test("reinforce++ leaves its reference behind, which stays the policy after imitation", () => {
  const metrics = undisturbed.get("reinforce++") ?? [];
  expect(Math.abs(metrics[0]?.kl ?? 1)).toBeLessThan(1e-4);
  expect(metrics.at(-1)?.kl).toBeGreaterThan(0.05);
});

test("a killed inference worker and a resumed run change no number, so the reference and every seed outlive both", async () => {
  const stop = new AbortController();
  let pid: number | undefined;
  const disturb = (event: RunEvent) => {
    if (event.type === "worker-started" && event.worker === "inference/0") pid = event.pid;
    if (event.type !== "step-started") return;
    if (event.step === 8 && pid !== undefined) process.kill(pid, "SIGKILL");
    if (event.step === 16) stop.abort();
  };
  const runId = await train("reinforce++", disturb, stop.signal);
  expect((await metricsOf(runId)).length).toBeLessThan(steps);
  const { summary } = await resumeRun({ runId, runsRoot, projectRoot, onEvent: () => {} });
  expect(summary.steps).toBe(steps);
  expect(await metricsOf(runId)).toEqual(undisturbed.get("reinforce++"));
}, 360_000);
