import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { type AddressInfo, connect as connectSocket, createServer, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import * as grpc from "@grpc/grpc-js";
import { systemClock } from "@treadle/transport";
import fc from "fast-check";
import { afterEach, describe, expect, test } from "vitest";
import { ActionLog, type FollowingCall } from "../src/grpc/action-log.ts";
import { DiskBudget } from "../src/grpc/output-spool.ts";
import { ActionPool, CommandActions, CpuManager, ProcessDriver } from "../src/index.ts";
import { type ActionServerOptions, serveActions } from "../src/serve.ts";
import { connectActions } from "./support/client.ts";

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

async function serve(limits: ActionServerOptions["limits"] = {}) {
  const cpu = new CpuManager({
    nodes: [{ id: "local", numa: [[0]], memoryBytes: 2 ** 30 }],
    trajectoryMemoryBytes: 2 ** 20,
  });
  const pool = new ActionPool({ managers: [cpu], clock: systemClock });
  const actions = new CommandActions(pool, new ProcessDriver());
  const server = await serveActions(actions, { address: "127.0.0.1:0", limits });
  const folder = mkdtempSync(join(tmpdir(), "treadle-repeats-"));
  cleanups.push(async () => {
    await server.close();
    await actions.close();
    rmSync(folder, { recursive: true });
  });
  return { server, pool, file: (name: string) => join(folder, name) };
}

const connect = (port: number) => {
  const client = connectActions(`127.0.0.1:${port}`);
  cleanups.push(client.close);
  return client;
};

/** A way to the service that can be cut without a word to either side's program. */
async function relayTo(port: number): Promise<{ port: number; cut: () => void }> {
  const sockets = new Set<Socket>();
  const relay: Server = createServer((near) => {
    const far = connectSocket(port, "127.0.0.1");
    for (const [from, to] of [
      [near, far],
      [far, near],
    ] as const) {
      sockets.add(from);
      from.pipe(to);
      from.on("error", () => {});
      from.on("close", () => to.destroy());
    }
  });
  await new Promise<void>((resolve) => relay.listen(0, "127.0.0.1", resolve));
  const cut = (): void => {
    for (const socket of sockets) socket.destroy();
  };
  cleanups.push(() => {
    cut();
    relay.close();
  });
  return { port: (relay.address() as AddressInfo).port, cut };
}

const settled = async (condition: () => boolean): Promise<void> => {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 10));
};
const printed = (run: { events: { output?: { stdout: Buffer } }[] }): string =>
  Buffer.concat(run.events.flatMap(({ output }) => (output === undefined ? [] : [output.stdout]))).toString();

describe("an action with an idempotency key", () => {
  test("IK1 IK2 a submit that is repeated after its connection was cut runs once, and tells all of it", async () => {
    const { server, file } = await serve();
    const relay = await relayTo(server.port);
    const [lost, direct] = [connect(relay.port), connect(server.port)];
    const { trajectory, repeat_seconds: repeatSeconds } = await lost.call("OpenTrajectory", {});
    expect(repeatSeconds).toBe(60);
    const script = `echo once >> ${file("runs")}; echo before; until [ -e ${file("go")} ]; do sleep 0.02; done; echo after; exit 3`;
    const request = {
      trajectory,
      command: ["sh", "-c", script],
      environment: { A: "1", B: "2" },
      idempotency_key: "step 1",
    };
    const first = lost.submit(request);
    await first.until("output");
    relay.cut();
    expect(await first.ended).toMatchObject({ code: grpc.status.UNAVAILABLE });
    const second = direct.submit({ ...request, environment: { B: "2", A: "1" } });
    await second.until("output");
    writeFileSync(file("go"), "");
    expect(await second.ended).toBeUndefined();
    const third = direct.submit(request);
    expect(await third.ended).toBeUndefined();
    for (const run of [second, third]) {
      expect(printed(run)).toBe("before\nafter\n");
      expect(run.events[0]!.queued).toEqual(first.events[0]!.queued);
      expect(run.events.at(-1)!.finished).toMatchObject({ status: "exited", exit_code: 3 });
    }
    expect(third.events).toEqual(second.events);
    expect(readFileSync(file("runs"), "utf8")).toBe("once\n");
  });

  test("IK1 another request with the key is refused, and so is a repeat whose output had no room to be kept", async () => {
    const { server, file } = await serve({ unreadBytes: 40_000 });
    const { call, submit } = connect(server.port);
    const { trajectory } = await call("OpenTrajectory", {});
    const print = (name: string) => ({
      trajectory,
      command: ["sh", "-c", `echo ${name} >> ${file("runs")}; head -c 30000 /dev/zero | tr '\\0' ${name}`],
      idempotency_key: name,
    });
    const first = submit(print("a"));
    expect(await first.ended).toBeUndefined();
    expect(printed(first)).toBe("a".repeat(30_000));
    expect(await submit({ ...print("a"), priority: 1 }).ended).toMatchObject({
      code: grpc.status.ALREADY_EXISTS,
      details: expect.stringContaining("'a' was given with another request"),
    });
    const second = submit(print("b"));
    expect(await second.ended).toBeUndefined();
    expect(printed(second)).toBe("b".repeat(30_000));
    expect(server.unreadBytes("default")).toBe(30_000);
    expect(await submit(print("a")).ended).toMatchObject({
      code: grpc.status.ABORTED,
      details: expect.stringContaining("raise limits.unreadMib"),
    });
    expect(readFileSync(file("runs"), "utf8")).toBe("a\nb\n");
  });

  test("IK1 a refused submit is refused again when it is repeated, and the key is free after its time", async () => {
    const { server, file } = await serve({ repeatMs: 50 });
    const { call, submit } = connect(server.port);
    const { trajectory } = await call("OpenTrajectory", {});
    const broken = submit({ trajectory, command: ["true"], cost: { tpu: { fixed: 1 } }, idempotency_key: "k" });
    expect(await broken.ended).toMatchObject({ code: grpc.status.INVALID_ARGUMENT });
    const request = {
      trajectory,
      command: ["sh", "-c", `echo once >> ${file("runs")}; echo yes`],
      idempotency_key: "k",
    };
    expect(await submit(request).ended).toBeUndefined();
    await settled(() => server.unreadBytes("default") === 0);
    expect(await submit(request).ended).toBeUndefined();
    expect(readFileSync(file("runs"), "utf8")).toBe("once\nonce\n");
  });

  test("GS2 IK3 one whose call nobody repeats is cancelled", async () => {
    const { server, pool } = await serve({ repeatMs: 50 });
    const { call, submit } = connect(server.port);
    const { trajectory } = await call("OpenTrajectory", {});
    const left = submit({ trajectory, command: ["sleep", "72.75"], idempotency_key: "k" });
    await left.until("started");
    left.stream.cancel();
    await left.ended;
    await settled(() => pool.numRunning === 0);
    expect(await call("GetStatistics", {})).toMatchObject({ kinds: { tool: { cancelled: 1 } } });
  });

  test("opening a trajectory again with the same key answers the same, with another it is refused", async () => {
    const { server } = await serve();
    const { call } = connect(server.port);
    const reply = await call("OpenTrajectory", { idempotency_key: "k" });
    expect(await call("OpenTrajectory", { idempotency_key: "k" })).toEqual(reply);
    const { trajectory } = reply;
    await expect(call("OpenTrajectory", { trajectory, idempotency_key: "other" })).rejects.toThrow(/open already/);
    await expect(call("OpenTrajectory", { trajectory })).rejects.toThrow(/open already/);
  });
});

