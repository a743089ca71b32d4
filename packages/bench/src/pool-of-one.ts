/** What a pool costs a run that shares its devices with nobody: the same run alternately in one and without. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { median } from "@treadle/contracts";
import { DrawnRun, runShapes } from "@treadle/simulation";
import { startNatsServer } from "@treadle/transport/testing";
import { executed } from "./multiplex.ts";
import { type BenchRow, row } from "./row.ts";

const pairs = 3;
const setting = { devices: 2, steps: 10, turnSeconds: 0.5 } as const;
const scale = 0.05;

/** About three minutes. */
export async function* benchPoolOfOne(): AsyncGenerator<BenchRow> {
  const seed = Number(process.env.TREADLE_SEED ?? 1);
  const { devices, steps } = setting;
  const run = new DrawnRun({ name: "reasoning", shape: runShapes.reasoning, scale, devices, seed });
  await using server = await startNatsServer();
  await using _ = await startPool(server.url);
  const [alone, pooled]: [number[], number[]] = [[], []];
  for (let pair = 0; pair < pairs; pair++) {
    alone.push((await executed([run], setting)).seconds);
    pooled.push((await executed([run], { ...setting, pool: server.url })).seconds);
  }
  const [without, within] = [median(alone), median(pooled)];
  const extraMs = (1000 * (within - without)) / steps;
  yield row({
    name: `a run of ${steps} steps on ${devices} devices in a pool of its own (${extraMs.toFixed(1)} ms a step of ${(without / steps).toFixed(1)} s)`,
    value: within,
    unit: "s",
    baseline: without,
    against: "the same run without a pool",
    ratioAtMost: 1.005,
    notMeasured: "longer steps, of which it is a smaller part; a server on another machine",
  });
}

async function startPool(url: string): Promise<AsyncDisposable> {
  const script = process.argv[1] as string;
  const child = spawn(process.execPath, [...process.execArgv, script, "pool", "start", "--nats", url], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  const ended = once(child, "exit");
  const isReady = new Promise<void>((resolve) => {
    child.stdout.on("data", (text: Buffer) => text.includes("is ready") && resolve());
  });
  await Promise.race([
    isReady,
    ended.then(([code]) => Promise.reject(new Error(`'treadle pool start' ended with ${code}`))),
  ]);
  return {
    async [Symbol.asyncDispose]() {
      child.kill("SIGTERM");
      await ended;
    },
  };
}
