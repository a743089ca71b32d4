/** Who may call an action service that has no tokens: its own user, and root. */
import { once } from "node:events";
import { mkdtempSync, rmSync, statSync } from "node:fs";
import { connect, createServer, type Socket } from "node:net";
import { endianness, networkInterfaces, tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { systemClock } from "@treadle/transport";
import fc from "fast-check";
import { afterEach, describe, expect, test } from "vitest";
import { mostOfAddress, openDoor } from "../src/grpc/door.ts";
import { tenantOf } from "../src/grpc/listen.ts";
import { ownersIn } from "../src/grpc/socket-owner.ts";
import { ActionPool, CommandActions, CpuManager, ProcessDriver } from "../src/index.ts";
import { type ActionServerOptions, serveActions } from "../src/serve.ts";
import { callAsUser } from "./support/call-as-user.ts";
import { connectActions } from "./support/client.ts";
import { eventually } from "./support/processes.ts";

const nobody = 65_534;
const isLinux = process.platform === "linux";
const isRootOnLinux = isLinux && process.getuid?.() === 0;

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

async function serve(options: Partial<ActionServerOptions> = {}) {
  const cpu = new CpuManager({
    nodes: [{ id: "local", numa: [[0]], memoryBytes: 2 ** 30 }],
    trajectoryMemoryBytes: 2 ** 20,
  });
  const actions = new CommandActions(new ActionPool({ managers: [cpu], clock: systemClock }), new ProcessDriver());
  const server = await serveActions(actions, { address: "127.0.0.1:0", ...options });
  cleanups.push(async () => {
    await server.close();
    await actions.close();
  });
  return server;
}

describe("an action service without tokens", () => {
  test.skipIf(!isRootOnLinux).each(["127.0.0.1", "localhost", "[::1]"])(
    "LD1 at %s (as root on Linux) refuses another user's calls, with the user and the remedy, and serves its own",
    async (host) => {
      const { port, warning } = await serve({ address: `${host}:0` });
      expect(warning).toBeUndefined();
      expect(await callAsUser(nobody, `${host}:${port}`)).toMatch(
        /^7 user '65534' may not call: this server has no tokens and serves user '0' and root alone; give tokens by tokenFile/,
      );
      expect(await callAsUser(0, `${host}:${port}`)).toBe("0 OK");
    },
  );

  test.skipIf(!isRootOnLinux)(
    "lets another user call with a token, and with 'insecure' (as root on Linux)",
    async () => {
      const insecure = await serve({ insecure: true });
      expect(await callAsUser(nobody, `127.0.0.1:${insecure.port}`)).toBe("0 OK");
      const { port } = await serve({ tokens: new Map([["secret", "team"]]) });
      expect(await callAsUser(nobody, `127.0.0.1:${port}`, { token: "secret" })).toBe("0 OK");
      expect(await callAsUser(nobody, `127.0.0.1:${port}`)).toMatch(/^16 a known token is needed/);
    },
  );

  test("makes its unix socket its owner's alone", async () => {
    const folder = mkdtempSync(join(tmpdir(), "treadle-door-"));
    cleanups.push(() => rmSync(folder, { recursive: true }));
    await serve({ address: `unix:${folder}/socket` });
    expect(statSync(join(folder, "socket")).mode & 0o777).toBe(0o600);
    const client = connectActions(`unix:${folder}/socket`);
    cleanups.push(client.close);
    expect(await client.call("OpenTrajectory", { trajectory: "t" })).toMatchObject({ trajectory: "t" });
  });

  test("says what is wrong with an address that is taken", async () => {
    const { port } = await serve();
    await expect(serve({ address: `127.0.0.1:${port}` })).rejects.toThrow(
      `nothing can listen at '127.0.0.1:${port}': listen EADDRINUSE`,
    );
  });

  test("does not listen at what is no address", async () => {
    await expect(serve({ address: "unix-abstract:any" })).rejects.toThrow(
      "nothing can listen at 'unix-abstract:any': it is no host:port and no unix:/path; give one of them",
    );
  });

  test("a path that the system would cut is refused", async () => {
    await expect(serve({ address: `unix:/tmp/${"long".repeat(40)}` })).rejects.toThrow(
      /more than 107 bytes; give a shorter/,
    );
  });

  test.each(["0.0.0.0:0", "localhost:1:2"])("does not listen at '%s', where others are", async (address) => {
    await expect(serve({ address })).rejects.toThrow(
      /nothing can listen at .*: other machines may reach it; give tokens/,
    );
  });

  test("closes while clients are connected that say nothing", async () => {
    const server = await serve();
    const mute = connect(server.port, "127.0.0.1");
    await new Promise((resolve) => mute.once("connect", resolve));
    const ended = new Promise((resolve) => mute.once("close", resolve));
    mute.on("error", () => {}).resume();
    await server.close();
    await ended;
  });
});

describe("the local door", () => {
  async function doorOf(readTables: () => Promise<string | undefined>) {
    const injected: Socket[] = [];
    let tell = (): void => {};
    const some = new Promise<void>((resolve) => {
      tell = resolve;
    });
    const inject = (socket: Socket): void => {
      injected.push(socket);
      tell();
    };
    const door = await openDoor({ place: { host: "127.0.0.1", port: 0 }, isForOwner: true, inject, readTables });
    cleanups.push(door.close);
    const client = connect(door.port, "127.0.0.1");
    cleanups.push(() => client.destroy());
    await some;
    return { door, peer: `127.0.0.1:${client.localPort}` };
  }

  test("LD1 refuses a connection of which the tables say nothing, and one that it does not know", async () => {
    const { door, peer } = await doorOf(async () => "a header\n");
    expect(door.refusalOf(peer)).toMatch(
      /cannot tell whose this connection is; give tokens by tokenFile, listen at unix/,
    );
    expect(door.refusalOf("127.0.0.1:1")).toBe(door.refusalOf(peer));
  });

  test("LD1 keeps few connections of others, none of them for long, and looks once for all that come at a time", async () => {
    let numReadings = 0;
    const readTables = async () => {
      numReadings++;
      await delay(20); // as many as have come by its end are told by the next
      return "a header\n";
    };
    const injected = new Set<Socket>();
    let mostOpen = 0;
    const inject = (socket: Socket): void => {
      injected.add(socket);
      socket.once("close", () => injected.delete(socket));
      mostOpen = Math.max(mostOpen, [...injected].filter(({ destroyed }) => !destroyed).length);
    };
    const door = await openDoor({ place: { host: "127.0.0.1", port: 0 }, isForOwner: true, inject, readTables });
    cleanups.push(door.close);
    const clients = Array.from({ length: 200 }, () => connect(door.port, "127.0.0.1"));
    cleanups.push(() => clients.map((client) => client.destroy()));
    await Promise.all(
      clients.map(
        (client) =>
          new Promise((resolve) =>
            client
              .on("error", () => {})
              .once("close", resolve)
              .resume(),
          ),
      ),
    );
    expect(mostOpen).toBeGreaterThan(0);
    expect(mostOpen).toBeLessThanOrEqual(32);
    expect(numReadings).toBeLessThan(200);
  });

  test("LD2 where the system has no tables, it says so, and lets callers in", async () => {
    const { door, peer } = await doorOf(async () => undefined);
    expect(door.warning).toMatch(/every user of this machine may call; give tokens by tokenFile/);
    expect(door.refusalOf(peer)).toBeUndefined();
  });
});

describe("of so many connections", () => {
  test("CT1 an address of this machine may have all, one of another half", () => {
    for (const address of ["127.0.0.1", "127.8.0.1", "::1"])
      expect([address, mostOfAddress(address, 5)]).toEqual([address, 5]);
    for (const address of ["192.0.2.7", "10.0.0.1", "2001:db8::1", "fe80::1", "::ffff:192.0.2.7"])
      expect([address, mostOfAddress(address, 5)]).toEqual([address, 3]);
    expect([2, 3, 2048].map((most) => mostOfAddress("192.0.2.7", most))).toEqual([1, 2, 1024]);
  });

  const [outer] = Object.values(networkInterfaces())
    .flatMap((own) => own ?? [])
    .filter(({ internal, family }) => !internal && family === "IPv4");
  test.skipIf(outer === undefined)(
    "CT1 the door keeps half of one address that is not loopback (needs a network interface)",
    async () => {
      const place = { host: outer!.address, port: 0 };
      const door = await openDoor({ place, isForOwner: false, connections: 4, inject: (socket) => socket.resume() });
      cleanups.push(door.close);
      const closed: number[] = [];
      for (let n = 0; n < 3; n++) {
        const client = connect(door.port, place.host);
        cleanups.push(() => client.destroy());
        client.on("error", () => {}).on("close", () => closed.push(n));
        await once(client, "connect");
        client.resume();
      }
      expect([await eventually(() => closed.length > 0), closed]).toEqual([true, [0]]);
    },
  );
});

describe("the owner of a connection", () => {
  const row = (local: string, remote: string, state: string, uid: number, inode: number): string =>
    `   1: ${local} ${remote} ${state} 00000000:00000000 00:00000000 00000000  ${uid}        0 ${inode} 1 0 20 4 30 10 -1`;
  const their = { address: "127.0.0.1", port: 0x9c40 };
  const our = { address: "127.0.0.1", port: 0xc38d };
  const little = endianness() === "LE";
  const [from, to] = little ? ["0100007F:9C40", "0100007F:C38D"] : ["7F000001:9C40", "7F000001:C38D"];

  test("is that of the established socket that dialled, and of no other row", () => {
    const other = row(to, from, "01", 0, 11);
    const tables = (own: string) => `  sl  local_address rem_address\n${other}\n${own}\n`;
    expect(ownersIn(tables(row(from, to, "01", 1000, 12)))(their, our)).toBe(1000);
    // A socket that was closed has no owner, and its row says 0.
    expect(ownersIn(tables(row(from, to, "06", 0, 0)))(their, our)).toBeUndefined();
    expect(ownersIn(tables(row(from, to, "01", 0, 0)))(their, our)).toBeUndefined();
    expect(ownersIn(tables(""))(their, our)).toBeUndefined();
  });

  test("is found where a client of IPv6 has dialled IPv4", () => {
    const prefix = `${"0".repeat(16)}${little ? "FFFF0000" : "0000FFFF"}`;
    expect(ownersIn(row(`${prefix}${from}`, `${prefix}${to}`, "01", 7, 12))(their, our)).toBe(7);
  });

  test("is undefined for whatever a table holds", () => {
    fc.assert(fc.property(fc.string(), (text) => ownersIn(text)(their, our) === undefined));
  });

  test.skipIf(!isLinux)("is this process's for sockets of its own, of both families (on Linux)", async () => {
    const { readSocketTables } = await import("../src/grpc/socket-owner.ts");
    for (const host of ["127.0.0.1", "::1"]) {
      const listener = createServer();
      const canListen = await new Promise<boolean>((resolve) => {
        listener.once("error", () => resolve(false)).listen(0, host, () => resolve(true));
      });
      if (!canListen) continue;
      const { port } = listener.address() as { port: number };
      const client = connect(port, host);
      await new Promise((resolve) => client.once("connect", resolve));
      const tables = (await readSocketTables()) ?? "";
      const at = { address: host, port: client.localPort ?? 0 };
      expect(ownersIn(tables)(at, { address: host, port })).toBe(process.geteuid?.());
      client.destroy();
      listener.close();
    }
  });
});

test("a token is read from its header alone, whatever the case of the scheme's name", () => {
  const tokens = new Map([["se cret", "team"]]);
  for (const header of ["Bearer se cret", "bearer se cret", "BEARER  se cret"])
    expect([header, tenantOf(tokens, header)]).toEqual([header, "team"]);
  for (const header of [undefined, "", "se cret", "Basic se cret", "Bearer", "Bearer SE CRET", "xBearer se cret"])
    expect([header, tenantOf(tokens, header)]).toEqual([header, undefined]);
});
