/** `tail: carry`: a runner that is killed, whenever, costs no prompt and no token of the episodes that go on after the committed steps. */
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import type { Prompt } from "@treadle/contracts";
import { createRandom } from "@treadle/learning";
import { RunFolder, resumeRun, runWorkflow } from "@treadle/runtime/runner";
import { expect, test } from "vitest";
import { CarriedFiles } from "../../packages/runtime/src/runner/run/carried-files.ts";
import { readRecords } from "../../packages/runtime/src/runner/run/journal.ts";
import { isAlive, until } from "../support/cluster.ts";
import { expectWholeTailLedger, readTailLedger } from "../support/learning-ledger.ts";
import { expectCleanEnd, ledgerOptions, pidsOf } from "../support/ledger.ts";
import { projectRoot } from "../support/project.ts";
import { type RunnerProcess, runnersOfEachTest } from "../support/runner-process.ts";

const runners = runnersOfEachTest();

const random = createRandom(Number(process.env.TREADLE_SEED)).split("carried");
const workflow = join(projectRoot, "test/support/workflows/learning-ledger");
const numKills = 3;

/** The last committed step, and how many tokens each prompt has that goes on after it. */
async function goingOn(folder: RunFolder) {
  const { records } = readRecords(await readFile(folder.journalFile, "utf8"), folder.journalFile);
  const last = records.findLast((record) => record.type === "step");
  const files = new CarriedFiles(folder);
  if (last?.waiting) await files.restore(last.waiting);
  const tokens = [...(files.waiting as ReadonlyMap<string, Prompt>)].map(
    ([id, { begun = [] }]) => [id, begun.reduce((sum, each) => sum + each.tokens.length, 0)] as const,
  );
  return { step: last?.step ?? 0, tokens: new Map(tokens) };
}

test.each([
  ["spatial", 1, 1, false],
  ["spatial", 1, 3, false],
  ["temporal", 0, 1, true],
] as const)(
  "J1, CI1, CI2, CI3, W2: mode '%s', staleness %s, states every %s steps, with a tool: %s",
  async (mode, maxStaleness, stateEverySteps, hasTool) => {
    // More than are committed before the last kill: a commit comes with others, and the next steps go on meanwhile.
    const numSteps = 8 * (1 + stateEverySteps);
    const draws = random.split(`${mode} ${stateEverySteps} ${hasTool}`);
    const overrides = [
      ...[`placement.mode=${mode}`, "flow.granularity=all", `flow.maxStaleness=${maxStaleness}`, `steps=${numSteps}`],
      ...["batch=12", "groupSize=8", `checkpoints.stateEverySteps=${stateEverySteps}`, `tool=${hasTool}`],
      ...["rollout.tail=carry", "rollout.oversample.samples=1", "rollout.oversample.prompts=1.5"],
    ];
    let runId = "new";
    const deaths: Awaited<ReturnType<typeof goingOn>>[] = [];
    for (let kill = 1; kill <= numKills; kill++) {
      const { child, events, exited } = begin(runId, overrides);
      const first = await until(() => events.find((event) => event.type === "run-started"), "the run to start", 60_000);
      runId = first.runId;
      const committed = (first.resumedFrom ?? 0) + 1 + draws.split(`${kill} step`).integer(2);
      await until(
        () => events.some((event) => event.type === "step-finished" && event.step >= committed),
        `step ${committed} to be committed`,
        120_000,
      );
      await new Promise((resolve) => setTimeout(resolve, 300 * draws.split(`${kill} when`).float()));
      child.kill("SIGKILL");
      await exited;
      const pids = pidsOf(events);
      await until(() => pids.every((pid) => !isAlive(pid)), "the workers of a killed runner to end", 15_000);
      deaths.push(await goingOn(new RunFolder(runners.root, runId)));
    }
    const { events, exited } = begin(runId, overrides);
    expect(await exited).toBe(0);
    const folder = join(runners.root, runId);
    await expectWholeTailLedger(folder, numSteps);
    const { steps } = await readTailLedger(folder);
    let numGoneOn = 0;
    for (const { step, tokens } of deaths) {
      const next = steps[step];
      if (next === undefined) continue;
      const numTokens = next.given.reduce((sum, id) => sum + (tokens.get(id) ?? 0), 0);
      // Of each of two ranks, as metrics are averages.
      expect(2 * (next.metrics["carriedTokens"] as number)).toBeCloseTo(numTokens);
      if (numTokens > 0) numGoneOn++;
    }
    expect(numGoneOn).toBeGreaterThan(0);
    expect((await readdir(join(folder, "carried"))).length).toBeLessThanOrEqual(1);
    await expectCleanEnd(runId, folder, pidsOf(events));
  },
  300_000,
);

test("CI3: what goes on after a resume begins again after one from an older checkpoint, whose weights chose none of it", async () => {
  // Small groups of many prompts: a rank has most of its part at once, so some race still when it hears that no more come.
  const common = [
    "placement.mode=spatial",
    "flow.granularity=all",
    "batch=24",
    "groupSize=2",
    "checkpoints.everySteps=1",
  ];
  const tail = ["rollout.tail=carry", "rollout.oversample.samples=1", "rollout.oversample.prompts=1.5"];
  const options = ledgerOptions(runners.root, () => {}, [...common, ...tail, "steps=3"]);
  const { runId } = (await runWorkflow({ ...options, workflow })).summary;
  const resume = (steps: number, checkpoint?: string) =>
    resumeRun({
      runId,
      runsRoot: runners.root,
      projectRoot,
      onEvent: () => {},
      overrides: [`steps=${steps}`],
      checkpoint,
    });
  /** Goes on until a step leaves tokens to the next: all of it may have ended before a rank hears that no more come. */
  const untilSomeWait = async (): Promise<number> => {
    for (let more = 0; more <= 12; more++) {
      const { step, tokens } = await goingOn(new RunFolder(runners.root, runId));
      if ([...tokens.values()].some((count) => count > 0)) return step;
      await resume(step + 1);
    }
    throw new Error("of 12 steps in a row none left tokens to the next");
  };
  const first = await untilSomeWait();
  await resume(first + 1);
  const second = await untilSomeWait();
  await resume(second + 1, `step-${String(second - 1).padStart(6, "0")}`);
  const { steps } = await readTailLedger(join(runners.root, runId));
  for (const at of [first, second])
    expect(steps[at]?.given.filter((id) => steps[at - 1]?.carried.includes(id))).not.toEqual([]);
  expect(steps[first]?.metrics["carriedTokens"]).toBeGreaterThan(0);
  expect(steps[second]?.metrics["carriedTokens"]).toBe(0);
}, 300_000);

const begin = (runId: string, overrides: readonly string[]): RunnerProcess => runners.start(runId, overrides, workflow);
