import { execFileSync } from "node:child_process";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { request } from "node:http";
import { request as secureRequest } from "node:https";
import { connect, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import parse from "parse-prometheus-text-format";
import { afterEach, expect, it } from "vitest";
import {
  createNodeRegistry,
  createRunRegistry,
  createTracer,
  type MetricsServer,
  parseMetricsAddress,
  recordProcessCounters,
  serveMetrics,
} from "../src/index.ts";

const servers: MetricsServer[] = [];
const folders: string[] = [];
const strangers: Socket[] = [];
afterEach(async () => {
  for (const socket of strangers.splice(0)) socket.destroy();
  for (const server of servers.splice(0)) await server.close();
  for (const folder of folders.splice(0)) await rm(folder, { recursive: true });
});

async function serve(...args: Parameters<typeof serveMetrics>): Promise<MetricsServer> {
  const server = await serveMetrics(...args);
  servers.push(server);
  return server;
}

/** Where files of certificates with these names are, each of which is its own authority. */
async function selfSigned(...names: string[]): Promise<(file: string) => string> {
  const folder = await mkdtemp(join(tmpdir(), "treadle-metrics-"));
  folders.push(folder);
  const at = (file: string) => join(folder, file);
  for (const name of names) {
    const files = ["-keyout", at(`${name}.key`), "-out", at(`${name}.pem`)];
    const subject = ["-subj", `/CN=${name}`, "-addext", "subjectAltName=IP:127.0.0.1"];
    const key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];
    execFileSync("openssl", ["req", "-x509", ...key, ...subject, ...files], { stdio: "ignore" });
  }
  return at;
}

const familyOf = (text: string, name: string) => {
  const family = parse(text).find((each) => each.name === name);
  if (family === undefined) throw new Error(`no metric '${name}'`);
  return family;
};

/** What a worker sends: spans that were timed, and counters of the process. */
function batchOf(worker: string, sentBytes: number) {
  const tracer = createTracer({ worker, now: () => 0 });
  tracer.complete("generate", "call", 0, 2000);
  tracer.complete("device lock", "lock-wait", 0, 250);
  tracer.complete("prompts", "channel-wait", 250, 1250);
  tracer.complete("calculator", "compute", 0, 40, {
    attributes: { status: "completed", queueingMs: 10, executionMs: 30 },
  });
  tracer.complete("no action", "compute", 0, 40, { attributes: { queueingMs: 10 } });
  recordProcessCounters(tracer, { sentBytes, receivedBytes: 5 });
  return tracer.drain();
}

it("a scrape has what events, spans and counters of a run say, in seconds and bytes", async () => {
  const registry = await createRunRegistry({ runId: "r" }, { processMetrics: true });
  registry.observeSpans(batchOf("rollout/0", 100));
  registry.observeSpans({ ...batchOf("rollout/0", 150), dropped: 7 });
  registry.observeSpans(batchOf("rollout/0", 30)); // its next incarnation
  registry.observe({ type: "queue", atMs: 0, channel: "prompts", depth: 12 });
  const { url } = await serve(registry, { address: 0 }, {});
  const response = await fetch(url);
  expect(response.headers.get("content-type")).toContain("text/plain; version=0.0.4");
  const text = await response.text();
  const [lockWait] = familyOf(text, "treadle_lock_wait_seconds").metrics;
  expect(lockWait?.buckets).toMatchObject({ "0.1": "0", "0.5": "3", "+Inf": "3" });
  const sums = Object.fromEntries(
    [...text.matchAll(/^treadle_(\w+)_seconds_sum\{[^}]*\} (\S+)$/gm)].map(([, name, sum]) => [name, Number(sum)]),
  );
  expect(sums).toMatchObject({ lock_wait: 0.75, call: 6, channel_wait: 3, action_queue: 0.03, action_execution: 0.09 });
  expect(familyOf(text, "treadle_channel_depth").metrics).toMatchObject([
    { value: "12", labels: { channel: "prompts" } },
  ]);
  const worker = { worker: "rollout/0", run: "r" };
  expect(familyOf(text, "treadle_link_sent_bytes_total").metrics).toMatchObject([{ value: "180", labels: worker }]);
  expect(familyOf(text, "treadle_spans_dropped_total").metrics).toMatchObject([{ value: "7", labels: worker }]);
  expect(Number(familyOf(text, "treadle_worker_resident_memory_bytes").metrics[0]?.value)).toBeGreaterThan(1e6);
  expect(familyOf(text, "process_cpu_user_seconds_total").metrics).toHaveLength(1);
});

