import { once } from "node:events";
import { writeFile } from "node:fs/promises";
import net from "node:net";
import { join } from "node:path";
import tls from "node:tls";
import { type LinkTls, runPrefix } from "@treadle/contracts";
import { createPeer, type EndpointOptions, openEndpoint, parseAddress } from "@treadle/transport";
import { openProtocol } from "@treadle/transport/testing";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { makeCertificates } from "./support/certificates.ts";
import { folder, joined, runId, token } from "./support/endpoints.ts";
import { linkContract } from "./support/link-contract.ts";
import { until } from "./support/until.ts";

const words = openProtocol(["who", "size"]);

let where: Awaited<ReturnType<typeof folder>>;
let ours: LinkTls;
let theirs: LinkTls;
beforeAll(async () => {
  where = await folder();
  ours = await makeCertificates(where.path, "ours");
  theirs = await makeCertificates(where.path, "theirs");
});
afterAll(() => where.dispose());

/** However it comes to its end. */
const closed = (socket: net.Socket): Promise<void> => {
  socket.on("error", () => {}).resume();
  return new Promise((resolve) => socket.once("close", () => resolve()));
};

const limits = { maxFrameBytes: 1024 * 1024 };
linkContract("TLS", () => joined("tcp", { limits, segments: false, tls: ours }), { copies: true });
linkContract(
  "TLS, seen from the side that dialled",
  async () => {
    const pair = await joined("tcp", { limits, segments: false, tls: ours });
    return { ...pair, left: pair.right, right: pair.left };
  },
  { copies: true },
);

