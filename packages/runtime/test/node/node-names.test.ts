import { existsSync, readFileSync } from "node:fs";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { hostname, type networkInterfaces, tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { expect, test } from "vitest";
import { builtInCards, cardAddresses, defaultNodeName, machineName } from "../../src/node/node-name.ts";

const legal = /^[A-Za-z0-9_-]{1,60}$/;

test("a default name is legal whatever the host is called, and follows what the machine is in whatever order it is read", () => {
  fc.assert(
    fc.property(fc.string({ maxLength: 300 }), fc.array(fc.string()), (host, identity) => {
      const name = machineName(host, identity);
      expect(name).toMatch(legal);
      expect(machineName(host, [...identity].reverse())).toBe(name);
      expect(machineName(host, [...identity, "02:42:ac:11:00:09 of a clone"])).not.toBe(name);
    }),
  );
  expect(machineName("gpu-7.example.org", ["a"])).toMatch(/^gpu-7-[0-9a-f]{6}$/);
});

test("this machine has one, and keeps it", () => {
  expect(defaultNodeName()).toMatch(legal);
  expect(defaultNodeName()).toBe(defaultNodeName());
});

test("a clone, which has other cards, and a machine with another id are called otherwise; the same one is called the same", () => {
  const machine = { host: "gpu-7", cards: ["02:00:00:00:00:01", "02:00:00:00:00:02"], id: "4f3c" };
  const name = defaultNodeName(machine);
  expect(defaultNodeName({ ...machine, cards: machine.cards.toReversed() })).toBe(name);
  expect(defaultNodeName({ ...machine, cards: ["02:00:00:00:00:01", "02:00:00:00:00:03"] })).not.toBe(name);
  expect(defaultNodeName({ ...machine, id: "4f3d" })).not.toBe(name);
  // A machine that may not look at its cards, and one without an id.
  expect(defaultNodeName({ ...machine, cards: [] })).not.toBe(defaultNodeName({ ...machine, cards: [], id: "4f3d" }));
  expect(defaultNodeName({ ...machine, id: "" })).not.toBe(defaultNodeName({ ...machine, cards: ["02"], id: "" }));
});

test("this machine's own cards and id are what its name follows, where none are given", () => {
  const [cards, id] = [["02:00:00:00:00:99"], "of another"];
  const read = builtInCards() ?? cardAddresses();
  expect(defaultNodeName({ id })).toBe(machineName(hostname(), [...read, id]));
  const ownId = existsSync("/etc/machine-id") ? readFileSync("/etc/machine-id", "utf8").trim() : "";
  expect(defaultNodeName({ cards })).toBe(machineName(hostname(), [...cards, ownId]));
});

test("it follows neither what comes and goes with containers and tunnels, nor needs what a sandbox forbids to ask", () => {
  const card = (mac: string) => [{ mac } as NonNullable<ReturnType<typeof networkInterfaces>[string]>[number]];
  const machine = { eth0: card("02:00:00:00:00:01") };
  const busy = {
    ...machine,
    docker0: card("02:42:00:00:00:01"),
    veth9f1: card("1a:00:00:00:00:02"),
    wg0: card("00:00"),
  };
  expect(cardAddresses(() => busy)).toEqual(cardAddresses(() => machine));
  const forbidden = () => {
    throw new Error("uv_interface_addresses returned Unknown system error 97");
  };
  expect(cardAddresses(forbidden)).toEqual([]);
});

test("the machine's own cards count whether they are up or not, and nothing that has none behind it", async () => {
  const folder = await mkdtemp(join(tmpdir(), "treadle-cards-"));
  const add = async (name: string, address: string, isReal: boolean) => {
    await mkdir(join(folder, name, ...(isReal ? ["device"] : [])), { recursive: true });
    await writeFile(join(folder, name, "address"), `${address}\n`);
  };
  expect(builtInCards(join(folder, "none"))).toBeUndefined();
  await add("lo", "00:00:00:00:00:00", false);
  await add("eni1a2b", "02:00:00:00:00:09", false);
  expect(builtInCards(folder)).toBeUndefined();
  await add("eth0", "02:00:00:00:00:01", true);
  await add("wlan0", "02:00:00:00:00:02", true); // without an address of its own now
  expect(builtInCards(folder)?.sort()).toEqual(["02:00:00:00:00:01", "02:00:00:00:00:02"]);
  await rm(folder, { recursive: true });
});