test("in the command of an action with a key, {parallel} is what it was granted", async () => {
  const { server } = await serve();
  const { call, submit } = connect(server.port);
  const { trajectory } = await call("OpenTrajectory", {});
  const cost = { cpu: { range: { min: 1, max: 8 } } };
  const elastic = submit({ trajectory, cost, key: "cpu", command: ["echo", "-n", "x{parallel}"] });
  expect(await elastic.ended).toBeUndefined();
  const fixed = submit({ trajectory, command: ["echo", "-n", "{parallel}"] });
  expect(await fixed.ended).toBeUndefined();
  expect([printed(elastic), printed(fixed)]).toEqual(["x1", "{parallel}"]);
});

const step = fc.oneof(
  { weight: 4, arbitrary: fc.record({ give: fc.uint8Array({ maxLength: 9000 }) }) },
  { weight: 1, arbitrary: fc.record({ tell: fc.integer() }) },
  { weight: 2, arbitrary: fc.record({ follow: fc.constant(true) }) },
  { weight: 2, arbitrary: fc.record({ drain: fc.nat(3), room: fc.integer({ min: 1, max: 4 }) }) },
);

test("IK2 whoever follows an action, and when, is given the same events in order, however slowly it reads", () => {
  fc.assert(
    fc.property(fc.array(step, { maxLength: 40 }), (steps) => {
      const budget = new DiskBudget(2 ** 20);
      const log = new ActionLog(budget);
      const told: string[] = [];
      const calls: { events: string[]; room: number; hasEnded: boolean; drain: () => void }[] = [];
      const follow = (): void => {
        const one = { events: [] as string[], room: 1, hasEnded: false, drain: () => {} };
        calls.push(one);
        const call: FollowingCall = {
          write(event) {
            one.events.push(JSON.stringify(event));
            return --one.room > 0;
          },
          end: () => {
            one.hasEnded = true;
          },
          on: (_, listener) => {
            one.drain = listener;
          },
          emit: () => {},
        };
        log.follow(call);
      };
      for (const one of steps) {
        if ("follow" in one) follow();
        else if ("tell" in one) {
          log.tell({ said: one.tell });
          told.push(JSON.stringify({ said: one.tell }));
        } else if ("give" in one) {
          expect(log.give("stdout", Buffer.from(one.give))).toBe(true);
          told.push(JSON.stringify({ output: { stdout: Buffer.from(one.give) } }));
        } else {
          const call = calls[one.drain];
          if (call === undefined || call.room > 0) continue;
          call.room = one.room;
          call.drain();
        }
      }
      log.end();
      follow();
      for (const call of calls) {
        while (!call.hasEnded) {
          call.room = 5;
          call.drain();
        }
        expect(call.events).toEqual(told);
      }
      expect(budget.usedBytes).toBe(log.keptBytes);
      log.forget();
      expect(budget.usedBytes).toBe(0);
    }),
  );
});
