import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { fileURLToPath } from "node:url";
import * as grpc from "@grpc/grpc-js";
import { afterEach, expect, test } from "vitest";
import { ActionPool, CommandActions, CpuManager, GpuManager, ProcessDriver, QuotaManager } from "../src/index.ts";
import { ActionServiceConfig, openActionService, serveActions } from "../src/serve.ts";
import { connectActions, outputOf } from "./support/client.ts";
import { eventually, processesWith } from "./support/processes.ts";

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

type Asked = { readonly request: IncomingMessage; readonly response: ServerResponse; readonly text: string };
type Answering = (asked: Asked, count: number) => unknown;

/** A door before a service that this process answers for: one at a time, as on devices, or as many as a quota lets. */
async function serve(answering: Answering, { unreadBytes = 2 ** 28, devices = true, repeatMs = 60_000 } = {}) {
  let count = 0;
  let looks = 0;
  const upstream: Server = createServer(async (request, response) => {
    let text = "";
    for await (const piece of request) text += piece;
    answering({ request, response, text }, count++);
  });
  await new Promise<void>((resolve) => upstream.listen(0, "127.0.0.1", resolve));
  cleanups.push(() => {
    upstream.close();
    upstream.closeAllConnections();
  });
  const { port } = upstream.address() as AddressInfo;
  const gpu = new GpuManager({
    nodes: 1,
    devicesPerNode: 1,
    memoryBytesPerDevice: 10,
    services: { judge: [{ dop: 1, memoryBytes: 1 }] },
  });
  const quota = new QuotaManager("calls", { concurrency: 4 });
  const pool = new ActionPool({ managers: [gpu, quota] });
  const actions = new CommandActions(pool, new ProcessDriver());
  let url = `http://127.0.0.1:${port}`;
  const server = await serveActions(actions, {
    address: "127.0.0.1:0",
    limits: { unreadBytes, repeatMs },
    services: {
      served: [
        {
          name: "judge",
          resource: devices ? "gpu" : "calls",
          dops: [1],
          serialShare: 0,
          paths: ["/v1/*", "/score"],
        },
      ],
      urlOf: () => url,
      endIfDead: async () => {
        looks++;
      },
      restoreCosts: () => [],
    },
  });
  cleanups.push(() => actions.close());
  cleanups.push(() => server.close());
  const client = connectActions(`127.0.0.1:${server.port}`);
  cleanups.push(() => client.close());
  const ask = (message: object = {}, request: object = {}) =>
    client.submit({ service: "judge", kind: "", cost: {}, request: { path: "/score", ...request }, ...message });
  const isIdle = () => eventually(() => pool.numRunning === 0);
  return {
    client,
    ask,
    pool,
    server,
    isIdle,
    numAsked: () => count,
    numLooks: () => looks,
    moveTo: (other: string) => {
      url = other;
    },
  };
}

const finishedOf = ({ events }: ReturnType<ReturnType<typeof connectActions>["submit"]>) => events.at(-1)!.finished;

test("AQ1 a request goes to the service as it was given, and its answer is the action's output, with its status and headers", async () => {
  const seen: unknown[] = [];
  const { ask, pool } = await serve(({ request, response, text }) => {
    seen.push([request.method, request.url, text, request.headers["x-own"], request.headers["content-type"]]);
    response.setHeader("x-score", "high").end("0.5");
  });
  const headers = { "X-Own": "kept", "content-type": "application/json" };
  const first = ask({ action: "mine" }, { path: "/v1/score?a=..", headers, body: Buffer.from("{}") });
  expect(await first.ended).toBeUndefined();
  expect(first.events.map(({ event }) => event)).toEqual(["queued", "started", "output", "finished"]);
  expect(first.events[1]!.started).toMatchObject({ allocation: { gpu: 1 }, cores: [] });
  expect(outputOf(first)).toBe("0.5");
  expect(finishedOf(first)).toMatchObject({ status: "answered", http_status: 200, headers: { "x-score": "high" } });
  expect(finishedOf(first)).not.toHaveProperty("exit_code");
  const other = ask({ kind: "judging", cost: { gpu: { fixed: 1 } } }, { method: "GET" });
  expect(await other.ended).toBeUndefined();
  expect(seen).toEqual([
    ["POST", "/v1/score?a=..", "{}", "kept", "application/json"],
    ["GET", "/score", "", undefined, undefined],
  ]);
  expect(pool.statistics()).toMatchObject({ judge: { completed: 1 }, judging: { completed: 1 } });
  expect(pool.expectations().get("judge")!.oneUnitSeconds).toBeGreaterThan(0);
});

