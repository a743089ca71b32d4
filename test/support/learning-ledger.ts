/** Reads what a run of the learning ledger left: its journal, and the state of its actor. */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { expect } from "vitest";
import { CarriedItems } from "../../packages/runtime/src/runner/run/carried-items.ts";
import { readRecords } from "../../packages/runtime/src/runner/run/journal.ts";
import { datasetOf, expectJournal } from "./ledger.ts";
import { openSavedState } from "./saved-state.ts";
import { LearningLedger } from "./workers/learning-ledger.ts";
import { promptsOf } from "./workflows/learning-ledger/run.ts";

/** J1: every prompt is in exactly one of the optimiser steps that made the weights, in order of the steps. */
export async function expectWholeLearningLedger(folder: string, steps: number, batch: number): Promise<void> {
  const dataset = datasetOf(promptsOf, steps, batch);
  const state = await expectJournal(folder, dataset, "ledger-actor");
  const ledger = LearningLedger.parse(JSON.parse(await state.text("ledger")));
  expect(ledger.trained).toEqual(dataset.flatMap((ids) => ids.toSorted()));
  expect(ledger.policyVersion).toBe(steps);
}

/** What the journal says that each step was given, and carried on; and what its actor has trained. */
export async function readTailLedger(folder: string) {
  const path = join(folder, "journal.jsonl");
  const { records } = readRecords(await readFile(path, "utf8"), path);
  const steps = records.filter((record) => record.type === "step");
  const state = await openSavedState(join(folder, steps.at(-1)?.state["ledger-actor"]?.folder as string));
  const { trained, numBehindAnswers, numMixed } = LearningLedger.parse(JSON.parse(await state.text("ledger")));
  const idsOf = (items: readonly unknown[]) => (items as readonly { readonly id: string }[]).map(({ id }) => id);
  return {
    steps: steps.map(({ items, carried = [], cut = {}, metrics }) => ({
      given: items,
      cut: Object.values(cut).flat(),
      carried: idsOf(new CarriedItems([{ items: [], carried }]).now.items),
      metrics,
    })),
    waiting: idsOf(new CarriedItems(steps).now.items),
    trained,
    numBehindAnswers,
    numMixed,
  };
}

/** Every prompt that a step was given it has trained once, in its turn, carried on, or cut; what was drawn is trained, waits, or was cut. */
export async function expectWholeTailLedger(folder: string, numSteps: number): Promise<void> {
  const { steps, waiting, trained } = await readTailLedger(folder);
  expect(steps).toHaveLength(numSteps);
  expect(trained).toEqual(
    steps.flatMap(({ given, carried, cut }) => given.filter((id) => ![...carried, ...cut].includes(id)).toSorted()),
  );
  expect(new Set(trained).size).toBe(trained.length);
  const drawn = new Set(steps.flatMap(({ given }) => given));
  const cut = steps.flatMap((step) => step.cut);
  expect([...trained, ...waiting, ...cut].toSorted()).toEqual([...drawn].toSorted());
}
