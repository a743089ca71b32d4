/**
 * A host on the network, without credentials: it sees and can change what passes between two machines, and can open
 * connections. `strangers-command-nobody` shows that it does not log in at NATS.
 */
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import net from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import tls from "node:tls";
import { type Link, TreadleError } from "@treadle/contracts";
import { type Endpoint, type EndpointOptions, openEndpoint } from "@treadle/transport";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { dialRunner } from "../../packages/runtime/src/author/dial.ts";
import { frameKind, headBytes, writeHead } from "../../packages/transport/src/link/frame.ts";
import { Handshake } from "../../packages/transport/src/link/handshake.ts";
import { makeCertificates } from "../../packages/transport/test/support/certificates.ts";
import { until } from "../support/cluster.ts";

const identity = { runId: "run-1", token: "a token that only this run has", segments: false } as const;
const secret = "what only the two of them may read ".repeat(20);

let folder: string;
const toClose: (() => Promise<unknown> | unknown)[] = [];
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-w-"));
});
afterEach(async () => {
  for (const close of toClose.splice(0).reverse()) await close();
  await rm(folder, { recursive: true, force: true });
});

async function open(name: string, options: Partial<EndpointOptions> = {}): Promise<Endpoint> {
  const endpoint = await openEndpoint({ name, ...identity, ...options });
  toClose.push(() => endpoint.close());
  return endpoint;
}

async function runner(options: Partial<EndpointOptions>) {
  const links: Link[] = [];
  const refusals: string[] = [];
  const endpoint = await open("runner", { tcp: { port: 0 }, onRefused: (line) => refusals.push(line), ...options });
  endpoint.onLink((link) => links.push(link));
  const [address = ""] = endpoint.addresses;
  return { links, refusals, address, port: Number(address.slice(address.lastIndexOf(":") + 1)) };
}

