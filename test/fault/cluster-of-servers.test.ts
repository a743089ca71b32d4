/** One fault at a time in a run over three NATS servers and three node agents; the run goes on through all of them. */
import { afterAll, beforeAll, expect, test } from "vitest";
import { ChaosCluster } from "../chaos/chaos-cluster.ts";
import { randomOf } from "../soak/virtual-network.ts";
import { until } from "../support/cluster.ts";

let cluster: ChaosCluster;
beforeAll(async () => {
  cluster = await ChaosCluster.open(randomOf(1), () => {});
  cluster.resume(["cluster.minNodes=3"]);
  await until(() => cluster.steps >= 2, "two steps to begin with", 180_000);
}, 300_000);
afterAll(() => cluster[Symbol.asyncDispose](), 60_000);

const limitMs = 240_000;
const moreSteps = async (num = 3) => {
  const wanted = cluster.steps + num;
  await until(() => cluster.steps >= wanted, `step ${wanted}`, 180_000);
};
const events = () => cluster.runner?.events ?? [];
const deaths = () => events().filter(({ type }) => type === "worker-died").length;
/** What the runner says from now on. */
function listen(): (part: string) => Promise<unknown> {
  const before = cluster.runner?.lines().length ?? 0;
  return (part) =>
    until(
      () =>
        cluster.runner
          ?.lines()
          .slice(before)
          .some((line) => line.includes(part)) || undefined,
      `a line with '${part}'`,
      120_000,
    );
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
