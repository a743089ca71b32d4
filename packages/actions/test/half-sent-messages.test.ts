import { type ClientHttp2Session, type ClientHttp2Stream, connect } from "node:http2";
import { setTimeout as delay } from "node:timers/promises";
import fc from "fast-check";
import { afterEach, expect, test } from "vitest";
import { Arrivals } from "../src/grpc/arrivals.ts";
import { serveHost } from "../src/hosts/host-server.ts";
import { ActionPool, CommandActions, CpuManager, ProcessDriver } from "../src/index.ts";
import { serveActions } from "../src/serve.ts";
import { connectActions } from "./support/client.ts";
import { eventually } from "./support/processes.ts";

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

test("HM1 of a tenant so many come at once, each is read once, in order, and nobody waits where there is room", () => {
  let waited = 0;
  fc.assert(
    fc.property(
      fc.array(fc.record({ isNew: fc.boolean(), tenant: fc.constantFrom("a", "a", "b"), which: fc.nat(20) }), {
        maxLength: 60,
      }),
      (events) => {
        const most = 2;
        const arrivals = new Arrivals(most);
        const read: number[] = [];
        let calls: { id: number; tenant: string; leave: () => void }[] = [];
        for (const [id, { isNew, tenant, which }] of events.entries()) {
          if (isNew) calls.push({ id, tenant, leave: arrivals.enter(tenant, () => read.push(id)) });
          else {
            const gone = calls[which % Math.max(1, calls.length)];
            gone?.leave();
            gone?.leave();
            calls = calls.filter((call) => call !== gone);
          }
          for (const name of ["a", "b"]) {
            const own = calls.filter((call) => call.tenant === name);
            const coming = own.filter((call) => read.includes(call.id));
            expect(coming.length).toBe(Math.min(most, own.length));
            expect(own.slice(0, coming.length)).toEqual(coming);
            if (own.length > coming.length) waited++;
          }
        }
        expect(new Set(read).size).toBe(read.length);
      },
    ),
    { numRuns: 500 },
  );
  expect(waited).toBeGreaterThan(100);
});

type Options = Partial<Parameters<typeof serveActions>[1]>;

async function serve(options: Options = {}) {
  const cpu = new CpuManager({
    nodes: [{ id: "local", numa: [[0]], memoryBytes: 2 ** 30 }],
    trajectoryMemoryBytes: 2 ** 20,
  });
  const actions = new CommandActions(new ActionPool({ managers: [cpu] }), new ProcessDriver());
  const tokens = new Map([
    ["secret-a", "a"],
    ["secret-b", "b"],
  ]);
  const server = await serveActions(actions, { address: "127.0.0.1:0", tokens, ...options });
  cleanups.push(async () => {
    await server.close();
    await actions.close();
  });
  return server.port;
}

const length = 8 * 2 ** 20;
const header = Buffer.alloc(5);
header.writeUInt32BE(length, 1);
const half = Buffer.concat([header, Buffer.alloc(length / 2)]);
const empty = Buffer.alloc(5);

/** A call of tenant `a` that sends `bytes`, and does not end what it sends. */
function leaveHalf(session: ClientHttp2Session, bytes: Buffer, service = "actions.v1.Actions"): ClientHttp2Stream {
  const stream = session.request({
    ":method": "POST",
    ":path": `/treadle.${service}/WriteFile`,
    "content-type": "application/grpc",
    te: "trailers",
    authorization: "Bearer secret-a",
  });
  stream.on("error", () => {});
  stream.write(bytes);
  return stream;
}

function openSession(port: number): ClientHttp2Session {
  const session = connect(`http://127.0.0.1:${port}`);
  session.on("error", () => {});
  cleanups.push(() => session.destroy());
  return session;
}

function clientOf(port: number, token: string) {
  const client = connectActions(`127.0.0.1:${port}`, undefined, token);
  cleanups.push(client.close);
  return client;
}

test.each([
  ["the first", half],
  ["one more than it may be", Buffer.concat([empty, half])],
])(
  "HM1 messages that a tenant's clients leave half sent, each %s of its call, are few in memory, and keep no other tenant waiting",
  async (_, bytes) => {
    const port = await serve();
    const session = openSession(port);
    const calls = Array.from({ length: 80 }, () => leaveHalf(session, bytes));
    // What the server has not taken waits at its client, or its call is refused.
    const taken = () => calls.filter(({ closed, writableLength }) => !closed && writableLength === 0).length;
    const settled = () => taken() === 32 || calls.every(({ closed }) => closed);
    expect(await eventually(settled)).toBe(true);
    const [a, b] = [clientOf(port, "secret-a"), clientOf(port, "secret-b")];
    const opening = a.call("OpenTrajectory", { trajectory: "t" });
    expect(await b.call("OpenTrajectory", { trajectory: "t" })).toMatchObject({ trajectory: "t" });
    expect(taken()).toBeLessThanOrEqual(32);
    for (const stream of calls) stream.close();
    await opening;
    const many = Array.from({ length: 200 }, (_, n) => a.call("OpenTrajectory", { trajectory: `t${n}` }));
    expect((await Promise.all(many)).length).toBe(200);
  },
);

test("HM1 what a call asks for has so long to come, and then gives its place to others", async () => {
  const port = await serve({ stallMs: 300 });
  const session = openSession(port);
  const calls = Array.from({ length: 80 }, () => leaveHalf(session, half));
  expect(await clientOf(port, "secret-a").call("OpenTrajectory", { trajectory: "t" })).toMatchObject({
    trajectory: "t",
  });
  expect(await eventually(() => calls.every(({ closed }) => closed))).toBe(true);
});

test("HM1 a host reads few at once of messages that its service leaves half sent, none of them for long", async () => {
  const halvesTo = async (stallMs: number | undefined) => {
    const shape = { numa: [[0]], memoryBytes: 2 ** 30 };
    const own = { driver: new ProcessDriver(), shape, token: "secret-a", stallMs };
    const host = await serveHost({ address: "127.0.0.1:0", ...own });
    cleanups.push(host.close);
    const session = openSession(host.port);
    return Array.from({ length: 80 }, () => leaveHalf(session, half, "hosts.v1.SandboxHost"));
  };
  const calls = await halvesTo(undefined);
  const taken = () => calls.filter(({ closed, writableLength }) => !closed && writableLength === 0).length;
  expect(await eventually(() => taken() >= 32)).toBe(true);
  await delay(300);
  expect(taken()).toBe(32);
  const late = await halvesTo(300);
  expect(await eventually(() => late.every(({ closed }) => closed))).toBe(true);
});

test("CT2 connections whose calls are half sent are idle: they give way", async () => {
  const port = await serve({ connections: 3 });
  const sessions = [1, 2, 3].map(() => openSession(port));
  const calls = sessions.map((session) => leaveHalf(session, half));
  expect(await eventually(() => calls.every(({ writableLength }) => writableLength === 0))).toBe(true);
  expect(await clientOf(port, "secret-b").call("OpenTrajectory", { trajectory: "t" })).toMatchObject({
    trajectory: "t",
  });
  expect(await eventually(() => sessions[0]!.destroyed)).toBe(true);
  expect(sessions.slice(1).map(({ destroyed }) => destroyed)).toEqual([false, false]);
});
