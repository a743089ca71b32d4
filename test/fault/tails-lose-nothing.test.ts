/** Steps that end early: whichever rank dies, whenever, and the runner too, no prompt is lost and none is trained twice. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { RunEvent } from "@treadle/contracts";
import { createRandom } from "@treadle/learning";
import { resumeRun, runWorkflow } from "@treadle/runtime/runner";
import { afterEach, beforeEach, expect, test } from "vitest";
import { pidOf } from "../support/cluster.ts";
import { expectWholeTailLedger, readTailLedger } from "../support/learning-ledger.ts";
import { expectCleanEnd, ledgerOptions, pidsOf } from "../support/ledger.ts";
import { projectRoot } from "../support/project.ts";

let root: string;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), "treadle-runs-"));
});
afterEach(() => rm(root, { recursive: true, force: true }));

const random = createRandom(Number(process.env.TREADLE_SEED)).split("tails");
const workflow = join(projectRoot, "test/support/workflows/learning-ledger");
const batch = 12;

/** Kills a rank of the component in these steps, at a drawn instant of each. */
function struck(steps: readonly number[], component = "project-rollout") {
  const events: RunEvent[] = [];
  const struckWorkers: string[] = [];
  const left = new Set(steps);
  const strike = async (step: number) => {
    const worker = `${component}/${random.split(`${step} rank`).integer(2)}`;
    await new Promise((resolve) => setTimeout(resolve, 120 * random.split(`${step} when`).float()));
    try {
      process.kill(pidOf(events, worker), "SIGKILL");
      struckWorkers.push(worker);
    } catch {
      // it is starting again just now
    }
  };
  const onEvent = (event: RunEvent) => {
    events.push(event);
    // Once in each step, also where that is done again.
    if (event.type === "step-started" && left.delete(event.step)) void strike(event.step);
  };
  return { events, struckWorkers, onEvent };
}

const tailOf = (tail: string, samples: number, prompts: number) => [
  `rollout.tail=${tail}`,
  `rollout.oversample.samples=${samples}`,
  `rollout.oversample.prompts=${prompts}`,
  `batch=${batch}`,
];

test("TL1, TL5, C6, QP1, QP2: 'cut' of samples, others in the place of prompts that are rewarded alike: each is trained once, cut, or waits, whichever rank dies", async () => {
  const { events, struckWorkers, onEvent } = struck([2, 3, 4]);
  const overrides = ["placement.mode=spatial", "steps=5", "groupSize=8", "rollout.resample=2"];
  const all = [...overrides, ...tailOf("cut", 2, 1)];
  const { summary } = await runWorkflow({ ...ledgerOptions(root, onEvent, all), workflow });
  expect(struckWorkers.length).toBeGreaterThan(0);
  const folder = join(root, summary.runId);
  await expectWholeTailLedger(folder, 5);
  const { steps, trained } = await readTailLedger(folder);
  expect(trained.length).toBeGreaterThanOrEqual(5 * batch);
  for (const metric of ["cutWithGroup", "groupsReplaced"])
    expect(steps.some(({ metrics }) => (metrics[metric] as number) > 0)).toBe(true);
  await expectCleanEnd(summary.runId, folder, pidsOf(events));
}, 240_000);

test("TL1: 'cut' of prompts trains as many as a step wants, and names the others", async () => {
  const overrides = ["placement.mode=spatial", "steps=4", "groupSize=8", ...tailOf("cut", 1, 1.5)];
  const { summary } = await runWorkflow({ ...ledgerOptions(root, () => {}, overrides), workflow });
  const folder = join(root, summary.runId);
  await expectWholeTailLedger(folder, 4);
  const { steps, waiting } = await readTailLedger(folder);
  expect(waiting).toEqual([]);
  for (const { given, cut, metrics } of steps) {
    expect(given).toHaveLength(1.5 * batch);
    // Of each rank, as metrics are averages.
    expect(cut).toHaveLength(2 * (metrics["promptsCut"] as number));
    expect(given.length - cut.length).toBeGreaterThanOrEqual(batch);
  }
}, 240_000);