it("every metric's name ends in its unit, and counters in 'total'", async () => {
  const [run, node] = [
    await createRunRegistry({ runId: "r" }),
    await createNodeRegistry("a", { cpus: 2, memoryBytes: 1, devices: [] }),
  ];
  for (const { name, type, help } of [...parse(await run.exposition()), ...parse(await node.exposition())]) {
    if (!name.startsWith("treadle_")) continue;
    expect(name.endsWith("_total"), name).toBe(type === "COUNTER");
    if (type === "HISTOGRAM") expect(name).toMatch(/_(seconds|bytes)$/);
    expect(help.length).toBeGreaterThan(5);
  }
});

it("a node's scrape follows its workers", async () => {
  const registry = await createNodeRegistry("a", {
    cpus: 8,
    memoryBytes: 2 ** 33,
    devices: [{ kind: "cuda" }, { kind: "cuda" }],
  });
  registry.workers({ "run-1": ["rollout/0", "rollout/1"], "run-2": ["actor/0"] });
  registry.beat("run-1", { worker: "rollout/0", rssBytes: 1000, busyMs: 500 });
  registry.beat("run-1", { worker: "rollout/1", rssBytes: 2000, busyMs: 0 });
  registry.exited("run-1", "rollout/1", "signal");
  registry.workers({ "run-1": ["rollout/0"] });
  registry.connected(false);
  const text = await registry.exposition();
  expect(familyOf(text, "treadle_node_devices").metrics).toMatchObject([
    { value: "2", labels: { kind: "cuda", node: "a" } },
  ]);
  expect(familyOf(text, "treadle_node_workers").metrics).toMatchObject([{ value: "1", labels: { run: "run-1" } }]);
  expect(familyOf(text, "treadle_node_worker_resident_memory_bytes").metrics).toMatchObject([
    { value: "1000", labels: { worker: "rollout/0" } },
  ]);
  expect(familyOf(text, "treadle_node_worker_exits_total").metrics).toMatchObject([
    { value: "1", labels: { how: "signal" } },
  ]);
  expect(familyOf(text, "treadle_node_control_plane_connected").metrics).toMatchObject([{ value: "0" }]);
  expect(familyOf(text, "treadle_node_control_plane_losses_total").metrics).toMatchObject([{ value: "1" }]);
});

it("a port alone is on loopback; other interfaces are named", () => {
  expect(parseMetricsAddress(9464)).toEqual({ host: "127.0.0.1", port: 9464 });
  expect(parseMetricsAddress(":9464")).toEqual({ host: "127.0.0.1", port: 9464 });
  expect(parseMetricsAddress("0.0.0.0:80")).toEqual({ host: "0.0.0.0", port: 80 });
  expect(parseMetricsAddress("[::]:80")).toEqual({ host: "::", port: 80 });
  for (const wrong of ["", "host", "host:port", "a:b:1", "1.2.3.4:70000", "http://a:1"]) {
    expect(() => parseMetricsAddress(wrong), wrong).toThrow(/not of the form port, host:port/);
  }
});

it("MV1: with a token nobody else reads, and nothing but metrics is there", async () => {
  const registry = await createRunRegistry({ runId: "r" });
  const { url } = await serve(registry, { address: "127.0.0.1:0" }, { TREADLE_METRICS_TOKEN: "let me in" });
  const status = async (authorization?: string) =>
    (await fetch(url, { headers: authorization === undefined ? {} : { authorization } })).status;
  expect(await status()).toBe(401);
  expect(await status("Bearer let me")).toBe(401);
  expect(await status("let me in")).toBe(401);
  expect(await status("Bearer let me in")).toBe(200);
  expect((await fetch(new URL("/", url))).status).toBe(404);
  expect((await fetch(url, { method: "POST", headers: { authorization: "Bearer let me in" } })).status).toBe(405);
  expect(await (await fetch(url, { headers: { authorization: "Bearer let me in" } })).text()).not.toContain(
    "let me in",
  );
});

