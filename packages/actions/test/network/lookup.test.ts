import { createSocket } from "node:dgram";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { lookupsOfSystem } from "../../src/network/lookup.ts";

/** A name server; `answer`: the IPv4 address of a name, null where there is none, undefined where it says nothing. */
async function nameServer(answer: (name: string) => string | null | undefined) {
  const socket = createSocket("udp4");
  const asked: string[] = [];
  socket.on("message", (query, from) => {
    const labels: string[] = [];
    let at = 12;
    for (let length = query[at]!; length > 0; length = query[at]!) {
      labels.push(query.toString("latin1", at + 1, at + 1 + length));
      at += length + 1;
    }
    const isForIpv4 = query.readUInt16BE(at + 1) === 1;
    const name = labels.join(".");
    asked.push(name);
    const address = answer(name);
    if (address === undefined) return;
    const header = Buffer.from(query.subarray(0, 12));
    const hasAnswer = address !== null && isForIpv4;
    header.writeUInt16BE(address === null ? 0x8183 : 0x8180, 2); // NXDOMAIN, or no error
    header.writeUInt16BE(hasAnswer ? 1 : 0, 6);
    header.writeUInt32BE(0, 8);
    const record = hasAnswer ? [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, ...address.split(".").map(Number)] : [];
    socket.send(Buffer.concat([header, query.subarray(12, at + 5), Buffer.from(record)]), from.port, from.address);
  });
  await new Promise<void>((resolve) => socket.bind(0, "127.0.0.1", resolve));
  onTestFinished(() => new Promise<void>((resolve) => void socket.close(() => resolve())));
  return { servers: [`127.0.0.1:${socket.address().port}`], asked };
}

function hostsFile(text: string): string {
  const folder = mkdtempSync(join(tmpdir(), "treadle-hosts-file-"));
  onTestFinished(() => rmSync(folder, { recursive: true }));
  writeFileSync(join(folder, "hosts"), text);
  return join(folder, "hosts");
}

test("a name is the machine's own file's, else its name servers'", async () => {
  const { servers, asked } = await nameServer((name) => (name === "a.test" ? "192.0.2.7" : null));
  const file = hostsFile("# 9.9.9.9 a.test\n192.0.2.1  Mirror.test. other\n::1 mirror.test # local\n");
  const { lookup, close } = lookupsOfSystem({ hostsFile: file, servers });
  onTestFinished(close);
  expect(await lookup("mirror.test")).toEqual(["192.0.2.1", "::1"]);
  expect(asked).toEqual([]);
  expect(await lookup("a.test")).toEqual(["192.0.2.7"]);
  await expect(lookup("none.test")).rejects.toMatchObject({ code: "ENOTFOUND" });
  const without = lookupsOfSystem({ hostsFile: `${file}.missing`, servers });
  onTestFinished(without.close);
  expect(await without.lookup("a.test")).toEqual(["192.0.2.7"]);
});

test("EPX5 look-ups end when they are closed, and keep nobody else's waiting", async () => {
  const { servers, asked } = await nameServer((name) => (name.startsWith("slow") ? undefined : "192.0.2.9"));
  const [one, other] = [lookupsOfSystem({ servers }), lookupsOfSystem({ servers })];
  onTestFinished(other.close);
  const slow = Array.from({ length: 64 }, (_, i) => one.lookup(`slow${i}.test`).catch((error: Error) => error));
  await expect.poll(() => asked.filter((name) => name.startsWith("slow")).length).toBeGreaterThan(60);
  expect(await other.lookup("quick.test")).toEqual(["192.0.2.9"]);
  one.close();
  for (const ended of await Promise.all(slow)) expect(ended).toMatchObject({ code: "ECANCELLED" });
});
