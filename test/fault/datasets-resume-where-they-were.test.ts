/** The shipped workflow, on a dataset of the project's own, whose runner is killed at drawn instants. */
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { createRandom } from "@treadle/learning";
import { expect, test } from "vitest";
import { readRecords } from "../../packages/runtime/src/runner/run/journal.ts";
import { isAlive, until } from "../support/cluster.ts";
import { expectCleanEnd, pidsOf } from "../support/ledger.ts";
import { runnersOfEachTest } from "../support/runner-process.ts";

const runners = runnersOfEachTest();
const workflow = fileURLToPath(new URL("../support/workflows/own-data", import.meta.url));
const [batch, numKills] = [3, 3];
/** Nothing here is fast or slow: a loaded machine takes a minute to start a run. */
const patienceMs = 120_000;
/** A runner draws no more before it is killed: however slow this test is, the run has not ended by then. */
const holdAfter = 7;
const numSteps = numKills * holdAfter + 3;

async function committed(runId: string) {
  const path = join(runners.root, runId, "journal.jsonl");
  const { records } = readRecords(await readFile(path, "utf8"), path);
  return records.filter((record) => record.type === "step");
}

test.each([
  ["on-policy, saved with each step", ["flow.maxStaleness=0"]],
  ["overlapped, saved with every second step", ["flow.maxStaleness=1", "checkpoints.stateEverySteps=2"]],
])(
  "CI4, MD1, J1: each row is trained once, in its order, whenever the runner is killed: %s",
  async (how, overrides) => {
    const random = createRandom(process.env["TREADLE_SEED"] as string).split(how);
    const notes = join(runners.root, "notes.jsonl");
    const settings = [...overrides, `steps=${numSteps}`, `data.settings={notes: ${notes}, holdAfter: ${holdAfter}}`];
    const pids: number[] = [];
    let runId = "new";
    let lastPosition: number | undefined;
    const expectGoesOn = async (pid: number | undefined) => {
      const lines = (await readFile(notes, "utf8")).trim().split("\n");
      const drawn = lines.map((line) => JSON.parse(line) as { pid: number; row: number; count: number });
      const first = drawn.find((note) => note.pid === pid);
      if (first !== undefined) expect(first).toEqual({ pid, row: lastPosition ?? 0, count: batch });
      return first !== undefined;
    };
    let numGoneOn = 0;
    for (let kill = 1; kill <= numKills; kill++) {
      const { child, events, exited, threw } = runners.start(runId, settings, workflow);
      const started = await until(
        () => {
          if (threw()) throw new Error(threw()?.message);
          return events.find((event) => event.type === "run-started");
        },
        "the run to start",
        patienceMs,
      );
      runId = started.runId;
      const begun = (started.resumedFrom ?? 0) + 1 + random.integer(2);
      await until(
        () => events.some((event) => event.type === "step-started" && event.step >= begun),
        `step ${begun}`,
        patienceMs,
      );
      await new Promise((resolve) => setTimeout(resolve, random.integer(400)));
      child.kill("SIGKILL");
      await exited;
      pids.push(...pidsOf(events));
      if (await expectGoesOn(child.pid)) numGoneOn++;
      const steps = await committed(runId);
      lastPosition = (steps.at(-1)?.position as { row: number } | undefined)?.row;
      expect(lastPosition ?? 0).toBe(steps.length * batch);
    }
    await writeFile(`${notes}.free`, "");
    const { child, events, exited, threw } = runners.start(runId, settings, workflow);
    expect([await exited, threw()]).toEqual([0, undefined]);
    if (await expectGoesOn(child.pid)) numGoneOn++;
    expect(numGoneOn).toBeGreaterThan(1);
    expect(events.at(-1)).toMatchObject({
      type: "run-finished",
      summary: { steps: numSteps, policyVersion: numSteps },
    });
    const steps = await committed(runId);
    expect(steps.map(({ step }) => step)).toEqual(Array.from({ length: numSteps }, (_, at) => at + 1));
    const rows = steps.flatMap(({ items }) => items.map((id) => Number(id.split("@")[0])));
    expect(rows).toEqual(Array.from({ length: numSteps * batch }, (_, row) => row));
    await until(() => pids.every((pid) => !isAlive(pid)), "the workers of killed runners to end", patienceMs);
    await expectCleanEnd(runId, join(runners.root, runId), pidsOf(events));
  },
  900_000,
);
