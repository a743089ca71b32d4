import { once } from "node:events";
import { stat, writeFile } from "node:fs/promises";
import net from "node:net";
import { join } from "node:path";
import type { Link } from "@treadle/contracts";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { type Endpoint, type EndpointOptions, openEndpoint, parseAddress } from "../src/index.ts";
import { folder, runId, token } from "./support/endpoints.ts";

describe("endpoint", () => {
  let where: Awaited<ReturnType<typeof folder>>;
  let open: Endpoint[] = [];
  beforeEach(async () => {
    where = await folder();
  });
  afterEach(async () => {
    await Promise.all(open.map((endpoint) => endpoint.close()));
    open = [];
    await where.dispose();
  });

  async function endpoint(name: string, options: Partial<EndpointOptions> = {}): Promise<Endpoint> {
    const opened = await openEndpoint({ name, runId, token, segments: false, ...options });
    open.push(opened);
    return opened;
  }

  async function server(
    options: Partial<EndpointOptions> = {},
  ): Promise<{ server: Endpoint; links: Link[]; path: string }> {
    const path = join(where.path, "inner", "s");
    const opened = await endpoint("server", { unixPath: path, ...options });
    const links: Link[] = [];
    opened.onLink((link) => links.push(link));
    return { server: opened, links, path };
  }

  it("keeps its socket to its user, and removes it (EP3, EP4)", async () => {
    const { server: opened, path } = await server();
    expect((await stat(path)).mode & 0o777).toBe(0o600);
    expect((await stat(join(where.path, "inner"))).mode & 0o777).toBe(0o700);
    await opened.close();
    await expect(stat(path)).rejects.toMatchObject({ code: "ENOENT" });
  });

  it("listens on loopback unless told otherwise (EP3)", async () => {
    const opened = await endpoint("t", { tcp: { port: 0 } });
    expect(opened.addresses[0]).toMatch(/^tcp:127\.0\.0\.1:\d+$/);
  });

  it.each([
    ["another token", { token: "some other token entirely" }, {}, /does not hold the token/],
    ["another run", { runId: "another-run" }, {}, /belongs to run/],
    ["another name than expected", {}, { expect: "someone" }, /'server' answers where 'someone' was expected/],
  ])("refuses %s, at both ends (EP1)", async (_what, options, connect, message) => {
    const { server: opened, links } = await server();
    const stranger = await endpoint("stranger", options);
    await expect(stranger.connect(opened.addresses, connect)).rejects.toMatchObject({
      code: "link.unauthorized",
      message: expect.stringMatching(message),
    });
    expect(links).toEqual([]);
  });

  it("does not believe an acceptor that lacks the token (HK1)", async () => {
    const { server: opened } = await server({ token: "some other token entirely" });
    const dialler = await endpoint("dialler");
    await expect(dialler.connect(opened.addresses)).rejects.toMatchObject({ code: "link.unauthorized" });
  });

  it.each([
    "GET / HTTP/1.1\r\n\r\n",
    "\x10\x00\x00\x00\x02\x00\x00\x00sixteen bytes of",
    "\xff\xff\xff\xff\x01\x00\x00\x00",
  ])("hangs up on a stranger that says %j, and goes on (HK2)", async (garbage) => {
    const { server: opened, links, path } = await server();
    const stranger = net.connect(path);
    stranger.on("error", () => {});
    stranger.resume();
    stranger.write(Buffer.from(garbage, "latin1"));
    await once(stranger, "close");
    expect(links).toEqual([]);
    const dialler = await endpoint("dialler");
    const link = await dialler.connect(opened.addresses);
    expect(link.remote).toBe("server");
  });

  it("ends a handshake that never comes, at either end (EP2)", async () => {
    const { path } = await server({ handshakeTimeoutMs: 50 });
    const silent = net.connect(path);
    silent.resume();
    await once(silent, "close");

    const mute = net.createServer(() => {}).listen(join(where.path, "mute"));
    await once(mute, "listening");
    const dialler = await endpoint("dialler", { handshakeTimeoutMs: 50 });
    await expect(dialler.connect(`unix:${join(where.path, "mute")}`)).rejects.toMatchObject({
      code: "link.refused",
      message: expect.stringMatching(/gave no handshake within 50 ms/),
    });
    mute.close();
  });

  it("closes a link whose other side turns to garbage after the handshake, with link.protocol (SK2)", async () => {
    const { server: opened, links } = await server();
    const dialler = await endpoint("dialler");
    const connect = net.Socket.prototype.connect;
    let raw: net.Socket | undefined;
    net.Socket.prototype.connect = function (this: net.Socket, ...args: unknown[]) {
      raw = this;
      return Reflect.apply(connect, this, args) as net.Socket;
    };
    try {
      await dialler.connect(opened.addresses);
    } finally {
      net.Socket.prototype.connect = connect;
    }
    while (links.length === 0) await new Promise((resolve) => setImmediate(resolve));
    const cause = new Promise((resolve) => links[0]!.onClose(resolve));
    raw!.write(Buffer.from("this is not a frame at all"));
    expect(await cause).toMatchObject({ code: "link.protocol" });
  });

  it("tries addresses in turn, and reports the last failure", async () => {
    const { server: opened } = await server();
    const dialler = await endpoint("dialler");
    const nowhere = `unix:${join(where.path, "nobody")}`;
    expect((await dialler.connect([nowhere, ...opened.addresses])).remote).toBe("server");
    await expect(dialler.connect([nowhere])).rejects.toMatchObject({
      code: "link.refused",
      message: expect.stringMatching(/no process answers at 'unix:/),
    });
    await expect(dialler.connect([])).rejects.toMatchObject({ code: "link.refused" });
  });

  it("stops dialling when cancelled", async () => {
    const { server: opened } = await server();
    const dialler = await endpoint("dialler");
    const controller = new AbortController();
    const dialling = dialler.connect(opened.addresses, { signal: controller.signal });
    controller.abort(new Error("changed my mind"));
    await expect(dialling).rejects.toMatchObject({ code: "call.cancelled" });
  });

  it("takes over the socket file of a dead process, but not of a living one", async () => {
    const { path } = await server();
    await expect(endpoint("second", { unixPath: path })).rejects.toMatchObject({
      code: "link.refused",
      message: expect.stringMatching(/address already in use/),
    });
    const stale = join(where.path, "stale");
    const dead = net.createServer().listen(stale);
    await once(dead, "listening");
    // Closing the handle alone leaves the file, as a killed process does.
    const renamed = join(where.path, "renamed");
    await (await import("node:fs/promises")).rename(stale, renamed);
    dead.close();
    await (await import("node:fs/promises")).rename(renamed, stale);
    const taken = await endpoint("taken", { unixPath: stale });
    expect(taken.addresses).toEqual([`unix:${stale}`]);
  });

  it("does not replace a file that is no socket", async () => {
    const path = join(where.path, "precious");
    await writeFile(path, "data");
    await expect(endpoint("e", { unixPath: path })).rejects.toMatchObject({ code: "link.refused" });
    expect((await stat(path)).size).toBe(4);
  });

  it("says which paths and addresses are allowed", async () => {
    const long = `/tmp/${"x".repeat(120)}`;
    await expect(endpoint("e", { unixPath: long })).rejects.toMatchObject({
      message: expect.stringMatching(/has 125 bytes: absolute paths of at most \d+ are allowed/),
    });
    expect(() => parseAddress("http://host")).toThrow(/is not of the form/);
    expect(() => parseAddress("tcp:host:70000")).toThrow(/is not of the form/);
    expect(parseAddress("tcp:[::1]:80")).toEqual({ kind: "tcp", host: "::1", port: 80 });
    await expect(endpoint("e", { token: "short" })).rejects.toMatchObject({ code: "link.unauthorized" });
  });
});