test("a status that is no success is told with its body, once, and teaches no duration", async () => {
  const { ask, pool, numAsked } = await serve(({ response }, count) => {
    response.statusCode = [400, 500, 503][count]!;
    response.end("no");
  });
  for (const status of [400, 500, 503]) {
    const one = ask({ retries: status === 400 ? 3 : 0 });
    expect(await one.ended).toBeUndefined();
    expect(finishedOf(one)).toMatchObject({ status: "answered", http_status: status });
    expect(outputOf(one)).toBe("no");
  }
  expect(numAsked()).toBe(3);
  expect(pool.expectations().has("judge")).toBe(false);
  expect(pool.statistics()["judge"]).toMatchObject({ completed: 3, failed: 1, retried: 0 });
});

test("a request that a limit cut short teaches no duration, and the next one that is answered does", async () => {
  const { ask, pool } = await serve(({ response }, count) => {
    if (count === 2) return void response.end("all");
    response.write("begun".repeat(count === 0 ? 1 : 100));
  });
  const timed = ask({ timeout_ms: 100 });
  expect(await timed.ended).toBeUndefined();
  expect(finishedOf(timed)).toMatchObject({ status: "timeout", http_status: 200 });
  const long = ask({ max_output_bytes: 10 });
  expect(await long.ended).toBeUndefined();
  expect(finishedOf(long)).toMatchObject({ status: "output-limit" });
  expect(pool.expectations().has("judge")).toBe(false);
  expect(await ask().ended).toBeUndefined();
  expect(pool.expectations().get("judge")!.oneUnitSeconds).toBeGreaterThan(0);
});

test("retries are for what may pass: a service that ended, 5xx, and 429 no sooner than its Retry-After; the last answer is told", async () => {
  const times: number[] = [];
  const { ask } = await serve(({ response, request }, count) => {
    times.push(performance.now());
    if (count === 0) return void request.socket.destroy();
    response.statusCode = [0, 502, 429][count] ?? 503;
    if (count === 2) response.setHeader("retry-after", "1");
    if (count === 4) response.statusCode = 200;
    response.end(`answer ${count}`);
  });
  const patient = ask({ retries: 4 });
  expect(await patient.ended).toBeUndefined();
  expect(finishedOf(patient)).toMatchObject({ status: "answered", http_status: 200 });
  const started = patient.events.filter(({ event }) => event === "started");
  expect(started.map((event) => (event.started as { attempt?: number }).attempt)).toEqual([0, 1, 2, 3, 4]);
  expect(outputOf(patient)).toBe("answer 4");
  // Timers may be a millisecond short.
  expect(times[3]! - times[2]!).toBeGreaterThan(990);
  const last = ask({ retries: 1 });
  expect(await last.ended).toBeUndefined();
  expect([finishedOf(last)!["http_status"], outputOf(last), times.length]).toEqual([503, "answer 6", 7]);
});

test("a service that is gone fails the action where no attempt is left, and is looked at before its devices are another's", async () => {
  const { ask, numLooks, isIdle, moveTo } = await serve(({ request }) => request.socket.destroy());
  expect(await ask().ended).toMatchObject({
    code: grpc.status.UNAVAILABLE,
    details: expect.stringMatching(/the service ended before its answer did/),
  });
  expect(numLooks()).toBe(1);
  moveTo("http://127.0.0.1:9");
  expect(await ask().ended).toMatchObject({
    details: expect.stringMatching(/the service cannot be reached: .*ECONNREFUSED/),
  });
  expect(await isIdle()).toBe(true);
});

test("a refusal stops the quotas that the request was granted with", async () => {
  const { ask, pool } = await serve(
    ({ response }, count) => {
      if (count === 0) response.writeHead(429, { "retry-after": "1" });
      response.end();
    },
    { devices: false },
  );
  const refused = ask();
  await refused.ended;
  const beganMs = performance.now();
  expect(finishedOf(refused)!["http_status"]).toBe(429);
  const next = ask();
  await next.ended;
  expect(finishedOf(next)!["http_status"]).toBe(200);
  expect(performance.now() - beganMs).toBeGreaterThan(900);
  expect(pool.usage()["calls"]!.held).toBe(0);
});

