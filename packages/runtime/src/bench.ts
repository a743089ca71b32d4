/**
 * Measures the runtime with real worker processes, each figure next to the same work by other means in the same run.
 * Rounds alternate and medians are reported, so that a busy machine disturbs both alike.
 */
import { benchBulk } from "./bench/bulk.ts";
import { benchGroupCall } from "./bench/group-call.ts";
import { benchLock } from "./bench/lock.ts";
import { benchNetwork } from "./bench/network.ts";
import type { BenchRow } from "./bench/row.ts";
import { benchScale } from "./bench/scale.ts";
import { benchSmallItems } from "./bench/small-items.ts";
import { benchStart } from "./bench/start.ts";
import { benchStepShare } from "./bench/step-share.ts";

export type { BenchRow } from "./bench/row.ts";

const measurements: Readonly<Record<string, () => Promise<BenchRow[]>>> = {
  "group-call": benchGroupCall,
  "small-items": benchSmallItems,
  bulk: benchBulk,
  lock: benchLock,
  network: benchNetwork,
  scale: benchScale,
  start: benchStart,
  "step-share": benchStepShare,
};

/** What `only` may name. */
export const measurementNames: readonly string[] = Object.keys(measurements);

/** Yields the rows of each measurement as it ends; some minutes in all. */
export async function* bench(
  options: { readonly only?: readonly string[] | undefined } = {},
): AsyncGenerator<BenchRow> {
  for (const [name, measure] of Object.entries(measurements)) {
    if (options.only && !options.only.includes(name)) continue;
    yield* await measure();
  }
}
