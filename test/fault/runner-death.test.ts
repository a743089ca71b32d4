import { mkdirSync, rmdirSync, writeFileSync } from "node:fs";
import { readdir, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { RunEvent, TreadleError } from "@treadle/contracts";
import { RunFolder, resumeRun, runWorkflow } from "@treadle/runtime/runner";
import { expect, test } from "vitest";
import { readRecords } from "../../packages/runtime/src/runner/run/journal.ts";
import { isAlive, segmentsOf, until } from "../support/cluster.ts";
import { expectCleanEnd, expectWholeLedger, ledgerOptions, pidsOf, socketFolders } from "../support/ledger.ts";
import { projectRoot } from "../support/project.ts";
import { type RunnerProcess, runnersOfEachTest } from "../support/runner-process.ts";
import { firstAccuracy } from "../support/workflows/ledger/run.ts";

const runners = runnersOfEachTest();

const thrownBy = async (work: Promise<unknown>): Promise<TreadleError> =>
  work.then(
    () => expect.unreachable("it went well"),
    (error: unknown) => error as TreadleError,
  );

test("J1, WH3, S4: a runner killed again and again leaves no process, and resumes where its journal ends", async () => {
  const overrides = ["steps=8", "pauseMs=15", "payload=30000"]; // large enough for shared memory
  let runId = "new";
  for (let kill = 1; kill <= 3; kill++) {
    const { child, events, exited } = runners.start(runId, overrides);
    const first = await until(() => events.find((event) => event.type === "run-started"), "the run to start");
    runId = first.runId;
    const resumedFrom = first.resumedFrom ?? 0;
    const begun = resumedFrom + (kill === 2 ? 1 : 2);
    await until(() => events.some((event) => event.type === "step-started" && event.step >= begun), `step ${begun}`);
    await until(() => pidsOf(events).length >= 4, "all workers to start");
    await new Promise((resolve) => setTimeout(resolve, Math.random() * 150));
    child.kill("SIGKILL");
    await exited;
    const pids = pidsOf(events);
    await until(() => pids.every((pid) => !isAlive(pid)), "the workers of a killed runner to end", 15_000); // WH3
    await until(
      async () => (await socketFolders(join(runners.root, "tmp"))).length === 0,
      "the sockets of a killed runner to be removed",
      15_000,
    );
    await until(
      async () => (await segmentsOf(runId)).length === 0,
      "its memory and folders there to be removed",
      15_000,
    );
    const path = join(runners.root, runId, "journal.jsonl");
    const { records } = readRecords(await readFile(path, "utf8"), path);
    const steps = records.filter((record) => record.type === "step").map(({ step }) => step);
    expect(steps).toEqual(steps.map((_, i) => i + 1));
    expect(steps.length).toBeGreaterThanOrEqual(resumedFrom);
  }
  const { events, exited } = runners.start(runId, overrides);
  expect(await exited).toBe(0);
  expect(events.at(-1)).toMatchObject({ type: "run-finished", summary: { steps: 8, policyVersion: 8 } });
  const folder = join(runners.root, runId);
  await expectWholeLedger(folder, 8, 12);
  await expectCleanEnd(runId, folder, pidsOf(events));
  const left = (await readdir(join(folder, "state"))).filter((name) => !name.startsWith("trainer."));
  expect(left).toEqual([]);
  expect(await readdir(join(folder, "state"))).toHaveLength(1);
}, 360_000);

test("FL1, J1: whatever a taken run fails of first, its runner says that another one has it", async () => {
  const kill = new AbortController();
  let runId = "";
  const onEvent = (event: RunEvent) => {
    if (event.type === "run-started") runId = event.runId;
    if (event.type !== "step-finished") return;
    const lock = join(runners.root, runId, "runner.lock");
    rmdirSync(lock);
    mkdirSync(lock);
    writeFileSync(`${lock}.holder`, JSON.stringify({ token: "another's", pid: process.pid }));
    kill.abort();
  };
  const run = runWorkflow({ ...ledgerOptions(runners.root, onEvent, ["steps=3", "ranks=1"]), kill: kill.signal });
  expect(await thrownBy(run)).toMatchObject({ code: "run.locked", message: expect.stringContaining("another runner") });
  // Which is still the other one's.
  expect(await readdir(join(runners.root, runId))).toContain("runner.lock");
}, 120_000);

test("a run in use, and damage to what it has saved, are named, and end a resume cleanly", async () => {
  const events: RunEvent[] = [];
  const onEvent = (event: RunEvent) => void events.push(event);
  const { summary } = await runWorkflow(ledgerOptions(runners.root, onEvent, ["steps=2", "ranks=1"]));
  const { runId } = summary;
  const folder = join(runners.root, runId);
  await expectWholeLedger(folder, 2, 12);
  const journalFile = join(folder, "journal.jsonl");
  const journal = await readFile(journalFile);
  const resume = (more: { checkpoint?: string } = {}) =>
    resumeRun({ runId, runsRoot: runners.root, projectRoot, overrides: ["steps=3"], onEvent, ...more });

  const damaged = Buffer.from(journal);
  const { release } = await new RunFolder(runners.root, runId).acquire(() => {});
  expect(await thrownBy(resume())).toMatchObject({ code: "run.locked" });
  await release();

  damaged[journal.indexOf(10) + 40] = 0;
  await writeFile(journalFile, damaged);
  expect(await thrownBy(resume())).toMatchObject({ code: "journal.corrupt", details: { line: 2 } });
  expect(await readFile(journalFile)).toEqual(damaged);
  await writeFile(journalFile, journal);

  expect(await thrownBy(resume({ checkpoint: "step-000099" }))).toMatchObject({ code: "checkpoint.missing" });

  const [stateFolder] = await readdir(join(folder, "state"));
  const path = join(folder, "state", stateFolder as string, "rank-0", "ledger");
  const state = await readFile(path);
  await writeFile(path, state.subarray(0, -3));
  const cut = { code: "checkpoint.corrupt", message: expect.stringContaining("file 'ledger' of rank 0") };
  expect(await thrownBy(resume())).toMatchObject(cut);
  await writeFile(
    path,
    state.map((byte) => byte ^ 1),
  );
  const corrupt = await thrownBy(resume());
  expect(corrupt).toMatchObject({ code: "worker.setup-failed", cause: { code: "checkpoint.corrupt" } });
  expect(corrupt.message).toContain("--checkpoint");
  expect(events.filter((event) => event.type === "run-failed").length).toBeGreaterThan(0);

  // The remedy that the message names.
  const resumed = await resume({ checkpoint: "step-000002" });
  expect(resumed.summary.steps).toBe(3);
  await expectWholeLedger(folder, 3, 12);
  await expectCleanEnd(runId, folder, pidsOf(events));
  expect(await segmentsOf(runId)).toEqual([]);
}, 360_000);

test("a run that is ended at once leaves nothing, and one that is stopped ends with its step; both go on later", async () => {
  const events: RunEvent[] = [];
  const kill = new AbortController();
  const stop = new AbortController();
  const onEvent = (event: RunEvent) => {
    events.push(event);
    if (event.type === "step-finished" && event.step === 1) setTimeout(() => kill.abort(), 30);
    if (event.type === "step-started" && event.step === 3) stop.abort();
  };
  const killed = await thrownBy(
    runWorkflow({
      ...ledgerOptions(runners.root, onEvent, ["steps=5", "ranks=1", "pauseMs=40", "first=4"]),
      kill: kill.signal,
    }),
  );
  expect(killed).toMatchObject({ code: "run.stopped" });
  const { runId } = events.find((event) => event.type === "run-started") as { runId: string };
  const folder = join(runners.root, runId);
  await expectCleanEnd(runId, folder, pidsOf(events));
  const stopped = await resumeRun({ runId, runsRoot: runners.root, projectRoot, onEvent, stop: stop.signal });
  // What was measured before the first step is the run's, not the first runner's.
  const measured = { evalBefore: firstAccuracy, evalAtStart: firstAccuracy };
  expect(stopped).toMatchObject({ stopped: true, summary: { steps: 3, ...measured } });
  const finished = await resumeRun({ runId, runsRoot: runners.root, projectRoot, onEvent });
  expect(finished).toMatchObject({ stopped: false, summary: { steps: 5, ...measured } });
  await expectWholeLedger(folder, 5, 12, 4);
  await expectCleanEnd(runId, folder, pidsOf(events));
}, 360_000);

test("J1: a runner suspended while another takes its run commits nothing more, ends when it goes on, and harms nobody", async () => {
  const overrides = ["steps=60", "pauseMs=20", "payload=30000", "ranks=1", "supervision.heartbeatTimeoutMs=60000"];
  const first = runners.start("new", overrides);
  const { runId } = await until(() => first.events.find((event) => event.type === "run-started"), "the run to start");
  await until(() => first.events.some((event) => event.type === "step-finished" && event.step >= 3), "three steps");
  first.child.kill("SIGSTOP");
  const second = runners.start(runId, overrides); // the lock of the first goes stale while this one waits for it
  const finished = (runner: RunnerProcess) => runner.events.filter((event) => event.type === "step-finished");
  await until(() => finished(second).length >= 2, "the second runner to get on", 60_000);
  const committed = finished(first).length;
  first.child.kill("SIGCONT");
  expect(await first.exited).toBe(1);
  expect(first.threw()).toMatchObject({ code: "run.locked", message: expect.stringContaining("another runner") });
  expect(finished(first)).toHaveLength(committed);
  expect(await second.exited).toBe(0);
  expect(second.events.at(-1)).toMatchObject({ type: "run-finished", summary: { steps: 60, restarts: 0 } });
  const folder = join(runners.root, runId);
  await expectWholeLedger(folder, 60, 12);
  await expectCleanEnd(runId, folder, [...pidsOf(first.events), ...pidsOf(second.events)]);
}, 360_000);