test("AQ2 HQ2 time, output, a deadline, a cancel, the end of its call or of its trajectory cut a request, and its devices are back", async () => {
  let numOpen = 0;
  const { ask, client, isIdle } = await serve(({ response, text }) => {
    numOpen++;
    response.on("close", () => numOpen--);
    response.write(text === "" ? "begun" : "x".repeat(1000));
  });
  const timed = ask({ timeout_ms: 100 });
  expect(await timed.ended).toBeUndefined();
  expect(finishedOf(timed)).toMatchObject({ status: "timeout", http_status: 200 });
  expect(outputOf(timed)).toBe("begun");
  const long = ask({ max_output_bytes: 10 }, { body: Buffer.from("much") });
  expect(await long.ended).toBeUndefined();
  expect([finishedOf(long)!["status"], outputOf(long)]).toEqual(["output-limit", "x".repeat(10)]);
  expect(await ask({ deadline_ms: 100 }).ended).toMatchObject({ code: grpc.status.DEADLINE_EXCEEDED });
  const cancelled = ask({ action: "cancelled" });
  await cancelled.until("output");
  expect(await client.call("Cancel", { action: "cancelled" })).toEqual({ found: true });
  expect(await cancelled.ended).toMatchObject({ code: grpc.status.CANCELLED });
  const left = ask();
  await left.until("output");
  left.stream.cancel();
  await client.call("OpenTrajectory", { trajectory: "t" });
  const owned = ask({ trajectory: "t" });
  await owned.until("output");
  await client.call("CloseTrajectory", { trajectory: "t" });
  expect(await owned.ended).toMatchObject({ code: grpc.status.CANCELLED });
  expect(await isIdle()).toBe(true);
  expect(await eventually(() => numOpen === 0)).toBe(true);
});

test("a repeat with the same key joins the request, which is asked once, and another body is refused", async () => {
  const { ask, numAsked } = await serve(({ response, text }) => setTimeout(() => response.end(text), 200));
  const message = { idempotency_key: "once" };
  const body = Buffer.from("it");
  const first = ask(message, { body });
  await first.until("started");
  first.stream.cancel();
  const again = ask(message, { body });
  expect(await again.ended).toBeUndefined();
  expect([outputOf(again), numAsked()]).toEqual(["it", 1]);
  expect(await ask(message, { body: Buffer.from("other") }).ended).toMatchObject({ code: grpc.status.ALREADY_EXISTS });
});

test("AQ2 GS4 a client that reads nothing holds no devices: its answer waits in a file, within its tenant's limit", async () => {
  const size = 8 * 2 ** 20;
  const { ask, isIdle, server, client } = await serve(({ response }) => void response.end(Buffer.alloc(size, "x")), {
    unreadBytes: 2 * size,
  });
  const read = (message: object) => {
    const one = ask(message);
    one.stream.pause();
    return one;
  };
  const one = read({ max_output_bytes: 2 * size });
  expect(await eventually(() => server.unreadBytes("default") > size / 2)).toBe(true);
  expect(await isIdle()).toBe(true);
  one.stream.resume();
  expect(await one.ended).toBeUndefined();
  expect(outputOf(one).length).toBe(size);
  const many = [1, 2, 3, 4].map(() => read({ max_output_bytes: 2 * size }));
  expect(await isIdle()).toBe(true);
  for (const each of many) each.stream.resume();
  const failures = (await Promise.all(many.map(({ ended }) => ended))).filter((error) => error !== undefined);
  expect(failures.length).toBeGreaterThan(0);
  for (const failure of failures) expect(failure).toMatchObject({ code: grpc.status.RESOURCE_EXHAUSTED });
  client.close();
});

test("AQ1 HQ1 what no request may say is refused by its field, before anything is asked", async () => {
  const { ask, client, numAsked } = await serve(({ response }) => void response.end());
  const refusals: [object, object, RegExp][] = [
    [{ service: "nobody" }, {}, /service: 'nobody' is not served; served are 'judge'/],
    [{ command: ["true"] }, {}, /command: is for a command, and this is a request/],
    [{ session: "s", stdin: Buffer.from("x") }, {}, /stdin: is for a command.*session: is for a command/],
    [{ service: "" }, {}, /service: is the name of the service that `request` is for/],
    [{ request: null }, {}, /request: is what the service is asked/],
    [{ cost: { calls: { fixed: 5 } } }, {}, /'5' units of 'calls' were asked for, one action can get 4/],
    [{ cost: { gpu: { fixed: 2 } } }, {}, /'2' units of 'gpu' were asked for/],
    [{ trajectory: "none" }, {}, /trajectory 'none' is not open/],
    [{}, { path: "http://elsewhere/score" }, /request.path: 'http:\/\/elsewhere\/score' is no path/],
    [{}, { path: "//elsewhere/score" }, /request.path: '\/\/elsewhere\/score' is not served by 'judge'/],
    [{}, { path: "/v1/../sleep" }, /is not served by 'judge'; served are \/v1\/\*, \/score/],
    [{}, { path: "/v1/%2e%2e/sleep" }, /is not served/],
    [{}, { path: "/sleep" }, /is not served/],
    [{}, { path: "/score\r\nHost: x" }, /request.path: '\/score\\r\\nHost: x' is no path/],
    [{}, { path: "" }, /is no path/],
    [{}, { method: "CONNECT" }, /request.method: 'CONNECT' is not sent; sent are GET, POST/],
    [{}, { headers: { Authorization: "Bearer x" } }, /request.headers.Authorization: is not passed to a service/],
    [{}, { headers: { host: "x", "transfer-encoding": "chunked" } }, /headers.host.*headers.transfer-encoding/],
    [{}, { headers: { "x y": "z" } }, /headers.x y: 'z' is no value of a header/],
    [{}, { headers: { x: "a\r\nb: c" } }, /headers.x: 'a\\r\\nb: c' is no value/],
    [{}, { headers: { x: "y".repeat(9000) } }, /request.headers: have 9001 bytes, at most 8192 are passed/],
    [{}, { body: Buffer.alloc(2 ** 25 + 1) }, /request.body: has 33554433 bytes, at most 33554432 are passed/],
  ];
  for (const [message, request, details] of refusals) {
    const error = await ask(message, request).ended;
    expect([message, error?.details]).toEqual([message, expect.stringMatching(details)]);
    expect([grpc.status.INVALID_ARGUMENT, grpc.status.NOT_FOUND]).toContain(error?.code);
  }
  expect(await client.submit({ command: ["true"], cost: {} }).ended).toMatchObject({
    details: expect.stringMatching(/trajectory: is where a command runs/),
  });
  expect(numAsked()).toBe(0);
});

