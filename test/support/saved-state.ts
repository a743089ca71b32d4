/** Saved states as a test writes and reads them, by the ways of the product. */

import { folderSink, PartWriter } from "../../packages/runtime/src/author/state/part-writer.ts";
import { completeState, openState, partBeside } from "../../packages/runtime/src/author/state/saved-state.ts";
import type { StateData, StateReader } from "../../packages/runtime/src/author/state/state.ts";
import { folderSource, viewState } from "../../packages/runtime/src/author/state/state-view.ts";

/** A state in its place, with these files of each rank. */
export async function saveState(
  folder: string,
  component: string,
  ranks: readonly Readonly<Record<string, StateData>>[],
): Promise<void> {
  const parts = ranks.map(async (files, rank) => {
    const writer = new PartWriter(folderSink(partBeside(folder, rank)));
    for (const [name, data] of Object.entries(files)) writer.write(name, data);
    return writer.finish();
  });
  await completeState(folder, { format: 1, component, ranks: await Promise.all(parts) });
}

/** As rank `rank` of `numRanks` that save sees it. */
export async function openSavedState(folder: string, rank = 0, numRanks = 1): Promise<StateReader> {
  const source = folderSource(folder, await openState(folder));
  return viewState(source, { worker: `actor/${rank}`, rank, numRanks });
}
