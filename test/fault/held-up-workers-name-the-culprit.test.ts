/** W3, S1: real processes that wait for one which hangs or is stopped fail by its name, in the time that they are given. */
import { afterEach, expect, test } from "vitest";
import { pidOf, startCluster, type TestCluster, until } from "../support/cluster.ts";
import { MeetingRanks, Publisher, Puller } from "../support/workers/awaiting.ts";

let world: TestCluster;
afterEach(() => world.close());

/** Long enough for all that is not held up, on a machine that does other work as well. */
const peerTimeoutMs = 4000;

async function start(limitMs = peerTimeoutMs) {
  world = await startCluster({
    cluster: { devices: 4 },
    // Nobody else ends what hangs.
    supervision: { peerTimeoutMs: limitMs, heartbeatTimeoutMs: 600_000, stallMs: 600_000 },
  });
  return world.cluster;
}

const late = (worker: string, why: string) => ({
  code: "worker.late",
  details: { culprit: worker, why },
  origin: { worker },
  message: expect.stringContaining("supervision.peerTimeoutMs"),
});

test.each(["broadcast", "gather", "allReduceSum"] as const)(
  "a rank that does not come to a %s is named",
  async (collective) => {
    const group = (await start()).launch(MeetingRanks, {}, { name: "ranks", ranks: { fixed: 3 } });
    await group.meet(collective);
    const culprit = collective === "broadcast" ? 0 : 2;
    await expect(Promise.resolve(group.meet(collective, culprit))).rejects.toMatchObject(
      late(`ranks/${culprit}`, "elsewhere"),
    );
    expect(await world.failure).toMatchObject({ code: "worker.late", origin: { worker: `ranks/${culprit}` } });
  },
);

test("a rank that is stopped while a broadcast goes to it is named", async () => {
  const group = (await start()).launch(MeetingRanks, {}, { name: "ranks", ranks: { fixed: 3 } });
  await group.meet("broadcast");
  const pid = pidOf(world.events, "ranks/1");
  process.kill(pid, "SIGSTOP");
  try {
    await expect(Promise.resolve(group.meet("broadcast"))).rejects.toMatchObject(late("ranks/1", "silent"));
  } finally {
    process.kill(pid, "SIGCONT");
  }
});

test("a publisher whose weights never come is named by whoever pulls them, with the version it has", async () => {
  const cluster = await start();
  const publisher = cluster.launch(Publisher, { hangs: true }, { name: "publisher", ranks: { fixed: 1 } });
  const puller = cluster.launch(Puller, {}, { name: "puller", ranks: { fixed: 2 } });
  await expect(Promise.resolve(puller.pull(publisher))).rejects.toMatchObject({
    ...late("publisher/0", "elsewhere"),
    message: expect.stringMatching(
      /^'puller\/[01]' waited \d+ ms for weights newer than version '0' of 'publisher\/0'/,
    ),
  });
});

test("a publisher that is stopped is named, and one that is not brings its weights", async () => {
  const cluster = await start();
  const publisher = cluster.launch(Publisher, { hangs: false }, { name: "publisher", ranks: { fixed: 1 } });
  const puller = cluster.launch(Puller, {}, { name: "puller", ranks: { fixed: 2 } });
  expect(await puller.pull(publisher)).toEqual([1, 1]);
  const pid = pidOf(world.events, "publisher/0");
  process.kill(pid, "SIGSTOP");
  try {
    await expect(Promise.resolve(puller.pull(publisher))).rejects.toMatchObject(late("publisher/0", "silent"));
  } finally {
    process.kill(pid, "SIGCONT");
  }
});

test("a publisher that dies has its weights pulled again of the one that takes its place", async () => {
  const cluster = await start(60_000); // a process starts slowly on a machine that does much else
  const publisher = cluster.launch(Publisher, { hangs: false }, { name: "publisher", ranks: { fixed: 1 } });
  const puller = cluster.launch(Puller, {}, { name: "puller", ranks: { fixed: 1 } });
  await cluster.start();
  const pid = pidOf(world.events, "publisher/0");
  process.kill(pid, "SIGSTOP");
  const pulled = puller.pull(publisher);
  await new Promise((resolve) => setTimeout(resolve, 500));
  process.kill(pid, "SIGKILL");
  expect(await pulled).toEqual([1]);
  expect(world.events.some(({ type }) => type === "worker-restarted")).toBe(true);
});

test("a broadcast crosses from one group to all ranks of another, and goes on after one of these was replaced", async () => {
  const cluster = await start();
  const publisher = cluster.launch(Publisher, { hangs: false }, { name: "publisher", ranks: { fixed: 1 } });
  const ranks = cluster.launch(MeetingRanks, {}, { name: "ranks", ranks: { fixed: 3 } });
  const length = 7 * 1024 * 1024; // 28 MiB, which are viewed in place
  for (const tag of ["first", "second"]) {
    const [sums] = await Promise.all([ranks.receive("publisher/0", tag), publisher.publish(ranks, tag, length)]);
    expect(sums).toEqual([length, length, length]);
    if (tag === "second") break;
    process.kill(pidOf(world.events, "ranks/1"), "SIGKILL");
    await until(() => world.events.some(({ type }) => type === "worker-restarted"), "a rank to be replaced");
  }
});
