import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { connect as connectHttp2, constants } from "node:http2";
import { type AddressInfo, createConnection, createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import * as grpc from "@grpc/grpc-js";
import { systemClock } from "@treadle/transport";
import { afterEach, describe, expect, test, vi } from "vitest";
import { ActionPool, CommandActions, CpuManager, ProcessDriver, QuotaManager } from "../src/index.ts";
import { type ActionServerOptions, serveActions } from "../src/serve.ts";
import { connectActions } from "./support/client.ts";
import { collectGarbage } from "./support/garbage.ts";
import { eventually, processesWith } from "./support/processes.ts";

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

async function serve(options: Partial<ActionServerOptions> = {}) {
  const cpu = new CpuManager({
    nodes: [{ id: "local", numa: [[0]], memoryBytes: 2 ** 30 }],
    trajectoryMemoryBytes: 2 ** 20,
  });
  const pool = new ActionPool({ managers: [cpu, new QuotaManager("search", { concurrency: 1 })], clock: systemClock });
  const actions = new CommandActions(pool, new ProcessDriver());
  const server = await serveActions(actions, { address: "127.0.0.1:0", ...options });
  cleanups.push(async () => {
    await server.close();
    await actions.close();
  });
  return { server, pool, actions };
}

const connect = (port: number, credentials?: grpc.ChannelCredentials, token?: string) => {
  const client = connectActions(`localhost:${port}`, credentials, token);
  cleanups.push(client.close);
  return client;
};

describe("the actions service", () => {
  test("runs a command of a trajectory and streams how it goes", async () => {
    const { server } = await serve();
    const { call, submit } = connect(server.port);
    const { trajectory } = await call("OpenTrajectory", { tenant: "team" });
    await call("WriteFile", { trajectory, path: "in.txt", data: Buffer.from("hello ") });
    const run = submit({
      trajectory,
      command: ["sh", "-c", "cat in.txt -; echo $TREADLE_UNITS_CPU > out.txt; exit 4"],
      stdin: Buffer.from("world"),
      action: "first",
    });
    expect(await run.ended).toBeUndefined();
    // The two halves of what it prints may come as one piece or two.
    const pieces = run.events.filter((e) => e.event === "output");
    const [queued, started, finished] = run.events.filter((e) => e.event !== "output");
    expect(run.events.map((e) => e.event)).toEqual(["queued", "started", ...pieces.map(() => "output"), "finished"]);
    expect(queued!.queued!.action).toBe("first");
    expect(started!.started).toMatchObject({
      allocation: { cpu: 1 },
      cores: [0],
      why: "its cost is fixed; unit-aware started 1 of 1 candidates, 1 waiting, 1 cpu free",
    });
    expect(Buffer.concat(pieces.map((e) => e.output!.stdout)).toString()).toBe("hello world");
    expect(finished!.finished).toMatchObject({ status: "exited", exit_code: 4 });
    expect(String(((await call("ReadFile", { trajectory, path: "out.txt" })).data as Buffer).toString())).toBe("1\n");
    expect(await call("GetStatistics", {})).toMatchObject({
      kinds: { tool: { submitted: 1, completed: 1 } },
      waiting: 0,
      running: 0,
      isolation: expect.stringMatching(/^none/),
    });
    await call("CloseTrajectory", { trajectory });
    await expect(call("ReadFile", { trajectory, path: "out.txt" })).rejects.toMatchObject({
      code: grpc.status.NOT_FOUND,
    });
  });

  test("GS2 an action ends when it is cancelled by name, by its call, or by the call's deadline", async () => {
    const { server, pool } = await serve();
    const { call, submit } = connect(server.port);
    const { trajectory } = await call("OpenTrajectory", {});
    const named = submit({ trajectory, command: ["sleep", "71.5"], action: "named" });
    await named.until("started");
    expect(await call("Cancel", { action: "named" })).toEqual({ found: true });
    expect(await named.ended).toMatchObject({ code: grpc.status.CANCELLED });
    const left = submit({ trajectory, command: ["sleep", "71.5"] });
    await left.until("started");
    left.stream.cancel();
    await left.ended;
    const late = submit({ trajectory, command: ["sleep", "71.5"] }, { deadline: Date.now() + 300 });
    expect(await late.ended).toMatchObject({ code: grpc.status.DEADLINE_EXCEEDED });
    const own = submit({ trajectory, command: ["sleep", "71.5"], deadline_ms: 200 });
    expect(await own.ended).toMatchObject({
      code: grpc.status.DEADLINE_EXCEEDED,
      details: expect.stringMatching(/did not end within 200 ms/),
    });
    while (pool.numRunning > 0) await new Promise((resolve) => setTimeout(resolve, 20));
    expect(await call("Cancel", { action: "named" })).toEqual({ found: false });
  });

  test("GS2 CA2 what prepares a sandbox ends with the call that needs it, and its cores come back", async () => {
    const { server, pool } = await serve();
    const { call, submit } = connect(server.port);
    await call("OpenTrajectory", { trajectory: "t", prepare: [{ words: ["sleep", "71.6"] }] });
    const isPreparing = () => eventually(() => processesWith("71.6").length > 0);
    const left = submit({ trajectory: "t", command: ["true"] });
    expect(await isPreparing()).toBe(true);
    left.stream.cancel();
    expect(await eventually(() => processesWith("71.6").length === 0 && pool.numRunning === 0)).toBe(true);
    const late = submit({ trajectory: "t", command: ["true"] }, { deadline: Date.now() + 3000 });
    expect(await isPreparing()).toBe(true);
    expect(await late.ended).toMatchObject({ code: grpc.status.DEADLINE_EXCEEDED });
    expect(await eventually(() => processesWith("71.6").length === 0 && pool.numRunning === 0)).toBe(true);
    const other = connect(server.port);
    const write = other.call("WriteFile", { trajectory: "t", path: "file", data: Buffer.alloc(1) }).catch(() => {});
    expect(await isPreparing()).toBe(true);
    other.close();
    expect(await eventually(() => processesWith("71.6").length === 0)).toBe(true);
    await write;
  });

  test("bad requests name the field and what was allowed", async () => {
    const { server } = await serve();
    const { call, submit } = connect(server.port);
    const { trajectory } = await call("OpenTrajectory", {});
    const failure = async (message: object) => (await submit({ trajectory, command: ["true"], ...message }).ended)!;
    expect(await failure({ command: [] })).toMatchObject({
      code: grpc.status.INVALID_ARGUMENT,
      details: expect.stringMatching(/command: names a program/),
    });
    expect(await failure({ cost: { tpu: { fixed: 1 } } })).toMatchObject({
      code: grpc.status.INVALID_ARGUMENT,
      details: expect.stringMatching(/'tpu' is not managed; managed are 'cpu', 'search'/),
    });
    expect(await failure({ cost: { cpu: { range: { min: 1, max: 4 } } } })).toMatchObject({
      code: grpc.status.INVALID_ARGUMENT,
      details: expect.stringMatching(/cost\.cpu/),
    });
    for (const [message, details] of [
      [{ cost: { cpu: { range: { min: 1, max: 4_000_000_000 } } }, key: "cpu" }, /cost\.cpu\.max/],
      [{ cost: { cpu: { fixed: Number.NaN } } }, /cost\.cpu\.fixed/],
      [{ command: ["echo", "a\0b"] }, /command: 'a\\0b' holds a zero byte/],
      [{ environment: { "A=B": "" } }, /environment: 'A=B' is no name/],
      [{ timeout_ms: 1e12 }, /timeout_ms/],
      [{ deadline_ms: 1e12 }, /deadlineMs/],
      [{ max_output_bytes: 4_000_000_000 }, /max_output_bytes/],
    ] as const)
      expect(await failure(message)).toMatchObject({
        code: grpc.status.INVALID_ARGUMENT,
        details: expect.stringMatching(details),
      });
    expect(await failure({ trajectory: "other" })).toMatchObject({ code: grpc.status.NOT_FOUND });
    const error = await failure({ cost: { cpu: { fixed: 9 } } });
    expect(error.metadata.get("treadle-code")).toEqual(["action.impossible"]);
  });

  test("CA1 a sandbox that died with its files is a status of its own, until its trajectory is closed", async () => {
    const { server } = await serve();
    const { call, submit } = connect(server.port);
    await call("OpenTrajectory", { trajectory: "t", prepare: [{ words: ["sh", "-c", "echo ready > made"] }] });
    const before = submit({ trajectory: "t", command: ["cat", "made"], retries: 1 });
    expect(await before.ended).toBeUndefined();
    expect(before.events.find((e) => e.event === "output")!.output!.stdout.toString()).toBe("ready\n");
    // The folder that a sandbox of plain processes is.
    await submit({ trajectory: "t", command: ["sh", "-c", 'rm -rf "$PWD"; kill -9 $$'], retries: 1 }).ended;
    for (const command of [["true"], ["ls"]]) {
      const after = await submit({ trajectory: "t", command, retries: 1 }).ended;
      expect(after).toMatchObject({
        code: grpc.status.DATA_LOSS,
        details: expect.stringMatching(/its folder was removed/),
      });
      expect(after!.metadata.get("treadle-code")).toEqual(["sandbox.lost"]);
    }
    await call("CloseTrajectory", { trajectory: "t" });
    await call("OpenTrajectory", { trajectory: "t", restorable: true });
    for (let round = 0; round < 2; round++) {
      await submit({ trajectory: "t", command: ["sh", "-c", "echo x > y"] }).ended;
      await submit({ trajectory: "t", command: ["sh", "-c", 'rm -rf "$PWD"; kill -9 $$'] }).ended;
      expect(await submit({ trajectory: "t", command: ["true"], retries: 2 }).ended).toBeUndefined();
    }
  });

  test("GS4 a client that reads nothing costs no memory, gets all of it later, and no more than its tenant's share is kept", async () => {
    const { server, pool } = await serve({ limits: { unreadBytes: 40 * 2 ** 20 } });
    const { call, submit } = connect(server.port);
    const { trajectory } = await call("OpenTrajectory", {});
    const mebibytes = 24;
    const command = ["sh", "-c", `head -c ${mebibytes * 2 ** 20} /dev/zero | tr '\\0' x; echo end`];
    const slow = submit({ trajectory, command, max_output_bytes: 60 * 2 ** 20, timeout_ms: 120_000 });
    slow.stream.pause();
    const before = process.memoryUsage();
    while (server.unreadBytes("default") < (mebibytes - 4) * 2 ** 20)
      await new Promise((resolve) => setTimeout(resolve, 20));
    const held = () => {
      collectGarbage();
      return process.memoryUsage().arrayBuffers - before.arrayBuffers;
    };
    // What is on its way to the disk is let go of when it is there.
    const limit = (mebibytes / 2) * 2 ** 20;
    for (let look = 0; look < 200 && held() >= limit; look++) await new Promise((resolve) => setTimeout(resolve, 50));
    expect(held()).toBeLessThan(limit);
    slow.stream.resume();
    expect(await slow.ended).toBeUndefined();
    const output = Buffer.concat(slow.events.filter((e) => e.event === "output").map((e) => e.output!.stdout));
    expect([output.length, output.subarray(-4).toString()]).toEqual([mebibytes * 2 ** 20 + 4, "end\n"]);
    expect(slow.events.at(-1)!.finished).toMatchObject({ status: "exited", exit_code: 0 });
    expect(server.unreadBytes("default")).toBe(0);
    const greedy = submit({ trajectory, command: ["sh", "-c", "cat /dev/zero"], max_output_bytes: 60 * 2 ** 20 });
    greedy.stream.pause();
    const cancelled = (): number => pool.statistics().tool?.cancelled ?? 0;
    while (cancelled() === 0) await new Promise((resolve) => setTimeout(resolve, 20));
    greedy.stream.resume();
    expect(await greedy.ended).toMatchObject({
      code: grpc.status.RESOURCE_EXHAUSTED,
      details: expect.stringMatching(/have not read/),
    });
  });

  test("GS2 a client whose connection went silent is found, and its action ends", async () => {
    const { server, pool } = await serve({ keepaliveMs: 300 });
    const proxy = createServer();
    const sockets: Socket[] = [];
    proxy.on("connection", (near) => {
      const far = createConnection({ host: "127.0.0.1", port: server.port });
      sockets.push(near, far);
      for (const socket of [near, far]) socket.on("error", () => {});
      near.pipe(far);
      far.pipe(near);
    });
    await new Promise<void>((resolve) => proxy.listen(0, "127.0.0.1", () => resolve()));
    cleanups.push(() => {
      for (const socket of sockets) socket.destroy();
      proxy.close();
    });
    const { call, submit } = connect((proxy.address() as AddressInfo).port);
    const { trajectory } = await call("OpenTrajectory", {});
    const run = submit({ trajectory, command: ["sleep", "74.5"] });
    await run.until("started");
    for (const socket of sockets) {
      socket.unpipe();
      socket.pause();
    }
    while (pool.numRunning > 0) await new Promise((resolve) => setTimeout(resolve, 20));
    expect(pool.statistics().tool).toMatchObject({ cancelled: 1 });
  });

  test("GS5 a trajectory that nobody uses is closed, and what it reserved comes back; one with an action is not", async () => {
    // Memory for one at a time.
    const { server, pool } = await serve({ limits: { memoryBytes: 2 ** 30, idleMs: 2000 } });
    const { call, submit } = connect(server.port);
    await call("OpenTrajectory", { trajectory: "left" });
    expect(await submit({ trajectory: "left", command: ["sleep", "6"] }).ended).toBeUndefined();
    await call("OpenTrajectory", { trajectory: "next" });
    expect(await submit({ trajectory: "next", command: ["true"] }).ended).toBeUndefined();
    expect(await submit({ trajectory: "left", command: ["true"] }).ended).toMatchObject({
      code: grpc.status.NOT_FOUND,
      details: expect.stringMatching(/again when nobody has used it for 2 s/),
    });
    expect(pool.numWaiting).toBe(0);
  });

  test("GS6 a trajectory of a name that is being closed is opened when nothing of it is left, and counts until then", async () => {
    const own = mkdtempSync(join(tmpdir(), "treadle-own-"));
    vi.stubEnv("TMPDIR", own);
    cleanups.push(() => rmSync(own, { recursive: true }), vi.unstubAllEnvs);
    const { server, pool } = await serve({ limits: { trajectories: 1 } });
    expect(await eventually(() => readdirSync(own).length > 0)).toBe(true);
    const { call, submit } = connect(server.port);
    const [folder] = readdirSync(own);
    const numLeft = () => readdirSync(join(own, folder!)).length;
    const before = numLeft();
    for (let round = 0; round < 3; round++) {
      await call("OpenTrajectory", { trajectory: "t" });
      const stubborn = submit({ trajectory: "t", command: ["sh", "-c", "trap '' TERM; echo on; sleep 1; sleep 1"] });
      await stubborn.until("output");
      expect(numLeft()).toBeGreaterThan(before);
      const closing = call("CloseTrajectory", { trajectory: "t" });
      await stubborn.ended;
      await expect(call("OpenTrajectory", { trajectory: "other" })).rejects.toMatchObject({
        code: grpc.status.RESOURCE_EXHAUSTED,
      });
      await call("OpenTrajectory", { trajectory: "t" });
      await closing;
      expect([pool.numRunning, numLeft()]).toEqual([0, before]);
      expect(await submit({ trajectory: "t", command: ["true"] }).ended).toBeUndefined();
      await call("CloseTrajectory", { trajectory: "t" });
      expect(numLeft()).toBe(before);
    }
  });

  test("GS4 what a tenant's clients send and ask for is bounded in memory, and its room comes back", async () => {
    const { server } = await serve({ limits: { unreadBytes: 3 * 2 ** 20 } });
    const { call, submit } = connect(server.port);
    await call("OpenTrajectory", { trajectory: "t" });
    const stdin = Buffer.alloc(2 ** 20);
    const first = submit({ trajectory: "t", command: ["sh", "-c", "cat >/dev/null; sleep 600"], stdin });
    await first.until("started");
    const waiting = submit({ trajectory: "t", command: ["true"], stdin });
    await waiting.until("queued");
    const refused = { code: grpc.status.RESOURCE_EXHAUSTED, details: expect.stringMatching(/limits.unreadMib$/) };
    expect(await submit({ trajectory: "t", command: ["true"], stdin }).ended).toMatchObject(refused);
    await expect(call("WriteFile", { trajectory: "t", path: "f", data: stdin })).rejects.toMatchObject(refused);
    first.stream.cancel();
    expect(await waiting.ended).toBeUndefined();
    await call("WriteFile", { trajectory: "t", path: "f", data: Buffer.alloc(2.5 * 2 ** 20) });
    for (let n = 0; n < 3; n++)
      expect((await call("ReadFile", { trajectory: "t", path: "f" })).data).toHaveLength(2.5 * 2 ** 20);
    expect(await eventually(() => server.unreadBytes("default") === 0)).toBe(true);
    await submit({ trajectory: "t", command: ["sh", "-c", "cat f f > ff"] }).ended;
    await expect(call("ReadFile", { trajectory: "t", path: "ff" })).rejects.toMatchObject(refused);
    const environment = { LONG: "x".repeat(2 ** 17) };
    await expect(call("OpenTrajectory", { environment })).rejects.toMatchObject({
      code: grpc.status.INVALID_ARGUMENT,
      details: expect.stringMatching(/^environment: has 131076 bytes, at most 131072 are allowed; write a file/),
    });
    expect(server.unreadBytes("default")).toBe(0);
  });

  test("GS4 a file whose reader has left takes no room, also where it comes after that", async () => {
    const { server, actions } = await serve();
    let give: (data: Buffer) => void = () => {};
    const came = new Promise<Buffer>((resolve) => {
      give = resolve;
    });
    let isAsked = false;
    actions.readFile = () => {
      isAsked = true;
      return came;
    };
    const { call } = connect(server.port);
    await call("OpenTrajectory", { trajectory: "t" });
    const session = connectHttp2(`http://localhost:${server.port}`);
    cleanups.push(() => session.destroy());
    const [path, type] = ["/treadle.actions.v1.Actions/ReadFile", "application/grpc"];
    const reading = session.request({ ":method": "POST", ":path": path, "content-type": type, te: "trailers" });
    reading.on("error", () => {}).end(Buffer.from([0, 0, 0, 0, 6, 0x0a, 1, 0x74, 0x12, 1, 0x66])); // file 'f' of 't'
    expect(await eventually(() => isAsked)).toBe(true);
    reading.close(constants.NGHTTP2_CANCEL);
    await new Promise((resolve) => setTimeout(resolve, 300));
    give(Buffer.alloc(1000));
    await new Promise((resolve) => setTimeout(resolve, 100));
    expect(server.unreadBytes("default")).toBe(0);
  });

  test("GS4 nothing is read of a call without a known token", async () => {
    const { server } = await serve({ tokens: new Map([["t-a", "a"]]) });
    const session = connectHttp2(`http://localhost:${server.port}`);
    cleanups.push(() => session.destroy());
    const stream = session.request({
      ":method": "POST",
      ":path": "/treadle.actions.v1.Actions/WriteFile",
      "content-type": "application/grpc",
      te: "trailers",
    });
    // A message of 16 MiB, of which the first bytes come.
    stream.write(Buffer.concat([Buffer.from([0, 1, 0, 0, 0]), Buffer.alloc(1000)]));
    const [headers] = (await once(stream, "response")) as [Record<string, string>];
    expect(headers["grpc-status"]).toBe(String(grpc.status.UNAUTHENTICATED));
  });

  test("GS1 a token is a tenant, and tenants do not reach each other's trajectories and actions", async () => {
    const { server } = await serve({
      tokens: new Map([
        ["t-a", "a"],
        ["t-b", "b"],
      ]),
    });
    const [a, b, nobody] = ["t-a", "t-b", "t-c"].map((token) => connect(server.port, undefined, token));
    const { trajectory } = await a!.call("OpenTrajectory", { tenant: "b" });
    await expect(nobody!.call("OpenTrajectory", {})).rejects.toMatchObject({ code: grpc.status.UNAUTHENTICATED });
    expect(await b!.submit({ trajectory, command: ["true"] }).ended).toMatchObject({ code: grpc.status.NOT_FOUND });
    await expect(b!.call("CloseTrajectory", { trajectory })).rejects.toMatchObject({ code: grpc.status.NOT_FOUND });
    const run = a!.submit({ trajectory, command: ["sleep", "72.5"], action: "x" });
    await run.until("started");
    expect(await b!.call("Cancel", { action: "x" })).toEqual({ found: false });
    expect(await a!.call("Cancel", { action: "x" })).toEqual({ found: true });
    expect(await run.ended).toMatchObject({ code: grpc.status.CANCELLED });
  });

  test("GS1 names are a tenant's own: another's trajectory of the same name is neither met nor told of", async () => {
    const { server } = await serve({
      tokens: new Map([
        ["t-a", "a"],
        ["t-b", "b"],
      ]),
    });
    const [a, b] = ["t-a", "t-b"].map((token) => connect(server.port, undefined, token)) as [
      ReturnType<typeof connect>,
      ReturnType<typeof connect>,
    ];
    for (const client of [a, b])
      expect(await client.call("OpenTrajectory", { trajectory: "same", idempotency_key: "key" })).toMatchObject({
        trajectory: "same",
      });
    await expect(a.call("OpenTrajectory", { trajectory: "same" })).rejects.toMatchObject({
      details: expect.stringMatching(/open already/),
    });
    await a.call("WriteFile", { trajectory: "same", path: "file", data: Buffer.from("secret") });
    const look = b.submit({ trajectory: "same", command: ["ls"], action: "x", idempotency_key: "look" });
    expect(await look.ended).toBeUndefined();
    expect(look.events.filter((event) => event.event === "output")).toEqual([]);
    const run = a.submit({ trajectory: "same", command: ["sleep", "72.6"], action: "x", idempotency_key: "look" });
    await run.until("started");
    expect(await b.call("Cancel", { action: "x" })).toEqual({ found: false });
    await b.call("CloseTrajectory", { trajectory: "same" });
    expect(await b.call("GetStatistics", {})).toMatchObject({
      trajectories: 0,
      running: 0,
      started: [{ tenant: "b" }],
    });
    expect(await a.call("GetStatistics", {})).toMatchObject({
      trajectories: 1,
      running: 1,
      started: [{ tenant: "a" }],
    });
    expect((await a.call("ReadFile", { trajectory: "same", path: "file" })).data).toEqual(Buffer.from("secret"));
    await a.call("CloseTrajectory", { trajectory: "same" });
    expect(await run.ended).toMatchObject({ code: grpc.status.CANCELLED });
  });

  test("a command whose cost names no cores is granted one, as every command runs on cores", async () => {
    const { server } = await serve({ commandResources: ["cpu"] });
    const { call, submit } = connect(server.port);
    const { trajectory } = await call("OpenTrajectory", {});
    for (const cost of [{}, { search: { fixed: 1 } }, { cpu: { fixed: 0 } }, { cpu: { fixed: 0.5 } }]) {
      const run = submit({ trajectory, command: ["true"], cost });
      expect(await run.ended).toBeUndefined();
      expect(run.events.find(({ event }) => event === "started")!.started).toMatchObject({
        cores: [0],
        allocation: { cpu: 1 },
      });
    }
  });

  const openssl = ((): boolean => {
    try {
      execFileSync("openssl", ["version"], { stdio: "ignore" });
      return true;
    } catch {
      return false;
    }
  })();
  test.skipIf(!openssl)("serves over TLS, and not without it (needs openssl)", async () => {
    const folder = mkdtempSync(join(tmpdir(), "treadle-tls-"));
    cleanups.push(() => rmSync(folder, { recursive: true }));
    execFileSync(
      "openssl",
      [
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=DNS:localhost",
        "-keyout",
        join(folder, "key"),
        "-out",
        join(folder, "cert"),
      ],
      { stdio: "ignore" },
    );
    const certificate = readFileSync(join(folder, "cert"));
    const { server } = await serve({ tls: { key: readFileSync(join(folder, "key")), certificate } });
    expect(
      await connect(server.port, grpc.credentials.createSsl(certificate)).call("OpenTrajectory", { trajectory: "t" }),
    ).toMatchObject({ trajectory: "t" });
    await expect(connect(server.port).call("OpenTrajectory", {})).rejects.toMatchObject({
      code: grpc.status.UNAVAILABLE,
    });
  });

  test("GS3 closing ends what runs and every trajectory", async () => {
    const { server } = await serve();
    const { call, submit } = connect(server.port);
    const { trajectory } = await call("OpenTrajectory", {});
    const run = submit({ trajectory, command: ["sleep", "73.5"] });
    await run.until("started");
    await server.close();
    expect((await run.ended)?.code).toBe(grpc.status.CANCELLED);
  });
});
