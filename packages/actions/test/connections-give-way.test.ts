import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer, type IncomingMessage, request } from "node:http";
import { type AddressInfo, connect, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterEach, expect, test } from "vitest";
import { ConnectionTurns } from "../src/grpc/connection-turns.ts";
import { ActionPool, CommandActions, CpuManager, ProcessDriver, QuotaManager } from "../src/index.ts";
import { serveOpenAi } from "../src/openai/openai-endpoint.ts";
import { ActionServiceConfig, openActionService, serveActions } from "../src/serve.ts";
import { connectActions, outputOf } from "./support/client.ts";
import { eventually } from "./support/processes.ts";

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

test("CT1 CT2 the bounds hold, and who gives way is the longest idle of its address or of all, or else the new one", () => {
  const events = fc.array(
    fc.record({
      type: fc.constantFrom(
        "admit" as const,
        "admit" as const,
        "asked" as const,
        "answered" as const,
        "closed" as const,
      ),
      which: fc.nat(15),
      address: fc.constantFrom("a", "a", "b", "c"),
    }),
    { minLength: 30, maxLength: 60 },
  );
  const seen = { own: 0, all: 0, itself: 0 };
  fc.assert(
    fc.property(events, (drawn) => {
      const turns = new ConnectionTurns<number>(4, () => 2);
      let open: { id: number; address: string; numAsked: number; idleSince: number }[] = [];
      let next = 0;
      for (const [now, { type, which, address }] of drawn.entries()) {
        const known = open[which % Math.max(1, open.length)];
        const id = known?.id ?? -1;
        if (type === "admit") {
          const newest = next++;
          const isCrowd = open.filter((one) => one.address === address).length >= 2;
          const isFull = isCrowd || open.length >= 4;
          const [idlest] = open
            .filter((one) => one.numAsked === 0 && (!isCrowd || one.address === address))
            .sort((a, b) => a.idleSince - b.idleSince);
          const expected = isFull ? (idlest?.id ?? newest) : undefined;
          expect(turns.admit(newest, address)).toBe(expected);
          open = [...open, { id: newest, address, numAsked: 0, idleSince: now }].filter((one) => one.id !== expected);
          if (isFull) seen[expected === newest ? "itself" : isCrowd ? "own" : "all"]++;
        } else if (type === "closed") {
          turns.closed(id);
          open = open.filter((one) => one !== known);
        } else if (type === "asked") {
          turns.asked(id);
          if (known) known.numAsked++;
        } else if (known === undefined || known.numAsked > 0) {
          turns.answered(id);
          if (known && --known.numAsked === 0) known.idleSince = now;
        }
        expect(turns.size).toBe(open.length);
      }
    }),
    { numRuns: 1000 },
  );
  for (const times of Object.values(seen)) expect(times).toBeGreaterThan(20);
});

const connections = 16;

/** Connections that say nothing, or what `says`, and how many of them the other side keeps. */
async function flood(place: number | string, count: number, says = "") {
  const sockets: Socket[] = [];
  let numClosed = 0;
  for (let n = 0; n < count; n++) {
    const socket = typeof place === "number" ? connect(place, "127.0.0.1") : connect(place);
    cleanups.push(() => socket.destroy());
    socket.on("error", () => {});
    socket.on("close", () => numClosed++);
    sockets.push(socket);
    await once(socket, "connect");
    if (says !== "") socket.write(says);
    // What ends is noticed only where it is read.
    socket.resume();
  }
  return { numOpen: () => count - numClosed };
}

async function openAi(own: { readonly headersMs?: number; readonly address?: string } = {}) {
  let go = (): void => {};
  const upstream = createServer((request, response) => {
    request.resume().once("end", () => {
      response.write("begun ");
      if (request.headers["x-quick"] !== undefined) response.end("ended");
      else go = () => response.end("ended");
    });
  });
  await new Promise<void>((resolve) => upstream.listen(0, "127.0.0.1", resolve));
  cleanups.push(() => {
    upstream.close();
    upstream.closeAllConnections();
  });
  const pool = new ActionPool({ managers: [new QuotaManager("judge", { concurrency: 64 })] });
  const endpoint = await serveOpenAi({
    address: "127.0.0.1:0",
    connections,
    pool,
    services: {
      served: [{ name: "judge", resource: "judge", dops: [1], serialShare: 0, paths: ["/v1/*"] }],
      urlOf: () => `http://127.0.0.1:${(upstream.address() as AddressInfo).port}`,
      endIfDead: async () => {},
      restoreCosts: () => [],
    },
    requests: 64,
    bodyBytes: 2 ** 20,
    waitingBytes: 2 ** 22,
    ...own,
  });
  cleanups.push(async () => {
    await endpoint.close();
    await pool.close();
  });
  const ask = (headers: Record<string, string> = {}) =>
    fetch(`http://127.0.0.1:${endpoint.port}/v1/completions`, {
      method: "POST",
      headers: { "content-type": "application/json", ...headers },
      body: '{"model":"judge"}',
    });
  return { port: endpoint.port, pool, ask, go: () => go() };
}