test.each([
  ["batch", "temporal", 0, false],
  ["batch", "spatial", 1, false],
  ["carry", "temporal", 0, false],
  ["carry", "spatial", 1, false],
  ["carry", "temporal", 0, true],
  ["carry", "spatial", 1, true],
] as const)(
  "TL1, TQ1, TW4, TW5, CI1, CI2, W2: '%s' trains every prompt once or has it wait, whichever rank and runner dies: mode '%s', staleness %s, with a tool: %s",
  async (tail, mode, maxStaleness, hasTool) => {
    const { events, struckWorkers, onEvent } = struck([2, 4, 5]);
    const tools = struck([3, 7], "project-tool");
    const common = [`placement.mode=${mode}`, "flow.granularity=all", "steps=8", "groupSize=8", `tool=${hasTool}`];
    const overrides = [
      ...common,
      `flow.maxStaleness=${maxStaleness}`,
      // Of more that go on, more call again.
      ...tailOf(tail, tail === "batch" ? 1.5 : 1, hasTool ? 3 : 1.5),
    ];
    const kill = new AbortController();
    const killing = (event: RunEvent) => {
      onEvent(event);
      if (hasTool) tools.onEvent(event);
      if (event.type === "step-started" && event.step === 6)
        setTimeout(() => kill.abort(), 80 * random.split(`${mode} runner`).float());
    };
    const options = { ...ledgerOptions(root, killing, overrides), workflow };
    await expect(runWorkflow({ ...options, kill: kill.signal })).rejects.toMatchObject({ code: "run.stopped" });
    const started = events.find((event) => event.type === "run-started");
    const { runId } = started as { readonly runId: string };
    const { summary } = await resumeRun({ runId, runsRoot: root, projectRoot, onEvent });
    expect(summary.steps).toBe(8);
    expect(struckWorkers.length).toBeGreaterThan(0);
    const folder = join(root, runId);
    await expectWholeTailLedger(folder, 8);
    const { steps, numBehindAnswers } = await readTailLedger(folder);
    if (hasTool) expect([tools.struckWorkers.length > 0, numBehindAnswers > 0]).toEqual([true, true]);
    expect(steps.some(({ carried }) => carried.length > 0)).toBe(true);
    if (tail === "batch")
      expect(steps.some(({ given }) => given.length === batch)).toBe(true); // of late ones
    else expect(steps.some(({ metrics }) => (metrics["carriedTokens"] as number) > 0)).toBe(true);
    await expectCleanEnd(runId, folder, pidsOf(events));
  },
  240_000,
);

test.each(["restart", "keep"])(
  "W1, W2, TL1: what is carried on over new weights with '%s' is trained once, by tokens of the versions it says, whichever rank dies",
  async (onNewWeights) => {
    const { events, struckWorkers, onEvent } = struck([2, 4, 5]);
    // With a tool turns are long, so that some are under way when their step ends.
    const overrides = [
      ...["placement.mode=spatial", "flow.granularity=all", "steps=7", "groupSize=8", "tool=true"],
      ...["flow.maxStaleness=0", `rollout.onNewWeights=${onNewWeights}`],
      ...tailOf("carry", 1, 3),
    ];
    const { summary } = await runWorkflow({ ...ledgerOptions(root, onEvent, overrides), workflow });
    expect(struckWorkers.length).toBeGreaterThan(0);
    const folder = join(root, summary.runId);
    await expectWholeTailLedger(folder, 7);
    const { steps, numMixed } = await readTailLedger(folder);
    expect(steps.some(({ metrics }) => (metrics["carriedTokens"] as number) > 0)).toBe(true);
    // A turn that is drawn again is of one version.
    if (onNewWeights === "restart") expect(numMixed).toBe(0);
    else expect(numMixed).toBeGreaterThan(0);
    await expectCleanEnd(summary.runId, folder, pidsOf(events));
  },
  240_000,
);

test("CI2, RS8: what waits after a roll-back is what the committed steps say", async () => {
  const { events, struckWorkers, onEvent } = struck([4, 6], "ledger-actor");
  const common = ["placement.mode=spatial", "flow.granularity=all", "checkpoints.stateEverySteps=3", "steps=8"];
  const overrides = [...common, ...tailOf("batch", 1, 1.5)];
  const { summary } = await runWorkflow({ ...ledgerOptions(root, onEvent, overrides), workflow });
  expect(struckWorkers.length).toBeGreaterThan(0);
  expect(events.filter((event) => event.type === "step-started").length).toBeGreaterThan(8); // some were done again
  const folder = join(root, summary.runId);
  await expectWholeTailLedger(folder, 8);
  await expectCleanEnd(summary.runId, folder, pidsOf(events));
}, 240_000);
