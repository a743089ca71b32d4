import { join } from "node:path";
import { afterEach, expect, test } from "vitest";
import { startCluster, type TestCluster, until } from "../support/cluster.ts";
import { MeetingWorker } from "../support/workers/meeting.ts";

let world: TestCluster;
afterEach(() => world.close());

/** More than the processes that come up on a node at the same time. */
const numRanks = 9;

test("WH7: all ranks of a group meet in their set-up, however many they are, by messages and collectives", async () => {
  world = await startCluster({ cluster: { devices: 1 } });
  const group = await world.cluster.launch(MeetingWorker, { meets: "all" }, { ranks: { fixed: numRanks } });
  const all = await group.met();
  expect(all).toEqual(Array(numRanks).fill({ address: "the first rank's", sum: (numRanks * (numRanks + 1)) / 2 }));
});

test("a rank that dies while its group meets has the whole group meet again", async () => {
  world = await startCluster({ cluster: { devices: 1 } });
  const meets = { dies: join(world.folder, "died") };
  const group = await world.cluster.launch(MeetingWorker, { meets }, { ranks: { fixed: 2 } });
  expect(await group.met()).toEqual(Array(2).fill({ address: "the first rank's", sum: 3 }));
  const deaths = world.events.filter((event) => event.type === "worker-died");
  expect(deaths).toContainEqual(expect.objectContaining({ worker: "meeting/1", signal: "SIGKILL" }));
});

test("S3: a start in which ranks wait for each other says who waits for what of whom", async () => {
  world = await startCluster({ cluster: { devices: 1 } });
  const group = await world.cluster.launch(MeetingWorker, { meets: "circle" }, { ranks: { fixed: 2 } });
  group.met().then(undefined, () => {});
  const wait = "'meeting/0' waits for a message (tagged 'hello') of 'meeting/1'";
  const text = () => world.cluster.loop.state.standstill().text;
  await until(() => text().includes(wait) && text().includes("this is a deadlock"), "the circle to be told", 120_000);
});