test("a request of a trajectory reserves no memory for a sandbox, and waits for none", async () => {
  const cpu = new CpuManager({ nodes: [{ id: "n", numa: [[0]], memoryBytes: 10 }] });
  const gpu = new GpuManager({
    nodes: 1,
    devicesPerNode: 1,
    memoryBytesPerDevice: 10,
    services: { judge: [{ dop: 1, memoryBytes: 1 }] },
  });
  const pool = new ActionPool({ managers: [cpu, gpu] });
  cleanups.push(() => pool.close());
  const ask = (trajectory: string) =>
    pool.submit({ kind: "judge", cost: { gpu: 1 }, key: "gpu", service: "judge", trajectory }, async () => "asked")
      .result;
  for (const trajectory of ["first", "second"]) pool.openTrajectory(trajectory, { memoryBytes: 10 });
  expect(await ask("second")).toBe("asked");
  // All that there is goes to the first, and the second's request still does not wait for any.
  await pool.submit({ kind: "command", cost: { cpu: 1 }, trajectory: "first" }, async () => {}).result;
  expect([cpu.home("first"), cpu.home("second")]).toEqual(["cpu@n", undefined]);
  expect(await ask("second")).toBe("asked");
});

test("a request has its service restored on devices, also before another service's, and needs no sandbox of its trajectory", async () => {
  const engine = fileURLToPath(new URL("support/openai-server.mjs", import.meta.url));
  const mark = `asked-by-submit-${process.pid}`;
  const judge = {
    command: [process.execPath, engine, "{port}", mark],
    variants: [{ dop: 1, memoryMib: 600 }],
  };
  const service = await openActionService(
    ActionServiceConfig.parse({
      listen: "127.0.0.1:0",
      drivers: ["process"],
      resources: {
        cpu: { type: "cpu" },
        gpu: { type: "gpu", devices: 1, memoryMibPerDevice: 640, mainMemory: true, services: { judge, coach: judge } },
      },
    }),
    ".",
  );
  cleanups.push(() => service.close());
  const client = connectActions(service.address);
  cleanups.push(() => client.close());
  await client.call("OpenTrajectory", { trajectory: "t" });
  const ask = (name: string, content: string, message: object = {}) => {
    const body = Buffer.from(JSON.stringify({ model: name, messages: [{ content }] }));
    const request = { path: "/v1/chat/completions", headers: { "content-type": "application/json" }, body };
    return client.submit({ service: name, kind: "", cost: {}, request, ...message });
  };
  const pids = new Set<number>();
  const asked: [string, object][] = [
    ["judge", { trajectory: "t" }],
    ["judge", {}],
    ["coach", { trajectory: "t" }],
  ];
  for (const [name, message] of asked) {
    const one = ask(name, "say", message);
    expect(await one.ended).toBeUndefined();
    const answer = JSON.parse(outputOf(one)) as { model: string; pid: number };
    expect(answer.model).toBe(name);
    pids.add(answer.pid);
  }
  expect(pids.size).toBe(2);
  expect(processesWith(mark).length).toBe(1);
  expect(await ask("judge", "say", { cost: { cpu: { fixed: 1 } } }).ended).toMatchObject({
    details: expect.stringMatching(/cost.cpu: is for commands/),
  });
  // It died while it was asked: with an attempt left it is restored.
  const died = ask("coach", "die", { retries: 1 });
  expect(await died.ended).toMatchObject({ code: grpc.status.UNAVAILABLE });
  expect(died.events.filter(({ event }) => event === "started").length).toBe(2);
  const well = ask("coach", "say");
  expect(await well.ended).toBeUndefined();
});
