import { fileURLToPath } from "node:url";
import * as grpc from "@grpc/grpc-js";
import { afterEach, expect, test } from "vitest";
import { ActionServiceConfig, openActionService } from "../src/serve.ts";
import { connectActions } from "./support/client.ts";

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

async function serve(resources: object) {
  const config = ActionServiceConfig.parse({
    listen: "127.0.0.1:0",
    drivers: ["process"],
    resources: { cpu: { type: "cpu" }, ...resources },
  });
  const service = await openActionService(config, ".");
  cleanups.push(() => service.close());
  const client = connectActions(service.address);
  cleanups.push(() => client.close());
  return client;
}
const isSettled = async (promise: Promise<unknown>): Promise<boolean> => {
  const pending = {};
  const later = new Promise((resolve) => setTimeout(() => resolve(pending), 150));
  return (await Promise.race([promise, later])) !== pending;
};
const search = { search: { type: "quota", concurrency: 1 } };
const cost = { search: { fixed: 1 } };

test("LE1 units of a quota are held until they are released, once, or until their call ends", async () => {
  const { call, acquire } = await serve(search);
  const first = acquire({ cost, lease: "first" });
  expect((await first.grant)!.allocation).toEqual({ search: 1 });
  const second = acquire({ cost, lease: "second" });
  expect(await isSettled(second.grant)).toBe(false);
  await call("Release", { lease: "first" });
  expect(await first.ended).toBeUndefined();
  await second.grant;
  await expect(call("Release", { lease: "first" })).rejects.toMatchObject({
    code: grpc.status.NOT_FOUND,
    details: expect.stringMatching(/lease 'first' is not held: it was released/),
  });
  const third = acquire({ cost, lease: "third" });
  second.stream.cancel();
  await third.grant;
  const late = acquire({ cost, deadline_ms: 100 });
  expect(await late.ended).toMatchObject({ code: grpc.status.DEADLINE_EXCEEDED });
  await call("Release", { lease: "third" });
});

test("LE2 a refusal that is told with the release stops everybody until its Retry-After", async () => {
  const { call, acquire } = await serve({ search: { type: "quota", concurrency: 4 } });
  const refused = acquire({ cost, lease: "refused" });
  await refused.grant;
  const beganMs = performance.now();
  await call("Release", { lease: "refused", http_status: 429, retry_after: "1" });
  const next = acquire({ cost, lease: "next" });
  expect(await isSettled(next.grant)).toBe(false);
  await next.grant;
  // Never earlier than it asked for; timers may be a millisecond short.
  expect(performance.now() - beganMs).toBeGreaterThan(990);
  await call("Release", { lease: "next", http_status: 200 });
});

test("QM1 after a refusal a call that needs more than was learned is granted, when nothing else is held", async () => {
  const { call, acquire } = await serve({
    search: { type: "quota", concurrency: 4 },
    judge: { type: "quota", windows: [{ type: "sliding", limit: 4, periodMs: 60_000 }] },
  });
  for (const resource of ["search", "judge"]) {
    const refused = acquire({ cost: { [resource]: { fixed: 0.25 } }, lease: "refused" });
    await refused.grant;
    await call("Release", { lease: "refused", http_status: 429, retry_after: "0" });
  }
  const whole = acquire({ cost: { search: { fixed: 4 } }, lease: "whole" });
  expect((await whole.grant)!.allocation).toEqual({ search: 4 });
  await call("Release", { lease: "whole", http_status: 200 });
  // Half of four a minute is left, of which a quarter was used.
  const half = acquire({ cost: { judge: { fixed: 1.75 } }, lease: "half" });
  await half.grant;
  await call("Release", { lease: "half", http_status: 200 });
  expect(await isSettled(acquire({ cost: { judge: { fixed: 0.25 } } }).grant)).toBe(false);
});

test("a model service is restored on the devices of a lease, answers there, and makes room for another", async () => {
  const server = fileURLToPath(new URL("support/model-server.mjs", import.meta.url));
  const service = (healthyAfterMs: number) => ({
    command: ["node", server, "{port}", String(healthyAfterMs)],
    variants: [
      { dop: 1, memoryMib: 600, restoreSeconds: 0.3 },
      { dop: 2, memoryMib: 600, restoreSeconds: 0.3 },
    ],
  });
  const gpu = { type: "gpu", devices: 2, memoryMibPerDevice: 1000, mainMemory: true };
  const narrow = { ...service(0), variants: [{ dop: 1, memoryMib: 600, restoreSeconds: 0.3 }] };
  const never = { ...service(1e9), startTimeoutMs: 500 };
  const { call, acquire } = await serve({
    gpu: { ...gpu, services: { judge: service(0), coach: service(0), never, narrow } },
  });
  const pids = new Set<number>();
  const ask = async (name: string, devices: number) => {
    const lease = acquire({ service: name, cost: { gpu: { fixed: devices } }, lease: name });
    const { url, allocation } = (await lease.grant)!;
    const { pid, devices: visible } = (await (await fetch(`${url}/calls`)).json()) as { pid: number; devices: string };
    pids.add(pid);
    await call("Release", { lease: name });
    return [allocation.gpu, visible.split(",").length];
  };
  expect(await ask("judge", 1)).toEqual([1, 1]);
  expect(await ask("judge", 1)).toEqual([1, 1]);
  // It stayed.
  expect(pids.size).toBe(1);
  expect(await ask("judge", 2)).toEqual([2, 2]);
  expect(await ask("coach", 2)).toEqual([2, 2]);
  expect(pids.size).toBe(3);
  expect(await acquire({ service: "never", cost: { gpu: { fixed: 1 } } }).ended).toMatchObject({
    details: expect.stringMatching(/never/),
  });
  for (const amount of [{ set: { units: [1, 2] } }, { fixed: 4 }])
    expect(await acquire({ service: "narrow", cost: { gpu: amount }, key: "gpu" }).ended).toMatchObject({
      code: grpc.status.INVALID_ARGUMENT,
      details: expect.stringMatching(/'narrow' does not run on 2 devices of 'gpu', but on 1|'4' units of 'gpu'/),
    });
  // Its device came back.
  expect(await ask("coach", 2)).toEqual([2, 2]);
  const { restores } = (await call("GetStatistics", {})) as { restores: { start_seconds: number }[] };
  expect(restores).toMatchObject([
    { service: "judge", devices: 1 },
    { service: "judge", devices: 2 },
    { service: "coach", devices: 2 },
  ]);
  for (const { start_seconds: seconds } of restores) expect(seconds).toBeGreaterThan(0.01);
});

test("what cannot be had is named, with what can", async () => {
  const { acquire } = await serve(search);
  for (const [message, details] of [
    [{ cost, service: "judge" }, /service: 'judge' is not served; served are none/],
    [{ cost: { cpu: { fixed: 1 } } }, /cost.cpu: is for commands/],
    [{ cost: { search: { fixed: 2 } } }, /'2' units of 'search' were asked for, one action can get 1/],
  ] as const)
    expect(await acquire(message).ended).toMatchObject({
      code: grpc.status.INVALID_ARGUMENT,
      details: expect.stringMatching(details),
    });
});
