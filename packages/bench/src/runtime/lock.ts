/** From one worker's release of a device to the next worker's grant, the workers' own loading excluded. */
import { median } from "@treadle/contracts";
import { type BenchRow, row } from "../row.ts";
import { openBenchCluster } from "./bench-cluster.ts";
import { type Held, LockWorker } from "./workers/lock-worker.ts";

const rounds = 60;
const holdMs = 4;

export async function benchLock(): Promise<BenchRow[]> {
  const notMeasured = "moving the memory itself, several devices a worker, waiting behind others";
  return [
    row({ name: "device lock, release to next grant", value: await handOverUs(1), unit: "µs", notMeasured }),
    row({
      name: "device lock, release to next grant, with offload and onload in between",
      value: await handOverUs(80),
      unit: "µs",
      notMeasured,
    }),
  ];
}

/** Two workers on one device of 100 MiB; both stay loaded when they fit together. */
async function handOverUs(memoryMiB: number): Promise<number> {
  await using bench = await openBenchCluster({ cluster: { devices: 1, memoryPerDeviceMiB: 100 } });
  const one = { ranks: { fixed: 1 } };
  const left = await bench.cluster.launch(LockWorker, { memoryMiB }, { ...one, name: "left" });
  const right = await bench.cluster.launch(LockWorker, { memoryMiB }, { ...one, name: "right" });
  const gapsMs: number[] = [];
  for (let round = 0; round < rounds; round++) {
    const held = await Promise.all([left.hold(holdMs).first(), right.hold(holdMs).first()]);
    const [first, second] = held.toSorted((a, b) => a.grantedMs - b.grantedMs) as [Held, Held];
    if (memoryMiB > 50 && second.loadedMs < first.releasedMs) throw new Error("both stayed loaded, and do not fit");
    if (round >= 10) gapsMs.push(second.grantedMs - first.releasedMs);
  }
  return median(gapsMs) * 1000;
}