describe("an endpoint with certificates", () => {
  /** Calls `dial` with the address of an endpoint that has our certificates; returns what it refused. */
  async function refusalsOf(dial: (address: string) => Promise<unknown>): Promise<string[]> {
    const refused: string[] = [];
    const server = await openEndpoint({
      name: "server",
      runId,
      token,
      tcp: { port: 0 },
      tls: ours,
      handshakeTimeoutMs: 300,
      onRefused: (line) => refused.push(line),
    });
    server.onLink((link) => createPeer(link, words).handle("who", () => link.remote));
    try {
      await dial(server.addresses[0] as string);
      return refused;
    } finally {
      await server.close();
    }
  }
  const dialWith = (options: Partial<EndpointOptions>) => async (address: string) => {
    const client = await openEndpoint({ name: "client", runId, token, ...options });
    try {
      return await createPeer(await client.connect(address), words).request("who", {}, { timeoutMs: 5000 });
    } finally {
      await client.close();
    }
  };

  test("admits who has one of the same authority", async () => {
    const refused = await refusalsOf(async (address) => {
      expect(address).toMatch(/^tls:127/);
      expect(await dialWith({ tls: ours })(address)).toBe("client");
    });
    expect(refused).toEqual([]);
  });

  test("refuses, and reports, who has one of another authority, or none", async () => {
    const refused = await refusalsOf(async (address) => {
      await expect(dialWith({ tls: theirs })(address)).rejects.toMatchObject({ code: "link.refused" });
      // Trusts the server, and shows nothing itself.
      const { host, port } = parseAddress(address) as { host: string; port: number };
      await closed(tls.connect({ host, port, rejectUnauthorized: false }));
    });
    await until(() => refused.length > 0);
    for (const line of refused) expect(line).toMatch(/'127\.0\.0\.1' (was|were) refused.* certificate .* not accepted/);
  });

  test("is not fooled by plain text, and hangs on nobody who says nothing", async () => {
    const refused = await refusalsOf(async (address) => {
      await expect(dialWith({})(address)).rejects.toThrow(/give every machine some, or none/);
      await expect(dialWith({})(address.replace("tls:", "tcp:"))).rejects.toMatchObject({ code: "link.refused" });
      const { host, port } = parseAddress(address) as { host: string; port: number };
      await closed(net.connect(port, host));
    });
    expect(refused.length).toBeGreaterThan(0);
  });

  test("names files that are missing or not what they should be, and shows nothing of them", async () => {
    const broken = join(where.path, "broken.pem");
    await writeFile(broken, "secret nonsense");
    const open = (tls: LinkTls) => openEndpoint({ name: "server", runId, token, tcp: { port: 0 }, tls });
    await expect(open({ ...ours, ca: join(where.path, "none.pem") })).rejects.toThrow(/none\.pem' cannot be read/);
    const error = await open({ ...ours, key: broken }).catch((each: Error) => each);
    expect(error).toMatchObject({ code: "config.invalid", message: expect.stringContaining(broken) });
    expect(String(error)).not.toContain("secret nonsense");
  });
});

test("garbage on a plain port is cut off and reported, and others are served meanwhile", async () => {
  const refused: string[] = [];
  const onRefused = (line: string) => void refused.push(line);
  const server = await openEndpoint({ name: "server", runId, token, tcp: { port: 0 }, onRefused });
  server.onLink((link) => createPeer(link, words).handle("who", () => link.remote));
  const client = await openEndpoint({ name: "client", runId, token });
  try {
    const { host, port } = parseAddress(server.addresses[0] as string) as { host: string; port: number };
    const stranger = net.connect(port, host, () => stranger.write("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    const cutOff = closed(stranger);
    const peer = createPeer(await client.connect(server.addresses), words);
    expect(await peer.request("who", {}, { timeoutMs: 5000 })).toBe("client");
    await cutOff;
    expect(refused).toEqual([expect.stringMatching(/^a connection from '127\.0\.0\.1' was refused: .*frame/)]);
  } finally {
    await client.close();
    await server.close();
  }
});

test.each(["tcp", "tls"] as const)(
  "EP2: idle connections, however many, keep nobody out of a %s port",
  async (kind) => {
    const refused: string[] = [];
    const encryption = kind === "tls" ? { tls: ours } : {};
    const onRefused = (line: string) => void refused.push(line);
    const own = { runId, token, ...encryption };
    const server = await openEndpoint({
      name: "server",
      tcp: { port: 0 },
      handshakeTimeoutMs: 60_000,
      onRefused,
      ...own,
    });
    server.onLink((link) => createPeer(link, words).handle("who", () => link.remote));
    const client = await openEndpoint({ name: "client", ...own });
    const { host, port } = parseAddress(server.addresses[0] as string) as { host: string; port: number };
    const idle: net.Socket[] = [];
    try {
      for (let i = 0; i < 300; i++) idle.push(net.connect(port, host).on("error", () => {}));
      await Promise.all(idle.map((socket) => once(socket, "connect")));
      const peer = createPeer(await client.connect(server.addresses), words);
      expect(await peer.request("who", {}, { timeoutMs: 20_000 })).toBe("client");
      await until(() => refused.length > 0);
      expect(refused).toHaveLength(1);
    } finally {
      for (const socket of idle) socket.destroy();
      await client.close();
      await server.close();
    }
  },
);

test("an advertised address is what others are told, and memory is shared within one scope only", async () => {
  const pair = async (scopes: [string, string]) => {
    const open = (name: string, scope: string) =>
      openEndpoint({
        name,
        runId,
        token,
        tcp: { port: 0, advertise: "localhost" },
        segments: { prefix: `${runPrefix(runId)}scope-`, scope },
      });
    const server = await open("server", scopes[0]);
    const client = await open("client", scopes[1]);
    let release = 0;
    server.onLink((link) => createPeer(link, words).handle("size", (body) => (body as Uint8Array).length));
    try {
      expect(server.addresses[0]).toMatch(/^tcp:localhost:\d+$/);
      const link = await client.connect(server.addresses);
      link.send({ kind: "nothing" });
      link.send(new Uint8Array(8 * 1024 * 1024));
      // What is lent lies in memory and is not queued.
      release = link.queuedBytes;
      return release > 1024 * 1024;
    } finally {
      await client.close();
      await server.close();
    }
  };
  expect(await pair(["a", "a"])).toBe(false);
  expect(await pair(["a", "b"])).toBe(true);
});
