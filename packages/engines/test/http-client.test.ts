import { createServer, type Server } from "node:http";
import type { AddressInfo, Socket } from "node:net";
import { ManualClock } from "@treadle/contracts/testing";
import { systemClock } from "@treadle/transport";
import { afterEach, expect, test } from "vitest";
import { ConnectionLost, HttpClient } from "../src/server/http-client.ts";

const servers: Server[] = [];
afterEach(async () => {
  for (const server of servers.splice(0)) {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  }
});

async function listen(
  answer: Parameters<typeof createServer>[1],
): Promise<{ readonly url: string; readonly sockets: Socket[] }> {
  const server = createServer(answer);
  server.keepAliveTimeout = 0;
  const sockets: Socket[] = [];
  server.on("connection", (socket) => sockets.push(socket));
  servers.push(server);
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, sockets };
}

const timeoutMs = 60_000;

test("calls share a connection, which the client lets go of by itself before a server would", async () => {
  const { url, sockets } = await listen((_, response) => void response.end("{}"));
  const client = new HttpClient(url, undefined, timeoutMs, systemClock);
  const numCalls = 20;
  for (let call = 0; call < numCalls; call++) expect(await client.json("GET", "/")).toEqual({});
  // A test that stands still for seconds loses its connection, as it should.
  expect(sockets.length).toBeLessThan(numCalls / 2);
  const last = sockets.at(-1)!;
  if (!last.destroyed) await new Promise((resolve) => last.once("close", resolve));
  const numBefore = sockets.length;
  expect(await client.json("GET", "/")).toEqual({});
  expect(sockets).toHaveLength(numBefore + 1);
  client.close();
});

test("an answer that takes longer than a connection may idle arrives", async () => {
  const { url } = await listen((_, response) => void setTimeout(() => response.end('"late"'), 5_000));
  const client = new HttpClient(url, undefined, timeoutMs, systemClock);
  expect(await client.json("POST", "/", { body: {} })).toBe("late");
  client.close();
});

test("the key goes with each call but those that are to have none", async () => {
  const { url } = await listen(
    (request, response) => void response.end(JSON.stringify(request.headers.authorization ?? "")),
  );
  const client = new HttpClient(url, "secret", timeoutMs, systemClock);
  expect(await client.json("GET", "/")).toBe("Bearer secret");
  expect((await client.call("GET", "/", { isAnonymous: true })).text).toBe('""');
  client.close();
});

test.each([
  [400, "engine.invalid-request"],
  [401, "config.invalid"],
  [404, "config.invalid"],
  [409, "service.failed"],
  [500, "service.failed"],
])("status %i is told as %s, with what the server said, and not tried again", async (status, code) => {
  let calls = 0;
  const { url } = await listen((_, response) => {
    calls++;
    response.writeHead(status).end("what the server said");
  });
  const client = new HttpClient(url, undefined, timeoutMs, systemClock);
  const told = { code, message: expect.stringContaining("what the server said") };
  await expect(client.json("POST", "/x", { body: {} })).rejects.toMatchObject(told);
  expect(calls).toBe(1);
  client.close();
});

test("an answer that ends before it is whole is lost, a call without any ends at its deadline, and one that is given up at once", async () => {
  const half = await listen((_, response) => {
    response.writeHead(200, { "content-length": 10 });
    response.write("half", () => response.destroy());
  });
  const client = new HttpClient(half.url, undefined, timeoutMs, systemClock);
  await expect(client.json("GET", "/")).rejects.toBeInstanceOf(ConnectionLost);
  const silent = await listen(() => {});
  const clock = new ManualClock();
  const waiting = new HttpClient(silent.url, undefined, timeoutMs, clock);
  const late = waiting.json("GET", "/", { timeoutMs: 200 });
  void clock.advance(200);
  await expect(late).rejects.toMatchObject({
    code: "service.failed",
    message: expect.stringContaining("within 200 ms"),
  });
  await expect(late).rejects.not.toBeInstanceOf(ConnectionLost);
  const controller = new AbortController();
  const givenUp = waiting.json("GET", "/", { signal: controller.signal });
  controller.abort();
  await expect(givenUp).rejects.toBeInstanceOf(ConnectionLost);
  client.close();
  waiting.close();
});