test("CT1 CT2 a flood of silent connections keeps no client of OpenAI's API out, and breaks off nothing", async () => {
  const { port, ask, go } = await openAi();
  const running = await ask();
  expect(running.status).toBe(200);
  for (const says of ["", "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"]) {
    const { numOpen } = await flood(port, 10 * connections, says);
    expect(await eventually(() => numOpen() <= connections)).toBe(true);
    const quick = await ask({ "x-quick": "1" });
    expect([quick.status, await quick.text()]).toEqual([200, "begun ended"]);
  }
  go();
  expect(await running.text()).toBe("begun ended");
});

test("CT2 where each connection is being answered the new one gives way", async () => {
  const { ask, pool } = await openAi();
  const held = await Promise.all(Array.from({ length: connections }, () => ask()));
  expect(pool.numRunning).toBe(connections);
  await expect(ask({ "x-quick": "1" })).rejects.toThrow();
  expect(pool.numRunning).toBe(connections);
  await held[0]!.body!.cancel();
  expect(await eventually(async () => (await ask({ "x-quick": "1" }).catch(() => undefined))?.status === 200)).toBe(
    true,
  );
});

test("a connection has so long to say what it wants, from its beginning", async () => {
  const { port, ask } = await openAi({ headersMs: 200 });
  const silent = await flood(port, 3);
  const half = await flood(port, 3, "POST /v1/completions HTTP/1.1\r\n");
  expect(await eventually(() => silent.numOpen() + half.numOpen() === 0)).toBe(true);
  expect((await ask({ "x-quick": "1" })).status).toBe(200);
});

test.each(["tcp", "unix"])(
  "CT1 CT2 the same over gRPC (%s): silent connections give way, and a command that runs goes on",
  async (kind) => {
    const folder = mkdtempSync(join(tmpdir(), "treadle-door-"));
    cleanups.push(() => rmSync(folder, { recursive: true }));
    const path = join(folder, "socket");
    const cpu = new CpuManager({
      nodes: [{ id: "local", numa: [[0, 1]], memoryBytes: 2 ** 30 }],
      trajectoryMemoryBytes: 2 ** 20,
    });
    const actions = new CommandActions(new ActionPool({ managers: [cpu] }), new ProcessDriver());
    const server = await serveActions(actions, {
      address: kind === "unix" ? `unix:${path}` : "127.0.0.1:0",
      connections,
    });
    const address = kind === "unix" ? `unix:${path}` : `127.0.0.1:${server.port}`;
    cleanups.push(async () => {
      await server.close();
      await actions.close();
    });
    const client = connectActions(address);
    cleanups.push(client.close);
    await client.call("OpenTrajectory", { trajectory: "t" });
    const running = client.submit({
      trajectory: "t",
      command: ["sh", "-c", "until [ -e go ]; do sleep 0.05; done; echo went"],
    });
    await running.until("started");
    const { numOpen } = await flood(kind === "unix" ? path : server.port, 10 * connections);
    expect(await eventually(() => numOpen() <= connections)).toBe(true);
    const other = connectActions(address);
    cleanups.push(other.close);
    await other.call("WriteFile", { trajectory: "t", path: "go", data: Buffer.from("") });
    expect(await running.ended).toBeUndefined();
    expect(outputOf(running)).toBe("went\n");
  },
);

test("CT2 of OpenAI's API at a path, too: what is being answered goes on, whatever else connects", async () => {
  const folder = mkdtempSync(join(tmpdir(), "treadle-door-"));
  cleanups.push(() => rmSync(folder, { recursive: true }));
  const path = join(folder, "socket");
  const { go } = await openAi({ address: `unix:${path}` });
  const headers = { "content-type": "application/json" };
  const running = request({ socketPath: path, path: "/v1/completions", method: "POST", headers });
  running.end('{"model":"judge"}');
  const [answer] = (await once(running, "response")) as [IncomingMessage];
  const { numOpen } = await flood(path, 10 * connections);
  expect(await eventually(() => numOpen() <= connections)).toBe(true);
  go();
  let text = "";
  for await (const piece of answer) text += piece;
  expect(text).toBe("begun ended");
});

test("CT1 CT2 a service gives `connections` of its configuration to each of its doors", async () => {
  const config = ActionServiceConfig.parse({
    listen: "127.0.0.1:0",
    drivers: ["process"],
    connections: 2,
    resources: { api: { type: "quota", concurrency: 1 } },
    openai: {
      listen: "127.0.0.1:0",
      upstreams: [{ url: "http://127.0.0.1:1/v1", quota: "api", models: { judge: "judge" } }],
    },
  });
  const service = await openActionService(config, ".");
  cleanups.push(() => service.close());
  for (const url of [`http://${service.address}`, service.openAiUrl!]) {
    const closed: number[] = [];
    for (let n = 0; n < 3; n++) {
      const socket = connect(Number(new URL(url).port), "127.0.0.1");
      cleanups.push(() => socket.destroy());
      socket.on("error", () => {}).on("close", () => closed.push(n));
      await once(socket, "connect");
      socket.resume();
    }
    expect([url, await eventually(() => closed.length > 0), closed]).toEqual([url, true, [0]]);
  }
});
