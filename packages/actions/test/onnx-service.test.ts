import { readdirSync, readFileSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { systemClock } from "@treadle/transport";
import { afterAll, beforeAll, expect, test } from "vitest";
import { z } from "zod";
import { ActionPool, GpuManager, ProcessServices, type ServiceInstance, servicePreparation } from "../src/index.ts";
import { ActionServiceConfig, openActionService } from "../src/serve.ts";
import { connectActions } from "./support/client.ts";
import { eventually, processesWith } from "./support/processes.ts";

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

const memoryMib = { 1: 220, 2: 140, 4: 90 } as const;
const perDeviceMib = 320;
/** What the kernel says of the service's processes: where each is, with how many threads, and what it takes. */
function runningProcesses(model: string) {
  return processesWith(model).flatMap((pid) => {
    const read = (file: string): string => readFileSync(`/proc/${pid}/${file}`, "utf8");
    try {
      const devices = /CUDA_VISIBLE_DEVICES=([\d,]*)/.exec(read("environ"))![1]!.split(",").map(Number);
      const residentMib = Number(/^VmRSS:\s*(\d+)/m.exec(read("status"))![1]) / 1024;
      return [{ pid, devices, residentMib, threads: readdirSync(`/proc/${pid}/task`).length }];
    } catch {
      return []; // it ends
    }
  });
}

test.runIf(process.platform === "linux")(
  "GP1 GP2 degrees of a service are processes of their own, with as many threads, each on its own interval of devices",
  async () => {
    const model = join(folder, "wide.onnx");
    await writeFile(model, rewardModel(3));
    const server = fileURLToPath(new URL("onnx-service.mjs", examples));
    const config = ActionServiceConfig.parse({
      listen: "127.0.0.1:0",
      drivers: ["process"],
      resources: {
        gpu: {
          type: "gpu",
          devices: 4,
          memoryMibPerDevice: perDeviceMib,
          mainMemory: true,
          services: {
            scorer: {
              command: [process.execPath, server, model, "{port}", "{dop}"],
              variants: [1, 2, 4].map((dop) => ({ dop, memoryMib: memoryMib[dop as 1 | 2 | 4] })),
            },
          },
        },
      },
    });
    const service = await openActionService(config, ".");
    const { acquire, call, close } = connectActions(service.address);
    try {
      const elastic = {
        service: "scorer",
        cost: { gpu: { set: { units: [1, 2, 4] } } },
        key: "gpu",
        elasticity: { amdahl: 0.6 },
        duration_seconds: 60,
      };
      let all = 0;
      /** So many at once, decided together. Their degrees, and their processes. */
      const together = async (count: number) => {
        const barrier = acquire({ cost: { gpu: { fixed: 4 } }, lease: `barrier ${++all}` });
        await barrier.grant;
        const names = Array.from({ length: count }, () => `lease ${++all}`);
        const leases = names.map((lease) => acquire({ ...elastic, lease }));
        const waiting = async () => ((await call("GetStatistics", {})) as { waiting: number }).waiting;
        expect(await eventually(async () => (await waiting()) === count)).toBe(true);
        await call("Release", { lease: `barrier ${all - count}` });
        const grants = await Promise.all(leases.map(async ({ grant }) => (await grant)!));
        const running = runningProcesses(model);
        const used = await Promise.all(
          grants.map(async ({ allocation, url }, i) => {
            const { pid } = z.object({ pid: z.int() }).parse(await (await fetch(`${url}/health`)).json());
            const text = `text ${i}`;
            const answer = await fetch(`${url}/score`, { method: "POST", body: JSON.stringify({ texts: [text] }) });
            expect(Scores.parse(await answer.json()).scores[0]).toBeCloseTo(expected(3, text), 5);
            return { ...running.find((one) => one.pid === pid)!, dop: allocation.gpu! };
          }),
        );
        for (let device = 0; device < 4; device++) {
          const here = running.filter(({ devices }) => devices.includes(device));
          const stated = here.reduce((sum, { devices }) => sum + memoryMib[devices.length as 1 | 2 | 4], 0);
          const taken = here.reduce((sum, { devices, residentMib }) => sum + residentMib / devices.length, 0);
          expect(stated).toBeLessThanOrEqual(perDeviceMib);
          expect(taken).toBeLessThanOrEqual(perDeviceMib);
        }
        // GP1: aligned, and nobody shares a device.
        for (const { devices, dop } of used) {
          expect(devices).toHaveLength(dop);
          expect(devices[0]! % dop).toBe(0);
        }
        const places = used.flatMap(({ devices }) => devices);
        expect(new Set(places).size).toBe(places.length);
        await Promise.all(names.map((lease) => call("Release", { lease })));
        return {
          used,
          dops: used.map(({ dop }) => dop),
          resident: running.map(({ devices }) => devices.length).sort(),
        };
      };
      const wide = await together(1);
      const pair = await together(2);
      const four = await together(4);
      const again = await together(1);
      expect([wide.dops, pair.dops, four.dops, again.dops]).toEqual([[4], [2, 2], [1, 1, 1, 1], [4]]);
      // Those of two degrees fit beside each other; those of one device do not fit beside both, so all of those were evicted.
      expect([wide.resident, pair.resident, four.resident]).toEqual([[4], [2, 2, 4], [1, 1, 1, 1]]);
      expect(again.used[0]!.pid).not.toBe(wide.used[0]!.pid);
      // A thread more for each device more.
      const numThreads = [four.used[0]!, pair.used[0]!, wide.used[0]!].map(({ threads }) => threads);
      expect(numThreads.map((threads) => threads - numThreads[0]!)).toEqual([0, 1, 3]);
    } finally {
      close();
      await service.close();
    }
    expect(processesWith(model)).toEqual([]);
  },
  120_000,
);
