import { connect } from "node:http2";
import fc from "fast-check";
import { afterEach, expect, test } from "vitest";
import { Arrivals } from "../src/grpc/arrivals.ts";
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

test("HM1 messages that a tenant's clients leave half sent are few in memory, and keep no other tenant waiting", async () => {
  const cpu = new CpuManager({
    nodes: [{ id: "local", numa: [[0]], memoryBytes: 2 ** 30 }],
    trajectoryMemoryBytes: 2 ** 20,
  });
  const actions = new CommandActions(new ActionPool({ managers: [cpu] }), new ProcessDriver());
  const tokens = new Map([
    ["secret-a", "a"],
    ["secret-b", "b"],
  ]);
  const server = await serveActions(actions, { address: "127.0.0.1:0", tokens });
  cleanups.push(async () => {
    await server.close();
    await actions.close();
  });
  const session = connect(`http://127.0.0.1:${server.port}`);
  cleanups.push(() => session.destroy());
  const length = 8 * 2 ** 20;
  const header = Buffer.alloc(5);
  header.writeUInt32BE(length, 1);
  const half = Buffer.concat([header, Buffer.alloc(length / 2)]);
  const calls = Array.from({ length: 80 }, () => {
    const stream = session.request({
      ":method": "POST",
      ":path": "/treadle.actions.v1.Actions/WriteFile",
      "content-type": "application/grpc",
      te: "trailers",
      authorization: "Bearer secret-a",
    });
    stream.on("error", () => {});
    stream.write(half);
    return stream;
  });
  // What the server has not taken waits at its client.
  const taken = () => calls.filter(({ writableLength }) => writableLength === 0).length;
  expect(await eventually(() => taken() === 32)).toBe(true);
  const [a, b] = ["secret-a", "secret-b"].map((token) => {
    const client = connectActions(`127.0.0.1:${server.port}`, undefined, token);
    cleanups.push(client.close);
    return client;
  });
  let isOpen = false;
  const opening = a!.call("OpenTrajectory", { trajectory: "t" }).then(() => {
    isOpen = true;
  });
  expect(await b!.call("OpenTrajectory", { trajectory: "t" })).toMatchObject({ trajectory: "t" });
  expect([isOpen, taken()]).toEqual([false, 32]);
  for (const stream of calls) stream.close();
  await opening;
  const many = Array.from({ length: 200 }, (_, n) => a!.call("OpenTrajectory", { trajectory: `t${n}` }));
  expect((await Promise.all(many)).length).toBe(200);
});
