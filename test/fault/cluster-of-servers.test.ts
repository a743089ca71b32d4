/** One fault at a time in a run over three NATS servers and three node agents; the run goes on through all of them. */
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { ChaosCluster } from "../chaos/chaos-cluster.ts";
import { randomOf } from "../soak/virtual-network.ts";
import { until } from "../support/cluster.ts";
import { canUnplug } from "../support/network.ts";

let cluster: ChaosCluster;
beforeAll(async () => {
  const said: string[] = [];
  cluster = await ChaosCluster.open(randomOf(1), (text) => said.push(text));
  if (canUnplug && !cluster.network) throw new Error(said.join("\n"));
  cluster.resume(["cluster.minNodes=3"]);
  await until(() => cluster.steps[0] >= 2, "two steps to begin with", 180_000);
}, 600_000);
afterEach(() => expect(cluster.gaveUp).toEqual([])); // it would be resumed
afterAll(() => cluster[Symbol.asyncDispose](), 60_000);

const limitMs = 240_000;
const moreSteps = async (num = 3) => {
  const wanted = cluster.steps[0] + num;
  await until(() => cluster.steps[0] >= wanted, `step ${wanted}`, 180_000);
};
const events = () => cluster.runner?.events ?? [];
const deaths = () => events().filter(({ type }) => type === "worker-died").length;
/** What runners say from now on. */
function listen(): (part: string) => Promise<unknown> {
  const lines = () => cluster.runners.flatMap((runner) => runner.lines());
  const before = lines().length;
  const isSaid = (part: string) =>
    lines()
      .slice(before)
      .some((line) => line.includes(part));
  return (part) => until(() => isSaid(part), `a line with '${part}'`, 120_000);
}

test(
  "S2: each of three NATS servers is killed in turn: the others take over, and no worker is lost",
  async () => {
    const before = deaths();
    for (const server of cluster.nats.servers) {
      await server.stop("SIGKILL");
      await moreSteps();
      await server.start();
    }
    await moreSteps();
    expect(deaths()).toBe(before);
  },
  limitMs,
);

test(
  "S2: a NATS server that is suspended, and answers nobody, is left for another",
  async () => {
    for (const server of cluster.nats.servers) {
      server.signal("SIGSTOP");
      await moreSteps(1);
      server.signal("SIGCONT");
    }
    await moreSteps();
  },
  limitMs,
);

test(
  "L3, S2: an agent that is suspended longer than its lease is lost; when it goes on, what it ran counts no more and it is used again",
  async () => {
    const said = listen();
    const agent = cluster.agents[1]?.child;
    agent?.kill("SIGSTOP");
    await said("node 'n1' is lost: it was silent");
    await moreSteps();
    agent?.kill("SIGCONT");
    await said("node 'n1' has joined");
    await moreSteps();
  },
  limitMs,
);

test(
  "J1, S2: a killed runner is resumed, and makes steps, while most servers are away and the last one keeps nothing",
  async () => {
    const away = cluster.nats.servers.slice(0, 2);
    await cluster.killRunner();
    await Promise.all(away.map((server) => server.stop("SIGKILL")));
    cluster.resume();
    await moreSteps();
    await Promise.all(away.map((server) => server.start()));
    await moreSteps();
  },
  limitMs,
);

// What is cut one way soon stands still both ways: without acknowledgements TCP sends no more.
test.skipIf(!canUnplug).each([
  { place: 0, way: "from", server: "that it uses is cut off with it" },
  { place: 0, way: "to", server: "that it uses is cut off with it" },
  { place: 1, way: "from", server: "that it uses is elsewhere" },
  { place: 1, way: "to", server: "that it uses is elsewhere" },
] as const)(
  "L3, S2: a node is lost and used again when its network is cut $way it and the NATS server $server",
  async ({ place, way }) => {
    const said = listen();
    await cluster.network?.cut(place, way);
    try {
      await said(`node 'n${place}' is lost: it was silent`);
      await moreSteps(1);
    } finally {
      await cluster.network?.mend(place, way);
    }
    await said(`node 'n${place}' has joined`);
    await moreSteps(1);
    // What ran there before is gone: two ranks of each component are left.
    await until(() => cluster.workers().length === 4, "four workers and no more", 60_000);
  },
  limitMs,
);

test("J1, S4: through all of that every prompt was trained once, and nothing is left", () => cluster.judge(), limitMs);
