/** The way out of a sandbox, over real sockets on loopback; names are resolved by hand. */
import { once } from "node:events";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { createServer as createHttp, type Server as HttpServer, type IncomingMessage } from "node:http";
import { type AddressInfo, connect, createServer, type Server, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import fc from "fast-check";
import { afterEach, describe, expect, test, vi } from "vitest";
import { AllowList } from "../../src/network/allow-list.ts";
import { type EgressLimits, EgressProxy } from "../../src/network/egress-proxy.ts";

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

/** Its port. */
async function listen(server: Server): Promise<number> {
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const open = new Set<Socket>();
  server.on("connection", (socket: Socket) => {
    open.add(socket);
    socket.on("error", () => {});
    socket.once("close", () => open.delete(socket));
  });
  cleanups.push(() => {
    for (const socket of open) socket.destroy();
    server.close();
  });
  return (server.address() as AddressInfo).port;
}

const web = (answer: (request: IncomingMessage) => string): HttpServer =>
  createHttp((request, response) => {
    request.resume();
    response.end(answer(request));
  });

type Given = {
  readonly lookup?: (name: string) => Promise<readonly string[]>;
  readonly isOwn?: (address: unknown) => boolean;
  readonly limits?: Partial<EgressLimits>;
  readonly path?: boolean;
};

async function serve(entries: readonly string[], { lookup, limits, path, isOwn }: Given = {}) {
  const looked: string[] = [];
  const proxy = new EgressProxy({
    allow: [new AllowList(entries)],
    lookup: async (name) => {
      looked.push(name);
      return lookup === undefined ? ["127.0.0.1"] : lookup(name);
    },
    limits,
    isOwn: isOwn ?? (() => false),
  });
  const server = createServer();
  cleanups.push(() => proxy.close());
  let dial = (): Socket => connect(port, "127.0.0.1");
  let port = 0;
  if (path) {
    const folder = mkdtempSync(join(tmpdir(), "treadle-egress-"));
    cleanups.push(() => rmSync(folder, { recursive: true, force: true }));
    server.listen(join(folder, "socket"));
    await once(server, "listening");
    dial = () => connect(join(folder, "socket"));
  } else port = await listen(server);
  proxy.serve(server);
  const open = (): Socket => {
    const socket = dial();
    socket.on("error", () => {});
    cleanups.push(() => socket.destroy());
    return socket;
  };
  return { proxy, looked, open };
}

async function read(socket: Socket): Promise<string> {
  const chunks: Buffer[] = [];
  socket.on("data", (chunk: Buffer) => chunks.push(chunk));
  if (!socket.readableEnded && !socket.destroyed)
    await new Promise((resolve) => socket.once("end", resolve).once("close", resolve));
  return Buffer.concat(chunks).toString("latin1");
}

const ask = (socket: Socket, text: string): Promise<string> => {
  socket.write(text);
  return read(socket);
};

/** A tunnel, open, of which nothing was read but the proxy's answer. */
async function tunnelTo(open: () => Socket, target: string): Promise<Socket> {
  const socket = open();
  socket.write(`CONNECT ${target} HTTP/1.1\r\nHost: ${target}\r\n\r\n`);
  let answer = "";
  while (!answer.endsWith("\r\n\r\n")) {
    const part = socket.read(1) as Buffer | null;
    if (part === null) await Promise.race([once(socket, "readable"), once(socket, "close")]);
    else answer += part.toString("latin1");
    if (socket.destroyed) break;
  }
  expect(answer).toMatch(/^HTTP\/1\.1 200 /);
  return socket;
}

const closed = (socket: Socket): Promise<unknown> =>
  socket.destroyed ? Promise.resolve() : new Promise((resolve) => socket.once("close", resolve).resume());

describe("a request", () => {
  test.each([false, true])(
    "to an allowed host is forwarded with the URL's Host and without what is the connection's (path: %s)",
    async (path) => {
      const seen: IncomingMessage[] = [];
      const origin = await listen(web((request) => `got ${seen.push(request)}`));
      const { open, looked } = await serve([`a.test:${origin}`, `127.0.0.1:${origin}`], { path });
      const answer = await ask(
        open(),
        `POST http://A.test:${origin}/x/../y?q HTTP/1.1\r\nHost: secret.test\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nX-End: 2\r\nUpgrade: websocket\r\nProxy-Authorization: Basic eDp5\r\nContent-Length: 2\r\n\r\nok`,
      );
      expect(answer).toMatch(/^HTTP\/1\.1 200 OK\r\n/);
      expect(answer).toMatch(/got 1$/);
      expect(looked).toEqual(["a.test"]);
      expect(seen[0]?.url).toBe("/x/../y?q");
      expect(seen[0]?.headers).toEqual({
        host: `a.test:${origin}`,
        connection: "close",
        "x-end": "2",
        "content-length": "2",
      });
    },
  );

  test("EPX2 on a kept connection is checked as the first was", async () => {
    const origin = await listen(web((request) => `for ${request.headers.host}`));
    const { open, looked } = await serve([`*.test:${origin}`, `127.0.0.1:${origin}`]);
    const socket = open();
    const text = read(socket);
    let answers = 0;
    for (const host of ["a.test", "b.test", "evil.net"]) {
      const answered = new Promise((resolve) => socket.once("data", resolve));
      socket.write(`GET http://${host}:${origin}/ HTTP/1.1\r\nHost: a.test\r\n\r\n`);
      await answered;
      answers++;
      await delay(20);
    }
    const all = await text;
    expect(answers).toBe(3);
    expect(all).toContain(`for a.test:${origin}`);
    expect(all).toContain(`for b.test:${origin}`);
    expect(all).toContain(`HTTP/1.1 403 'evil.net:${origin}' is not allowed by this server's network.proxy\r\n`);
    expect(looked).toEqual(["a.test", "b.test"]);
  });

  test("EPX3 that does not wait for the answer before it ends the connection", async () => {
    let requests = 0;
    const origin = await listen(createHttp(() => void requests++));
    const { open } = await serve([`127.0.0.1:${origin}`]);
    const socket = open();
    await ask(socket, `GET http://127.0.0.1:${origin}/ HTTP/1.1\r\nHost: x\r\n\r\n`.repeat(500));
    await closed(socket);
    expect(requests).toBeLessThanOrEqual(1);
  });

  test("with a chunked body, and one that is answered in chunks, arrive whole", async () => {
    const origin = await listen(createHttp((request, response) => void request.pipe(response)));
    const { open } = await serve([`127.0.0.1:${origin}`]);
    const answer = await ask(
      open(),
      `POST http://127.0.0.1:${origin} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3\r\nyou\r\n0\r\n\r\n`,
    );
    expect(answer.replace(/\r\n[0-9a-f]+\r\n/g, "")).toContain("hello");
    expect(answer).toMatch(/0\r\n\r\n$/);
  });

  test.each(["no answer", "half an answer"])(
    "whose client dies at %s is not kept at its origin (EPX4)",
    async (when) => {
      const far: Socket[] = [];
      const origin = await listen(
        createServer({ allowHalfOpen: true }, (socket) => {
          far.push(socket.resume());
          socket.once("data", () => {
            if (when === "half an answer") socket.write("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf");
          });
        }),
      );
      const { open, proxy } = await serve([`127.0.0.1:${origin}`]);
      const socket = open();
      socket.write(`GET http://127.0.0.1:${origin}/ HTTP/1.1\r\nHost: x\r\n\r\n`);
      await vi.waitFor(() => expect(far[0]?.bytesRead).toBeGreaterThan(0), 30_000);
      if (when === "half an answer") await once(socket, "data");
      socket.destroy();
      await vi.waitFor(() => expect(far[0]?.readableEnded || far[0]?.destroyed).toBe(true), 30_000);
      await proxy.close();
    },
  );

  test.each(["Content-Length: 3000000", "Transfer-Encoding: chunked"])(
    "that is answered before all of it has come, and then reset, has its answer, and the next request is taken: %s",
    async (framing) => {
      const part = framing.includes("chunked")
        ? `${(50_000).toString(16)}\r\n${"x".repeat(50_000)}\r\n`
        : "x".repeat(50_000);
      let sendMore = (): void => {};
      let asked = 0;
      const origin = await listen(
        createServer((socket) =>
          socket.once("data", () => {
            if (asked++ > 0) return void socket.end("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnext");
            // At once: what comes next is read first, and is written to a connection that is reset.
            sendMore();
            socket.write("HTTP/1.1 413 Content Too Large\r\nContent-Length: 9\r\n\r\ntoo large");
            socket.resetAndDestroy();
          }),
        ),
      );
      const { open } = await serve([`127.0.0.1:${origin}`]);
      const socket = open();
      sendMore = () => void socket.write(part);
      const answers = read(socket);
      const to = `POST http://127.0.0.1:${origin}/ HTTP/1.1\r\nHost: x\r\n`;
      socket.write(`${to}${framing}\r\n\r\n${part}`);
      const answered = new Promise((resolve) => socket.once("data", resolve));
      await answered;
      // A client that reads nothing before it has sent all.
      for (let i = 2; i < 60; i++) socket.write(part);
      if (framing.includes("chunked")) socket.write("0\r\n\r\n");
      socket.write(`${to}Connection: close\r\nContent-Length: 0\r\n\r\n`);
      expect(await answers).toMatch(/^HTTP\/1\.1 413 Content Too Large\r\n.*too large(HTTP\/1\.1 200 OK\r\n.*next)$/s);
    },
  );

  test("that is not answered for a while is answered with 504 (EPX3)", async () => {
    const origin = await listen(createServer((socket) => void socket.resume()));
    const { open } = await serve([`127.0.0.1:${origin}`], { limits: { idleMs: 50 } });
    const answer = await ask(open(), `GET http://127.0.0.1:${origin}/ HTTP/1.1\r\nHost: x\r\n\r\n`);
    expect(answer).toMatch(/^HTTP\/1\.1 504 '127\.0\.0\.1:\d+' did not answer within 50 ms/);
  });

  test("of an answer that breaks off is broken off, too (EPX4)", async () => {
    const origin = await listen(
      createServer((socket) => {
        socket.once("data", () =>
          socket.write("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf", () => socket.end()),
        );
      }),
    );
    const { open } = await serve([`127.0.0.1:${origin}`]);
    const socket = open();
    const answer = await ask(socket, `GET http://127.0.0.1:${origin}/ HTTP/1.1\r\nHost: x\r\n\r\n`);
    expect(answer).toMatch(/half$/);
    await closed(socket);
  });

  test.each([
    ["is no HTTP", "SSH-2.0-x\r\n"],
    ["has a header that is too long", `HTTP/1.1 200 OK\r\nx: ${"x".repeat(40_000)}\r\n\r\n`],
    ["has a status that none is", "HTTP/1.1 099 no\r\n\r\n"],
    ["is an upgrade", "HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"],
    ["is empty", ""],
  ])("of which the answer %s is answered with 502", async (_, text) => {
    const origin = await listen(createServer((socket) => void socket.once("data", () => socket.end(text))));
    const { open } = await serve([`127.0.0.1:${origin}`]);
    const answer = await ask(open(), `GET http://127.0.0.1:${origin}/ HTTP/1.1\r\nHost: x\r\n\r\n`);
    expect(answer).toMatch(/^HTTP\/1\.1 502 '127\.0\.0\.1:\d+' (did not answer|answers)/);
  });
});

describe("a host", () => {
  test.each(["CONNECT evil.net:443", "CONNECT 127.1:443", "CONNECT [::ffff:7f00:1]:443", "GET http://0x7f.1:443/"])(
    "that is not allowed is refused with its name and the reason: %s",
    async (line) => {
      const { open, looked } = await serve(["pypi.org"]);
      const answer = await ask(open(), `${line} HTTP/1.1\r\nHost: pypi.org\r\nConnection: close\r\n\r\n`);
      const host = line.includes("evil") ? "evil.net" : "127.0.0.1";
      expect(answer).toMatch(
        new RegExp(`^HTTP/1.1 403 '${host}:443' is not allowed by this server's network.proxy\r\n`),
      );
      expect(answer).toMatch(new RegExp(`\r\n\r\n'${host}:443' is not allowed by this server's network.proxy\n$`));
      expect(looked).toEqual([]);
    },
  );

  test.each([["127.0.0.1"], ["8.8.8.8", "10.0.0.1"], ["::ffff:127.0.0.1"], ["fe80::1%lo"], ["nonsense\r\nX: y"]])(
    "that is allowed and resolves to '%s' is refused",
    async (...addresses) => {
      const { open } = await serve(["pypi.org"], { lookup: async () => addresses });
      const answer = await ask(open(), "CONNECT pypi.org:443 HTTP/1.1\r\nHost: x\r\n\r\n");
      expect(answer).toMatch(/^HTTP\/1\.1 403 'pypi\.org:443' is at '[^\r]*', which is not public and not allowed by /);
      expect(answer).not.toContain("\nX: y");
    },
  );

  test("EPX1 is reached at the address that was checked, though its name resolves to another at once", async () => {
    const good = await listen(createServer((socket) => void socket.end("good")));
    const answers = [["127.0.0.1"], ["127.0.0.2"]];
    const { open, looked } = await serve([`a.test:${good}`, `127.0.0.1:${good}`], {
      lookup: async () => answers.shift() ?? ["127.0.0.2"],
    });
    expect(await read(await tunnelTo(open, `a.test:${good}`))).toBe("good");
    expect(looked).toEqual(["a.test"]);
    const refused = await ask(open(), `CONNECT a.test:${good} HTTP/1.1\r\nHost: x\r\n\r\n`);
    expect(refused).toContain("403 'a.test");
  });

  test("with several addresses is reached at one that answers", async () => {
    const origin = await listen(createServer((socket) => void socket.end("here")));
    const { open } = await serve([`a.test:${origin}`, `127.0.0.0/8:${origin}`, `[::1]:${origin}`], {
      lookup: async () => ["::1", "127.0.0.77", "127.0.0.1"],
    });
    expect(await read(await tunnelTo(open, `a.test:${origin}`))).toBe("here");
  });

  test("that does not exist, refuses or does not answer gives 502 or 504 with the reason", async () => {
    const gone = await listen(createServer());
    const { open } = await serve(["127.0.0.0/8:*", "*.test:*"], {
      lookup: async (name) => {
        if (name === "slow.test") return new Promise(() => {});
        if (name === "empty.test") return [];
        throw Object.assign(new Error("no such name"), { code: "ENOTFOUND" });
      },
      limits: { connectMs: 50 },
    });
    for (const cleanup of cleanups.splice(0, 1)) await cleanup();
    const answerTo = (target: string): Promise<string> => ask(open(), `CONNECT ${target} HTTP/1.1\r\nHost: x\r\n\r\n`);
    expect(await answerTo(`127.0.0.1:${gone}`)).toContain(`502 '127.0.0.1:${gone}' cannot be reached: ECONNREFUSED`);
    expect(await answerTo("none.test:1")).toContain("502 'none.test:1' cannot be found: ENOTFOUND");
    expect(await answerTo("empty.test:1")).toContain("502 'empty.test:1' has no address");
    expect(await answerTo("slow.test:1")).toContain("504 'slow.test:1' did not answer within 50 ms");
    const plain = await ask(open(), "GET http://slow.test:1/ HTTP/1.1\r\nHost: x\r\n\r\n");
    expect(plain).toContain("504 'slow.test:1' did not answer within 50 ms");
  });

  test.each([
    "GET / HTTP/1.1\r\nHost: pypi.org",
    "GET https://pypi.org/ HTTP/1.1\r\nHost: x",
    "GET ftp://pypi.org/ HTTP/1.1\r\nHost: x",
    "GET http://user:secret@pypi.org/ HTTP/1.1\r\nHost: x",
    "GET http://evil.net\\@pypi.org/ HTTP/1.1\r\nHost: x",
    "GET http://pypi.org#.evil.net/ HTTP/1.1\r\nHost: x",
    "GET http:///x HTTP/1.1\r\nHost: x",
    "GET http://pypi.org:0/ HTTP/1.1\r\nHost: x",
    "CONNECT pypi.org HTTP/1.1\r\nHost: x",
    "CONNECT pypi.org: HTTP/1.1\r\nHost: x",
    "CONNECT pypi.org:99999 HTTP/1.1\r\nHost: x",
    "CONNECT http://pypi.org:80/ HTTP/1.1\r\nHost: x",
    "CONNECT [::1 HTTP/1.1\r\nHost: x",
    "GET http://pypi.org/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked",
    "GET http://pypi.org/ HTTP/1.1\r\nbad header",
    "\x16\x03\x01\x02\x00\x01",
  ])("that is asked for as none can be is refused with 400: %j", async (text) => {
    const { open, looked } = await serve(["pypi.org"]);
    expect(await ask(open(), `${text}\r\n\r\n`)).toMatch(/^HTTP\/1\.1 400 /);
    expect(looked).toEqual([]);
  });

  test("EPX3 with headers that are too long gives 431, and with slow ones its connection ends", async () => {
    const { open } = await serve(["pypi.org"], { limits: { headersMs: 50 } });
    expect(await ask(open(), `GET http://pypi.org/ HTTP/1.1\r\nx: ${"x".repeat(40_000)}`)).toMatch(/^HTTP\/1\.1 431 /);
    const slow = open();
    slow.write("GET http://pypi.org/ HT");
    const drip = setInterval(() => slow.write("x"), 5);
    await closed(slow);
    clearInterval(drip);
  });
});

const mebibyte = 2 ** 20;

describe("a tunnel", () => {
  test("passes on what was sent with the request, and the end of either side alone (EPX4)", async () => {
    const origin = await listen(
      createServer({ allowHalfOpen: true }, async (socket) => {
        const text = await read(socket);
        socket.end(`read ${text}`);
      }),
    );
    const { open } = await serve([`127.0.0.1:${origin}`]);
    const socket = open();
    socket.end(`CONNECT 127.0.0.1:${origin} HTTP/1.1\r\nHost: x\r\n\r\nhello`);
    expect(await read(socket)).toMatch(/^HTTP\/1\.1 200 .*\r\n\r\nread hello$/);

    const first = await listen(
      createServer({ allowHalfOpen: true }, (half) => {
        half.end("all I say");
        void read(half).then((text) => received.push(text));
      }),
    );
    const received: string[] = [];
    const other = await serve([`127.0.0.1:${first}`], { path: true });
    const later = await tunnelTo(other.open, `127.0.0.1:${first}`);
    later.allowHalfOpen = true;
    expect(await read(later)).toBe("all I say");
    later.end("still here");
    await vi.waitFor(() => expect(received).toEqual(["still here"]), 30_000);
  });

  test.each(["down", "up"])(
    "EPX3 %sstream holds little of what a slow reader does not take, and loses nothing",
    async (way) => {
      const total = 256 * mebibyte;
      const chunk = Buffer.alloc(mebibyte, 7);
      let sent = 0;
      const send = (socket: Socket): void => {
        while (sent < total) {
          sent += chunk.length;
          if (!socket.write(chunk)) return void socket.once("drain", () => send(socket));
        }
        socket.end();
      };
      const accepted = deferred<Socket>();
      const origin = await listen(createServer({ allowHalfOpen: true, pauseOnConnect: true }, accepted.resolve));
      const { open } = await serve([`127.0.0.1:${origin}`]);
      const socket = await tunnelTo(open, `127.0.0.1:${origin}`);
      const far = await accepted.promise;
      const [source, sink] = way === "down" ? [far, socket] : [socket, far];
      const before = process.memoryUsage().rss;
      send(source);
      let stalledAt = -1;
      while (stalledAt !== sent) {
        stalledAt = sent;
        await delay(200);
      }
      // Buffers of the kernel on both connections, and two of ours.
      expect(sent).toBeLessThan(64 * mebibyte);
      expect(process.memoryUsage().rss - before).toBeLessThan(64 * mebibyte);
      let received = 0;
      sink.on("data", (part: Buffer) => {
        received += part.length;
      });
      sink.resume();
      await once(sink, "end");
      expect(received).toBe(total);
    },
  );

  test("ends when nothing is sent for a while (EPX3)", async () => {
    const gone: Socket[] = [];
    const origin = await listen(createServer((socket) => void socket.once("close", () => gone.push(socket)).resume()));
    const { open } = await serve([`127.0.0.1:${origin}`], { limits: { idleMs: 50 } });
    await closed(await tunnelTo(open, `127.0.0.1:${origin}`));
    await vi.waitFor(() => expect(gone.length).toBe(1), 30_000);
  });

  test("EPX4 whichever side dies, at whatever moment, the other ends, and nothing is left", async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.constantFrom("client", "origin"),
        fc.constantFrom("destroy", "reset"),
        fc.constantFrom("asked", "looked up", "open", "sending"),
        fc.nat(3),
        async (side, how, when, ms) => {
          const far: Socket[] = [];
          const kill = (socket: Socket | undefined): unknown =>
            how === "reset" && socket?.remoteAddress !== undefined ? socket.resetAndDestroy() : socket?.destroy();
          const origin = await listen(
            createServer((socket) => {
              far.push(socket);
              if (when === "sending") {
                socket.write(Buffer.alloc(mebibyte));
                socket.resume();
              }
            }),
          );
          let client: Socket | undefined;
          const { open, proxy } = await serve([`a.test:${origin}`, `127.0.0.1:${origin}`], {
            lookup: async () => {
              if (when === "looked up" && side === "client") kill(client);
              return ["127.0.0.1"];
            },
            limits: { connectMs: 100 },
          });
          client = open();
          client.write(`CONNECT a.test:${origin} HTTP/1.1\r\nHost: x\r\n\r\n`);
          if (when !== "asked" && when !== "looked up") await vi.waitFor(() => expect(far.length).toBe(1), 30_000);
          if (when === "sending") client.write(Buffer.alloc(mebibyte));
          await delay(ms);
          if (side === "client") kill(client);
          else {
            await vi.waitFor(() => expect(far.length).toBe(1), 30_000);
            kill(far[0]);
          }
          await closed(client);
          await Promise.all(far.map(closed));
          await proxy.close();
        },
      ),
      { numRuns: 60 },
    );
  });
});

