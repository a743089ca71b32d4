/** Workers that need no device run beside those that hold all of them, and take none. */
import { afterEach, expect, test } from "vitest";
import { startCluster, type TestCluster } from "../support/cluster.ts";
import { JudgeWorker } from "../support/workers/judging.ts";
import { Numbers, ProbeWorker } from "../support/workers/probe.ts";

let world: TestCluster;
afterEach(() => world.close());

test("a judge judges while its producer and its consumer hold every device, and cannot lock one", async () => {
  world = await startCluster({ cluster: { devices: 2 }, placement: { mode: "spatial" } });
  const { cluster } = world;
  const maker = cluster.launch(ProbeWorker, {}, { name: "maker" });
  const judge = cluster.launch(JudgeWorker, {}, { name: "judge", devices: "none" });
  const trainer = cluster.launch(ProbeWorker, {}, { name: "trainer" });
  const items = cluster.channel("items", Numbers);
  const judged = cluster.channel("judged", Numbers);
  const making = maker.produceLocked(items.sink, [1, 2, 3]);
  const judging = judge.judge(items.source, judged.sink);
  const [consumed] = await trainer.consumeLocked(judged.source);
  expect(consumed).toEqual({ seen: [2, 4, 6], isSound: true });
  await making;
  expect(await judging).toEqual([{ devices: [], seen: 3 }]);
  const devicesOf = (name: string) => cluster.place().components[name]?.ranks.map(({ devices }) => devices);
  expect([devicesOf("maker"), devicesOf("judge"), devicesOf("trainer")]).toEqual([[["cpu:0"]], [[]], [["cpu:1"]]]);
  await expect(judge.lockAnyway()).rejects.toThrow("'lockAnyway' locks devices, but its component runs without any");
});

test("what loads onto devices, or is about them, is refused without them", async () => {
  const none = { devices: "none" } as const;
  world = await startCluster({ cluster: { devices: 1 } });
  world.cluster.launch(ProbeWorker, {}, { name: "loads", ...none });
  expect(() => world.cluster.place()).toThrow(
    "component 'loads' cannot run without devices: its class loads onto them",
  );
  expect(() => world.cluster.launch(JudgeWorker, {}, { ...none, devicesPerRank: 2 })).toThrow("with 'devicesPerRank'");
  await world.close();
  world = await startCluster({ placement: { components: { judge: "none" }, elastic: { judge: { min: 1 } } } });
  world.cluster.launch(JudgeWorker, {});
  expect(() => world.cluster.place()).toThrow("component 'judge' cannot be elastic without devices");
});
