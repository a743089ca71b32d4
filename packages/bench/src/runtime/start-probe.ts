/** Run as a process of its own: starts workers one after the other and prints the milliseconds of each as JSON. */
import { pathToFileURL } from "node:url";
import { timed } from "../row.ts";
import { openBenchCluster } from "./bench-cluster.ts";
import { EchoWorker } from "./workers/echo-worker.ts";

export async function measureStartMs(rounds: number): Promise<number[]> {
  const all: number[] = [];
  for (let round = 0; round < rounds; round++) {
    await using bench = await openBenchCluster({ cluster: { devices: 1 } });
    await bench.cluster.launch(EchoWorker, {});
    all.push(await timed(() => bench.cluster.start()));
  }
  return all;
}

if (process.argv[1] !== undefined && import.meta.url === pathToFileURL(process.argv[1]).href) {
  process.stdout.write(`${JSON.stringify(await measureStartMs(Number(process.argv[2])))}\n`);
}