/** A way to a port by which everything that passes is kept, in both directions, and may be changed. */
async function listener(port: number, change = (bytes: Buffer): Buffer => bytes) {
  const heard = { asked: [] as Buffer[], answered: [] as Buffer[] };
  const server = net.createServer((near) => {
    const far = net.connect(port, "127.0.0.1");
    for (const socket of [near, far])
      socket.on("error", () => {}).on("close", () => [near, far].map((s) => s.destroy()));
    near.on("data", (bytes) => {
      heard.asked.push(bytes);
      far.write(change(bytes));
    });
    far.on("data", (bytes) => {
      heard.answered.push(bytes);
      near.write(bytes);
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  toClose.push(() => server.close());
  const all = () => Buffer.concat([...heard.asked, ...heard.answered]).toString("latin1");
  return { heard, all, port: (server.address() as net.AddressInfo).port };
}

const scheme = (kind: "plain" | "encrypted"): string => (kind === "plain" ? "tcp" : "tls");
const closed = (socket: net.Socket): Promise<void> => new Promise((resolve) => socket.once("close", () => resolve()));

/** A hello in the form that the protocol wants it, by one who knows all of the run but its token. */
function forgedHello(index: number): Buffer {
  const self = { name: `maker/${index}`, runId: identity.runId, memory: "", segmentPrefix: "" };
  const body = Buffer.from(JSON.stringify(new Handshake("dialler", self, "another token, long enough").hello()));
  const head = Buffer.alloc(headBytes);
  writeHead(head, body.length, frameKind.hello, 0);
  return Buffer.concat([head, body]);
}

/** So many connections that say this and then wait; who is sent away comes again at once. */
function crowd(port: number, size: number, wordsOf: (index: number) => Buffer) {
  const sockets = new Map<number, net.Socket>();
  const counts = { dialled: 0 };
  let isOver = false;
  const dial = (index: number) => {
    if (isOver) return;
    counts.dialled++;
    const socket = net.connect(port, "127.0.0.1", () => socket.write(wordsOf(index)));
    socket.on("error", () => {}).once("close", () => setImmediate(() => dial(index)));
    socket.resume();
    sockets.set(index, socket);
  };
  for (let i = 0; i < size; i++) dial(i);
  toClose.push(() => {
    isOver = true;
    for (const socket of sockets.values()) socket.destroy();
  });
  return counts;
}

async function exchange(link: Link, other: Link): Promise<void> {
  const arrived = new Promise((resolve) => other.onMessage(resolve));
  link.send({ secret });
  expect(await arrived).toEqual({ secret });
}

describe.each(["plain", "encrypted"] as const)("at a %s link", (kind) => {
  let options: Partial<EndpointOptions>;
  beforeEach(async () => {
    options = kind === "plain" ? {} : { tls: await makeCertificates(folder, "ours") };
  });

  test("idle connections and garbage keep nobody out, and are said in a few lines", async () => {
    const { links, refusals, address, port } = await runner(options);
    const strangers = Array.from({ length: 300 }, (_, i) => {
      const socket = net.connect(port, "127.0.0.1");
      socket.on("error", () => {});
      if (i % 3 === 0) socket.write(`GET /${i} HTTP/1.1\r\n\r\n`);
      return socket;
    });
    toClose.push(() => strangers.map((socket) => socket.destroy()));
    await Promise.all(strangers.map((socket) => Promise.race([once(socket, "connect"), once(socket, "close")])));
    const worker = await open("maker/0", options);
    for (let attempt = 0; links.length === 0; attempt++) {
      await worker.connect([address], { expect: "runner" }).catch(() => {}); // a worker dials until it is let in
      expect(attempt).toBeLessThan(100);
    }
    expect(links[0]?.remote).toBe("maker/0");
    expect(refusals.length).toBeLessThan(10);
  });

  test("HO1, HO2, EP2: one that dials once is let in after any number that say nothing, of which the oldest give way", async () => {
    const [numIdle, mayWait] = [300, 128];
    const { links, address, port } = await runner({ ...options, handshakeTimeoutMs: 3_600_000 });
    let numClosed = 0;
    for (let i = 0; i < numIdle; i++) {
      const socket = net.connect(port, "127.0.0.1");
      socket.on("error", () => {}).on("close", () => numClosed++);
      toClose.push(() => socket.destroy());
      await once(socket, "connect");
    }
    const worker = await open("maker/0", options);
    const link = await worker.connect([address], { expect: "runner" });
    await exchange(link, await until(() => links[0], "the link"));
    await until(() => numClosed >= numIdle + 1 - mayWait, "the oldest to give way");
    expect(numClosed).toBe(numIdle + 1 - mayWait);
  });

  test("EP2: bursts of hundreds, each in one moment, keep no worker of a starting run out, however long they go on", async () => {
    const [burst, everyMs, lastMs, numWorkers] = [200, 200, 10_000, 16];
    const { links, address, port } = await runner(options);
    let numBursts = 0;
    let opened: net.Socket[] = [];
    const strike = () => {
      numBursts++;
      for (const socket of opened) socket.destroy();
      opened = Array.from({ length: burst }, () => net.connect(port, "127.0.0.1").on("error", () => {}));
    };
    const bursts = setInterval(strike, everyMs);
    toClose.push(() => {
      clearInterval(bursts);
      for (const socket of opened) socket.destroy();
    });
    const endsMs = performance.now() + lastMs;
    const joined = Array.from({ length: numWorkers }, async (_, index) => {
      const endpoint = await open(`maker/${index}`, options);
      await delay((index * lastMs) / numWorkers);
      strike(); // in the very moment in which it dials; it dials again where it is sent away
      await dialRunner(endpoint, [address]);
    });
    await Promise.all(joined); // while bursts go on
    const ended: string[] = [];
    for (const link of links) link.onClose(() => ended.push(link.remote));
    expect(new Set(links.map(({ remote }) => remote)).size).toBe(numWorkers);
    await delay(Math.max(0, endsMs - performance.now()));
    expect(ended).toEqual([]); // and whoever is in stays
    expect(numBursts).toBeGreaterThan(numWorkers);
    clearInterval(bursts);
  }, 120_000);

  test.each([
    ["forge", false],
    ["say again what they have heard", true],
  ])(
    "HO2, HO3, HK3: hundreds that %s hellos keep none of the workers of a starting run out",
    async (_, replays) => {
      const [numStrangers, numWorkers] = [300, 8];
      const { links, refusals, address, port } = await runner(options);
      const wire = await listener(port);
      if (replays) {
        const heard = await open("heard", options);
        await heard.connect([`${scheme(kind)}:127.0.0.1:${wire.port}`], { expect: "runner" });
      }
      const said = wire.heard.asked[0];
      const strangers = crowd(port, numStrangers, (index) => said ?? forgedHello(index));
      await until(() => strangers.dialled > numStrangers, "the first to be sent away");
      const makers = await Promise.all(Array.from({ length: numWorkers }, (_, i) => open(`maker/${i}`, options)));
      await Promise.all(makers.map((maker) => dialRunner(maker, [address])));
      const joined = new Set(links.map(({ remote }) => remote));
      for (const maker of makers) expect(joined).toContain(maker.name);
      expect(refusals.join()).not.toContain("maker/"); // what a stranger says of itself
      expect(refusals.length).toBeLessThan(10);
    },
    120_000,
  );

  test("what was heard of a worker that joined lets nobody else join, and does not have the token in it", async () => {
    const { links, port } = await runner(options);
    const wire = await listener(port);
    const worker = await open("maker/0", options);
    const link = await worker.connect([`${scheme(kind)}:127.0.0.1:${wire.port}`], { expect: "runner" });
    await until(() => links[0], "the link");
    await exchange(link, links[0] as Link);
    expect(wire.all()).not.toContain(identity.token);
    if (kind === "encrypted") expect(wire.all()).not.toContain(secret.slice(0, 20));
    else expect(wire.all()).toContain(secret.slice(0, 20)); // what links without TLS hide from nobody, as docs/guides/security.md says
    const again = net.connect(port, "127.0.0.1");
    again.on("error", () => {}).resume();
    again.write(Buffer.concat(wire.heard.asked));
    await closed(again);
    expect(links).toHaveLength(1);
  });

  test("one that answers in the runner's place, without the token, is not taken for it", async () => {
    const liar = await openEndpoint({
      ...identity,
      name: "runner",
      token: "another token, long enough",
      tcp: { port: 0 },
      ...options,
    });
    toClose.push(() => liar.close());
    const worker = await open("maker/0", options);
    await expect(worker.connect(liar.addresses, { expect: "runner" })).rejects.toThrow(TreadleError);
  });
});

test("without a certificate of the authority nobody gets as far as a handshake, and what is changed on its way ends the link", async () => {
  const ours = await makeCertificates(folder, "ours");
  const theirs = await makeCertificates(folder, "theirs");
  const { links, port } = await runner({ tls: ours });
  for (const options of [{ tls: theirs }, {}] as Partial<EndpointOptions>[]) {
    const stranger = await open("maker/0", options);
    await expect(stranger.connect([`${options.tls ? "tls" : "tcp"}:127.0.0.1:${port}`])).rejects.toMatchObject({
      code: "link.refused",
    });
  }
  const bare = tls.connect({ port, host: "127.0.0.1", rejectUnauthorized: false });
  bare.on("error", () => {}).resume();
  await closed(bare);
  expect(links).toEqual([]);

  let passed = 0;
  const wire = await listener(port, (bytes) => {
    passed += bytes.length;
    if (links.length === 0 || passed < 4000) return bytes;
    const changed = Buffer.from(bytes);
    changed[changed.length - 1] = (changed.at(-1) as number) ^ 1;
    return changed;
  });
  const worker = await open("maker/0", { tls: ours });
  const link = await worker.connect([`tls:127.0.0.1:${wire.port}`]);
  const far = await until(() => links[0], "the link");
  const arrived: unknown[] = [];
  far.onMessage((message) => arrived.push(message));
  const ended = new Promise<void>((resolve) => far.onClose(() => resolve()));
  for (let i = 0; i < 50; i++) link.send({ i, secret });
  await ended;
  expect(arrived.every((message, i) => JSON.stringify(message) === JSON.stringify({ i, secret }))).toBe(true);
  expect(arrived.length).toBeLessThan(50);
});
