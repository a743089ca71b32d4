import type { Rendezvous } from "@treadle/runtime";
import { afterEach, expect, test } from "vitest";
import { pidOf, startCluster, type TestCluster, until } from "../support/cluster.ts";
import { type RendezvousConfig, RendezvousWorker } from "../support/workers/rendezvous.ts";

let world: TestCluster;
afterEach(() => world.close());

async function launch(config: RendezvousConfig, ranks = 3) {
  world = await startCluster({ cluster: { devices: 1 } });
  return world.cluster.launch(RendezvousWorker, config, { ranks: { fixed: ranks } });
}

test.each(["setup", "load"] as const)(
  "RV1: all ranks get one place in %s, on the loopback interface, and join there over TCP",
  async (meetsIn) => {
    const group = await launch({ meetsIn });
    const all = await group.met();
    expect(all.map(({ welcome }) => welcome)).toEqual(["welcome", "welcome", "welcome"]);
    expect(new Set(all.map(({ place }) => JSON.stringify(place))).size).toBe(1);
    expect(all[0]?.place).toMatchObject({ host: "127.0.0.1", listen: "127.0.0.1", port: expect.any(Number) });
  },
);

test("RV2: after a rank was replaced the group meets again, and the earlier meeting's key opens nothing", async () => {
  const group = await launch({ meetsIn: "setup" });
  const [before] = await group.met();
  process.kill(pidOf(world.events, "rendezvous/1"), "SIGKILL");
  await until(() => world.events.some(({ type }) => type === "worker-restarted"), "a rank to be replaced", 120_000);
  const all = await group.met();
  expect(all.map(({ welcome }) => welcome)).toEqual(["welcome", "welcome", "welcome"]);
  const [old, present] = [before?.place as Rendezvous, all[0]?.place as Rendezvous];
  expect(present.key).not.toBe(old.key);
  expect(await group.onRanks(1).knock(old.key).first()).toBe("stale");
  expect(await group.onRanks(1).knock(present.key).first()).toBe("welcome");
});

test("in a call the ranks meet again and again, each time under another key", async () => {
  const group = await launch({ meetsIn: "calls" });
  const keys: unknown[] = [];
  for (let round = 0; round < 2; round++) {
    await group.join();
    const [first] = await group.met();
    expect(first?.welcome).toBe("welcome");
    keys.push(first?.place?.key);
  }
  expect(new Set(keys).size).toBe(2);
});

test("RV3: a rank that does not come fails the start, by its name", async () => {
  const group = await launch({ meetsIn: "setup", absent: 2, timeoutMs: 10_000 });
  await expect(Promise.resolve(group.met())).rejects.toMatchObject({
    code: "worker.setup-failed",
    message: expect.stringMatching(
      /the ranks of 'rendezvous' did not meet within 10000 ms: 'rendezvous\/2' did not come/,
    ),
  });
});
