/** States are saved every few steps, beside the steps that follow: whatever dies, the steps since are done again, once. */
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import type { RunEvent } from "@treadle/contracts";
import { createRandom } from "@treadle/learning";
import { runWorkflow } from "@treadle/runtime/runner";
import { expect, test } from "vitest";
import { isAlive, pidOf, until } from "../support/cluster.ts";
import { expectCleanEnd, expectWholeLedger, ledgerOptions, pidsOf } from "../support/ledger.ts";
import { runnersOfEachTest } from "../support/runner-process.ts";

const seed = Number(process.env["TREADLE_SEED"]);
const everySteps = 3;
const overrides = [`checkpoints.stateEverySteps=${everySteps}`, "steps=8", "pauseMs=15", "payload=500", "first=4"];

const runners = runnersOfEachTest();

test.each([0, 1])(
  "RS8, J1: a trainer that dies with what is not saved costs the steps since, and no prompt (staleness %i)",
  async (maxStaleness) => {
    const random = createRandom(`${seed}/${maxStaleness}`);
    const events: RunEvent[] = [];
    const struck: string[] = [];
    const strike = (worker: string) => {
      try {
        process.kill(pidOf(events, worker), "SIGKILL");
        struck.push(worker);
      } catch {
        // it is starting again just now
      }
    };
    const onEvent = (event: RunEvent) => {
      events.push(event);
      if (event.type !== "step-started") return;
      // Step 4 has ended by then, and step 3 or none is saved.
      if (event.step === 5 + maxStaleness && struck.length === 0) strike("trainer/0");
      else if (event.step === 7 && struck.length < 3) {
        const worker = `${random.float() < 0.7 ? "trainer" : "maker"}/${random.float() < 0.5 ? 0 : 1}`;
        setTimeout(() => strike(worker), random.float() * 60);
      }
    };
    const options = ledgerOptions(runners.root, onEvent, [...overrides, `flow.maxStaleness=${maxStaleness}`]);
    const { summary } = await runWorkflow(options).catch((cause: unknown) => {
      throw new Error(`seed ${seed}: failed after the deaths of ${struck.join(", ")}`, { cause });
    });
    expect(summary).toMatchObject({ steps: 8 });
    const begun = events.filter((event) => event.type === "run-started");
    expect(begun.length, `seed ${seed}: ${struck.join(", ")}`).toBeGreaterThan(1);
    for (const { resumedFrom = 0 } of begun) expect(resumedFrom % everySteps).toBe(0);
    expect(events.filter((event) => event.type === "run-failed")).toEqual([]);
    const folder = join(runners.root, summary.runId);
    await expectWholeLedger(folder, 8, 12, 4);
    expect(await readdir(join(folder, "state"))).toHaveLength(1);
    await expectCleanEnd(summary.runId, folder, pidsOf(events));
  },
  480_000,
);

test("RS8, J1: with a state of each step, the next one begins while it is written, and a trainer's death loses no prompt", async () => {
  const random = createRandom(`${seed}/each`);
  const events: RunEvent[] = [];
  let strikes = 0;
  let isAhead = false;
  const onEvent = (event: RunEvent) => {
    events.push(event);
    if (event.type !== "step-started") return;
    const finished = events.filter(({ type }) => type === "step-finished").length;
    isAhead ||= event.step > 1 && finished < event.step - 1 && strikes === 0;
    if (event.step < 3 || strikes === 3) return;
    strikes++;
    setTimeout(() => {
      try {
        process.kill(pidOf(events, "trainer/0"), "SIGKILL");
      } catch {
        // it is starting again just now
      }
    }, random.float() * 40);
  };
  const own = ["checkpoints.stateEverySteps=1", "checkpoints.inBackground=true"];
  const options = ledgerOptions(runners.root, onEvent, [...overrides, ...own]);
  const { summary } = await runWorkflow(options).catch((cause: unknown) => {
    throw new Error(`seed ${seed}: failed after '${strikes}' deaths`, { cause });
  });
  expect(summary).toMatchObject({ steps: 8 });
  expect(isAhead, "a step began before the one before had finished").toBe(true);
  expect(events.filter((event) => event.type === "run-failed")).toEqual([]);
  const folder = join(runners.root, summary.runId);
  await expectWholeLedger(folder, 8, 12, 4);
  expect(await readdir(join(folder, "state"))).toHaveLength(1);
  await expectCleanEnd(summary.runId, folder, pidsOf(events));
}, 480_000);

test("J1: a runner that is killed goes on after the newest state that is whole, no prompt lost and none trained twice", async () => {
  const random = createRandom(`${seed}/runner`);
  let runId = "new";
  for (let kill = 1; kill <= 2; kill++) {
    const runner = runners.start(runId, overrides);
    const first = await until(() => runner.events.find((event) => event.type === "run-started"), "the run to start");
    runId = first.runId;
    const resumedFrom = first.resumedFrom ?? 0;
    expect(resumedFrom % everySteps, `seed ${seed}`).toBe(0);
    const begun = Math.min(8, resumedFrom + 2 + Math.floor(random.float() * 3));
    await until(
      () => runner.events.some((event) => event.type === "step-started" && event.step >= begun),
      `seed ${seed}: step ${begun}`,
      120_000,
    );
    await new Promise((resolve) => setTimeout(resolve, random.float() * 80));
    runner.child.kill("SIGKILL");
    await runner.exited;
    const pids = pidsOf(runner.events);
    await until(() => pids.every((pid) => !isAlive(pid)), "the workers of a killed runner to end", 30_000);
  }
  const last = runners.start(runId, overrides);
  expect(await last.exited).toBe(0);
  await expectWholeLedger(join(runners.root, runId), 8, 12, 4);
}, 480_000);
