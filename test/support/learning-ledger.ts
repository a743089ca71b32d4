/** Reads what a run of the learning ledger left: its journal, and the state of its actor. */
import { expect } from "vitest";
import { datasetOf, expectJournal } from "./ledger.ts";
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