describe("many connections", () => {
  test("EPX3 beyond the limit are refused with 503, until one ends", async () => {
    const origin = await listen(createServer((socket) => void socket.resume()));
    const { open } = await serve([`127.0.0.1:${origin}`], { limits: { connections: 16 } });
    const tunnels = await Promise.all(Array.from({ length: 16 }, () => tunnelTo(open, `127.0.0.1:${origin}`)));
    const answers = await Promise.all(Array.from({ length: 40 }, () => read(open())));
    for (const answer of answers)
      expect(answer).toMatch(/^HTTP\/1\.1 503 more than 16 connections of one sandbox at once/);
    tunnels[0]?.destroy();
    await vi.waitFor(async () => {
      const socket = await tunnelTo(open, `127.0.0.1:${origin}`);
      expect(socket.destroyed).toBe(false);
    });
  });

  test("EPX5 a connection that pipelines behind a refused body is closed, and closing waits for nobody", async () => {
    // Where libuv refuses a reset, Node forgets the socket, and leaves its descriptor open.
    const descriptors = (): number => readdirSync("/proc/self/fd").length;
    for (const bytes of [65_536, 70_000, 100_000, 131_072]) {
      const before = descriptors();
      const { open, proxy } = await serve([]);
      const clients = Array.from({ length: 5 }, () => open());
      for (const client of clients) {
        const next = "GET http://b.test/ HTTP/1.1\r\nHost: b\r\n\r\n".repeat(3);
        const head = `POST http://a.test/ HTTP/1.1\r\nHost: a\r\nContent-Length: ${bytes}\r\n\r\n`;
        client.write(Buffer.concat([Buffer.from(head), Buffer.alloc(bytes), Buffer.from(next)]));
      }
      await Promise.all(clients.map((client) => Promise.race([closed(client), delay(200)])));
      await proxy.close();
      await Promise.all(clients.map(closed));
      await vi.waitFor(() => expect(descriptors()).toBeLessThanOrEqual(before), 30_000);
    }
  });

  test("ALW1 a name that leads to an address of this machine is refused unless an entry names it", async () => {
    const origin = await listen(createServer((socket) => void socket.end("HTTP/1.1 200 OK\r\n\r\nown")));
    const asked = `GET http://a.test:${origin}/ HTTP/1.1\r\nHost: x\r\n\r\n`;
    const isOwn = (address: unknown) => String(address) === "52.1.2.3";
    const lookup = async () => ["52.1.2.3"];
    const refusing = await serve(["a.test:*"], { lookup, isOwn });
    expect(await ask(refusing.open(), asked)).toMatch(/^HTTP\/1.1 403 .*is this machine's/);
  });

  test("EPX3 a look-up counts until it ends, also when whoever asked has gone", async () => {
    const pending: ((addresses: string[]) => void)[] = [];
    const origin = await listen(createServer((socket) => void socket.end("HTTP/1.1 200 OK\r\n\r\n")));
    const { open } = await serve(["*.test:*", `127.0.0.1:${origin}`], {
      lookup: () => new Promise((resolve) => pending.push(resolve)),
      limits: { lookups: 3 },
    });
    for (let n = 0; n < 10; n++) {
      const client = open();
      client.write(`GET http://n${n}.test:${origin}/ HTTP/1.1\r\nHost: x\r\n\r\n`);
      if (n < 3) await vi.waitFor(() => expect(pending.length).toBe(n + 1), 30_000);
      else expect(await read(client)).toMatch(/^HTTP\/1.1 502 .*more than 3 names are looked up at once/);
      client.destroy();
    }
    expect(pending.length).toBe(3);
    for (const resolve of pending.splice(0)) resolve(["127.0.0.1"]);
    await delay(0);
    const again = open();
    again.write(`GET http://again.test:${origin}/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n`);
    await vi.waitFor(() => expect(pending.length).toBe(1), 30_000);
    pending[0]!(["127.0.0.1"]);
    expect(await read(again)).toMatch(/^HTTP\/1.1 200/);
  });

  test("EPX5 after close there is no socket and no timer, whatever each was doing", async () => {
    const origin = await listen(createServer((socket) => void socket.write(Buffer.alloc(mebibyte))));
    const { open, proxy } = await serve([`127.0.0.1:${origin}`, "*.test:*"], {
      lookup: () => new Promise(() => {}),
    });
    const count = (type: string): number => process.getActiveResourcesInfo().filter((each) => each === type).length;
    const [timers, sockets] = [count("Timeout"), count("TCPSocketWrap")];
    const clients = [
      ...(await Promise.all(Array.from({ length: 8 }, () => tunnelTo(open, `127.0.0.1:${origin}`)))),
      ...["CONNECT slow.test:1", "GET http://slow.test:1/", `GET http://127.0.0.1:${origin}/`].map((line) => {
        const socket = open();
        socket.write(`${line} HTTP/1.1\r\nHost: x\r\n\r\n`);
        return socket;
      }),
      open(),
    ];
    await delay(20);
    await Promise.all([proxy.close(), proxy.close()]);
    await Promise.all(clients.map(closed));
    expect(count("Timeout")).toBeLessThanOrEqual(timers);
    // The origin's ends close when they have noticed.
    await vi.waitFor(() => expect(count("TCPSocketWrap")).toBeLessThanOrEqual(sockets), 30_000);
    const late = open();
    await closed(late);
    const server = createServer();
    await listen(server);
    proxy.serve(server);
    await vi.waitFor(() => expect(server.listening).toBe(false), 30_000);
  });
});

function deferred<T>() {
  let resolve = (_: T): void => {};
  const promise = new Promise<T>((done) => {
    resolve = done;
  });
  return { promise, resolve };
}
