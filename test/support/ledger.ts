/** Runs the ledger workflow and reads what it left: journal, state, processes, files. */
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { RunEvent } from "@treadle/contracts";
import { readMetrics } from "@treadle/observe";
import { expect } from "vitest";
import type { StateReader } from "../../packages/runtime/src/author/state/state.ts";
import { readRecords } from "../../packages/runtime/src/runner/run/journal.ts";
import { isAlive, segmentsOf, until } from "./cluster.ts";
import { projectRoot } from "./project.ts";
import { openSavedState } from "./saved-state.ts";
import { tasksOf } from "./workflows/ledger/run.ts";

export const ledgerWorkflow = fileURLToPath(new URL("./workflows/ledger", import.meta.url));

export function ledgerOptions(runsRoot: string, onEvent: (event: RunEvent) => void, overrides: readonly string[] = []) {
  return { workflow: ledgerWorkflow, runsRoot, projectRoot, onEvent, overrides };
}

/**
 * J1: the journal has every step once, in order, with its items; the state has every item once, in the same order, after
 * those that were trained before the steps.
 */
export async function expectWholeLedger(folder: string, steps: number, batch: number, first = 0): Promise<void> {
  const dataset = datasetOf(tasksOf, steps, batch);
  const state = await expectJournal(folder, dataset, "trainer");
  const { version, trained } = JSON.parse(await state.text("ledger")) as { version: number; trained: string[] };
  expect(trained).toEqual([...tasksOf(0, first).map(({ id }) => id), ...dataset.flat()]);
  expect(version).toBe(steps + (first > 0 ? 2 : 0));
}

type Dataset = (step: number, num: number) => readonly { readonly id: string }[];

export const datasetOf = (of: Dataset, steps: number, batch: number): string[][] =>
  Array.from({ length: steps }, (_, i) => of(i + 1, batch).map(({ id }) => id));

/** Journal and metrics have these steps once, in order; returns the state that a component has after the last. */
export async function expectJournal(
  folder: string,
  dataset: readonly string[][],
  component: string,
): Promise<StateReader> {
  const path = join(folder, "journal.jsonl");
  const { records } = readRecords(await readFile(path, "utf8"), path);
  const committed = records.filter((record) => record.type === "step");
  expect(committed.map(({ step }) => step)).toEqual(dataset.map((_, i) => i + 1));
  expect(committed.map(({ items }) => items)).toEqual(dataset);
  expect(readMetrics(join(folder, "metrics.jsonl")).map(({ step }) => step)).toEqual(committed.map(({ step }) => step));
  return openSavedState(join(folder, committed.at(-1)?.state[component]?.folder as string));
}

/** S4: no process, no shared memory and no socket of the run is left, and its folder is free. */
export async function expectCleanEnd(runId: string, folder: string, pids: readonly number[]): Promise<void> {
  await until(() => pids.every((pid) => !isAlive(pid)), `processes ${pids.join(", ")} to be gone`, 15_000);
  expect(await segmentsOf(runId)).toEqual([]);
  expect(await readdir(folder)).not.toContain("runner.lock");
}

export async function socketFolders(root: string): Promise<string[]> {
  return (await readdir(root)).filter((name) => name.startsWith("treadle-sockets-"));
}

export const pidsOf = (events: readonly RunEvent[]): number[] =>
  events.flatMap((event) =>
    (event.type === "worker-started" || event.type === "worker-restarted") && event.pid !== undefined
      ? [event.pid]
      : [],
  );