it("says which address cannot be had, and why", async () => {
  const registry = await createRunRegistry({ runId: "r" });
  const { url } = await serve(registry, { address: 0 }, {});
  const { port } = new URL(url);
  await expect(serveMetrics(registry, { address: Number(port) }, {})).rejects.toMatchObject({
    code: "metrics.unavailable",
    message: expect.stringContaining(`'127.0.0.1:${port}'`),
  });
  const tls = { cert: "/nonexistent.pem", key: "/nonexistent.pem" };
  await expect(serveMetrics(registry, { address: 0, tls }, {})).rejects.toThrow(/'\/nonexistent.pem'/);
});

it("MV1: with an authority only clients that have its certificate read", async () => {
  const at = await selfSigned("ours", "other");
  const tls = { ca: at("ours.pem"), cert: at("ours.pem"), key: at("ours.key") };
  const { url } = await serve(await createRunRegistry({ runId: "r" }), { address: 0, tls }, {});
  const ca = await readFile(tls.ca);
  const status = async (name?: string) => {
    const own =
      name === undefined ? {} : { cert: await readFile(at(`${name}.pem`)), key: await readFile(at(`${name}.key`)) };
    return new Promise<unknown>((resolve) => {
      secureRequest(url, { ca, ...own, agent: false }, (response) => resolve(response.resume().statusCode))
        .on("error", () => resolve("refused"))
        .end();
    });
  };
  expect([await status(), await status("other"), await status("ours")]).toEqual(["refused", "refused", 200]);
});

/** Says a part of a request, or nothing, and waits. */
async function loiter(port: string, text: string) {
  const socket = connect(Number(port), "127.0.0.1");
  strangers.push(socket);
  const state = { isOpen: true };
  const ended = new Promise<void>((resolve) => socket.once("close", () => resolve()));
  void ended.then(() => {
    state.isOpen = false;
  });
  socket.on("error", () => {}).resume();
  await new Promise((resolve) => socket.once("connect", resolve));
  socket.write(text);
  return { ended, state };
}
const parts = ["", "GET /met", "GET /metrics HTTP/1.1\r\nHost: a\r\n"];

it("MV2: a peer that says nothing, or only a part, is let go of soon", async () => {
  const limits = { requestTimeoutMs: 600, maxConnections: 3 };
  const { url } = await serve(await createRunRegistry({ runId: "r" }), { address: 0 }, {}, limits);
  const slow = await Promise.all(parts.map((text) => loiter(new URL(url).port, text)));
  await Promise.all(slow.map(({ ended }) => ended));
  expect((await fetch(url)).status).toBe(200);
});

it.each(["plain", "encrypted"])(
  "MV2, HC1: however many such peers there are, a scraper is let in, and the oldest go (%s)",
  async (kind) => {
    const limits = { requestTimeoutMs: 60_000, maxConnections: 3 };
    const at = await selfSigned("ours");
    const tls = kind === "plain" ? undefined : { cert: at("ours.pem"), key: at("ours.key") };
    const { url } = await serve(await createRunRegistry({ runId: "r" }), { address: 0, tls }, {}, limits);
    const { port } = new URL(url);
    const slow: Awaited<ReturnType<typeof loiter>>[] = [];
    for (const text of [...(tls ? ["", "", ""] : parts), "", "", ""]) slow.push(await loiter(port, text));
    const status = await new Promise((resolve, reject) => {
      const ask = kind === "plain" ? request : secureRequest;
      ask(url, { agent: false, rejectUnauthorized: false }, (response) => resolve(response.resume().statusCode))
        .on("error", reject)
        .end();
    });
    expect(status).toBe(200);
    await Promise.all(slow.slice(0, 4).map(({ ended }) => ended));
    expect(slow.map(({ state }) => state.isOpen)).toEqual([false, false, false, false, true, true]);
  },
);

it("closes while a scraper holds its connection open", async () => {
  const registry = await createRunRegistry({ runId: "r" });
  const server = await serveMetrics(registry, { address: 0 }, {});
  const open = request(server.url, { headers: { connection: "keep-alive" } });
  const closed = new Promise((resolve) => open.once("error", resolve));
  open.write("x"); // a body that never ends
  await new Promise((resolve) => open.once("socket", (socket) => socket.once("connect", resolve)));
  await server.close();
  await closed;
});
