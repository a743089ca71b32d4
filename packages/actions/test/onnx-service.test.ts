import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { systemClock } from "@treadle/transport";
import { afterAll, beforeAll, expect, test } from "vitest";
import { z } from "zod";
import { ActionPool, GpuManager, ProcessServices, type ServiceInstance, servicePreparation } from "../src/index.ts";

type RewardModel = {
  rewardModel(seed: number): Buffer;
  rewardWeights(seed: number): Record<"first" | "bias" | "second", Float32Array>;
  byteCounts(text: string): Float32Array;
};
const examples = new URL("../examples/", import.meta.url);
const { rewardModel, rewardWeights, byteCounts } = (await import(
  new URL("reward-model.mjs", examples).href
)) as RewardModel;

/** What the model is to answer, worked out without ONNX. */
function expected(seed: number, text: string): number {
  const { first, bias, second } = rewardWeights(seed);
  const counts = byteCounts(text);
  let logit = 0;
  for (let h = 0; h < bias.length; h++) {
    let sum = bias[h]!;
    for (let i = 0; i < counts.length; i++) sum += counts[i]! * first[i * bias.length + h]!;
    logit += Math.max(0, sum) * second[h]!;
  }
  return 1 / (1 + Math.exp(-logit));
}

const mebibyte = 2 ** 20;
let folder: string;
let services: ProcessServices;
let pool: ActionPool;
let manager: GpuManager;
const lost: ServiceInstance[] = [];

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-onnx-"));
  for (const seed of [1, 2]) await writeFile(join(folder, `${seed}.onnx`), rewardModel(seed));
  const server = fileURLToPath(new URL("onnx-service.mjs", examples));
  const model = (seed: number) => ({ command: [process.execPath, server, join(folder, `${seed}.onnx`), "{port}"] });
  // A device with room for one of them: the runtime takes some hundred MiB, and half of it would not do for another.
  const variant = { dop: 1, memoryBytes: 600 * mebibyte, restoreSeconds: 1 };
  manager = new GpuManager({
    nodes: 1,
    devicesPerNode: 1,
    memoryBytesPerDevice: 640 * mebibyte,
    services: { helpful: [variant], brief: [variant] },
  });
  services = new ProcessServices({
    services: { helpful: model(1), brief: model(2) },
    mainMemoryBytes: 640 * mebibyte,
    onLost: (instance) => {
      lost.push(instance);
      manager.lost(instance);
    },
  });
  pool = new ActionPool({ managers: [manager], prepare: servicePreparation(manager, services, systemClock) });
});
afterAll(async () => {
  await pool.close();
  await services.close();
  await rm(folder, { recursive: true, force: true });
});

const instance = (service: string): ServiceInstance => ({ service, dop: 1, chunk: { node: 0, start: 0, size: 1 } });
const Scores = z.object({ scores: z.array(z.number()) });
const ask = (service: string, texts: readonly string[]) =>
  pool.submit({ kind: service, cost: { gpu: 1 }, service }, async ({ signal }) => {
    const url = `${services.url(instance(service))}/score`;
    const answer = await fetch(url, { method: "POST", body: JSON.stringify({ texts }), signal });
    return Scores.parse(await answer.json()).scores;
  });

test("a reward model on ONNX Runtime answers as its weights say, one restored where another was evicted", async () => {
  const texts = ["12*3=36", "because it is so", "ü"];
  for (const [service, seed] of [
    ["helpful", 1],
    ["brief", 2],
    ["helpful", 1],
  ] as const) {
    const action = ask(service, texts);
    const scores = await action.result;
    for (const [i, text] of texts.entries()) expect(scores[i]).toBeCloseTo(expected(seed, text), 5);
    expect(manager.residents()).toEqual([instance(service)]);
    expect(action.overheadSeconds).toBeGreaterThan(0);
  }
  // Resident already: no restore.
  expect((await ask("helpful", ["again"]).result).length).toBe(1);
  expect(() => services.url(instance("brief"))).toThrow(/is not restored/);
});

test("one that dies is restored for the next request, and a bad request is an answer", async () => {
  const url = services.url(instance("helpful"));
  expect((await fetch(`${url}/score`, { method: "POST", body: '{"texts": "one"}' })).status).toBe(400);
  expect((await fetch(`${url}/nothing`)).status).toBe(404);
  const { pid } = z.object({ pid: z.int() }).parse(await (await fetch(`${url}/health`)).json());
  process.kill(pid, "SIGKILL");
  while (lost.length === 0) await new Promise((resolve) => setTimeout(resolve, 10));
  const [score] = await ask("helpful", ["alive"]).result;
  expect(score).toBeCloseTo(expected(1, "alive"), 5);
});
