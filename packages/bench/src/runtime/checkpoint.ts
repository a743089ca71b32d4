/**
 * What saving a large state in the background costs the steps beside which it is written: blocks of equal steps by turns, the
 * first step of every other block followed by a save.
 */
import { median } from "@treadle/contracts";
import { type BenchRow, row, timed } from "../row.ts";
import { openBenchCluster } from "./bench-cluster.ts";
import { StateWorker } from "./workers/state-worker.ts";

const everySteps = 4;
const rounds = 7;
/** `TREADLE_BENCH_STATE_MIB=4096`: of another size, with steps as much longer. */
const defaultMiB = 256;
const stepMsPerMiB = 4;

export async function benchCheckpoint(): Promise<BenchRow[]> {
  const stateMiB = Number(process.env["TREADLE_BENCH_STATE_MIB"] ?? defaultMiB);
  const stepMs = stateMiB * stepMsPerMiB;
  await using bench = await openBenchCluster({
    cluster: { devices: 1 },
    checkpoints: { stateEverySteps: everySteps },
    steps: 1_000_000,
  });
  const { cluster } = bench;
  const worker = cluster.launch(StateWorker, { stateMiB, stepMs }, { ranks: { fixed: 1 } });
  await worker.calibrate();
  let step = 0;
  const block = async (saves: boolean): Promise<number> =>
    timed(async () => {
      for (let at = 0; at < everySteps; at++) {
        cluster.step = step + at;
        await (saves && at === 0 ? worker.train() : worker.compute());
      }
      await cluster.saveStates(); // what is not on the disk by then costs the steps that follow
    });
  const withMs: number[] = [];
  const withoutMs: number[] = [];
  for (let round = 0; round < rounds; round++) {
    step += everySteps;
    withMs.push(await block(true));
    withoutMs.push(await block(false));
  }
  return [
    row({
      name: `${everySteps} steps of ${(stepMs / 1000).toFixed(1)} s, a state of ${stateMiB} MiB saved beside them`,
      value: median(withMs),
      unit: "ms",
      baseline: median(withoutMs),
      against: "the same steps without saving",
      ratioAtMost: 1.02,
      notMeasured:
        "disks that write less than the state in the time of the steps, the copy that an engine makes of its state, machines whose other cores are busy",
    }),
  ];
}
