/**
 * The runtime's own share of a step: rollout, inference and actor that only sleep, for as long as they are told, on 64
 * ranks; what a step takes beyond the ideal schedule of the same sleeps is the runtime's.
 */
import { median } from "@treadle/contracts";
import { type BenchRow, row, timed } from "../row.ts";
import { openBenchCluster } from "./bench-cluster.ts";
import { Chunk } from "./items.ts";
import { SleepActor, SleepInference, SleepRollout } from "./workers/sleep-workers.ts";

const steps = 3;

export async function benchStepShare(): Promise<BenchRow[]> {
  return [await measure("temporal"), await measure("spatial")];
}

type Stage = { readonly ranks: number; readonly itemMs: number };

/**
 * Temporal: the stages take turns on 22 devices, each with the whole batch. Spatial: 32 + 16 + 16 devices, and items flow
 * on as they are done, so that all stages keep the same pace.
 */
async function measure(mode: "temporal" | "spatial"): Promise<BenchRow> {
  const isTemporal = mode === "temporal";
  const stages: readonly Stage[] = isTemporal
    ? [22, 21, 21].map((ranks) => ({ ranks, itemMs: 2500 }))
    : [
        { ranks: 32, itemMs: 1600 },
        { ranks: 16, itemMs: 800 },
        { ranks: 16, itemMs: 800 },
      ];
  const batch = isTemporal ? 22 : 32 * 4;
  await using bench = await openBenchCluster({
    cluster: { devices: isTemporal ? 22 : 64 },
    placement: { mode },
    batch,
    flow: { granularity: isTemporal ? "auto" : 1 },
  });
  const { cluster } = bench;
  const [first, second, third] = stages as [Stage, Stage, Stage];
  // As many devices as ranks: a device that two ranks share would serve them in turn.
  const placed = ({ ranks }: Stage) => ({ ranks: { fixed: ranks }, weight: ranks });
  const rollout = cluster.launch(SleepRollout, { itemMs: first.itemMs }, placed(first));
  const inference = cluster.launch(SleepInference, { itemMs: second.itemMs }, placed(second));
  const actor = cluster.launch(SleepActor, { itemMs: third.itemMs }, placed(third));
  const [prompts, episodes, scored] = ["prompts", "episodes", "scored"].map((name) => cluster.channel(name, Chunk));
  if (!prompts || !episodes || !scored) throw new Error("three channels were defined");
  const items = Array.from({ length: batch }, (_, id) => ({ id }));
  await cluster.start();
  const times: number[] = [];
  for (let step = 0; step <= steps; step++) {
    cluster.step = step;
    const ms = await timed(async () => {
      await prompts.put(...items);
      const calls = [
        rollout.generate(prompts.source, episodes.sink),
        inference.score(episodes.source, scored.sink),
        actor.train(scored.source),
      ];
      const counts = await Promise.all(calls);
      const trained = counts[2]?.reduce((sum, count) => sum + count, 0);
      if (trained !== batch) throw new Error(`${trained} items of ${batch} were trained on`);
    });
    if (step > 0) times.push(ms);
  }
  const idealMs = isTemporal ? turnsMs(stages, batch) : flowMs(stages, batch);
  const extraMs = median(times) - idealMs;
  const sharePercent = (extraMs / idealMs) * 100;
  return row({
    name: `runtime's share of a step of ${(idealMs / 1000).toFixed(1)} s, rollout, inference and actor on 64 ranks, ${mode} (${extraMs.toFixed(0)} ms)`,
    value: sharePercent,
    unit: "%",
    baseline: 3,
    against: "a share of 3 %",
    ratioAtMost: 1,
    notMeasured:
      "steps of other lengths (it is so many ms, not so large a share), ranks on other hosts, work that keeps the processor busy, large items",
  });
}

/** One stage after the other; a stage lasts as long as its fullest rank. */
function turnsMs(stages: readonly Stage[], batch: number): number {
  return stages.reduce((sum, { ranks, itemMs }) => sum + Math.ceil(batch / ranks) * itemMs, 0);
}

/** Items flow one by one: each goes to the rank of the next stage that is free first. */
function flowMs(stages: readonly Stage[], batch: number): number {
  let arrivals = new Array<number>(batch).fill(0);
  for (const { ranks, itemMs } of stages) {
    const free = new Array<number>(ranks).fill(0);
    arrivals = arrivals
      .toSorted((a, b) => a - b)
      .map((arrival) => {
        const rank = free.indexOf(Math.min(...free));
        const doneMs = Math.max(arrival, free[rank] as number) + itemMs;
        free[rank] = doneMs;
        return doneMs;
      });
  }
  return Math.max(...arrivals);
}
