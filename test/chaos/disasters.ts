/** Everything that can be done to a running cluster, each with its end. */

import { setTimeout as delay } from "node:timers/promises";
import { Flood } from "../support/flood.ts";
import type { Part } from "./absences.ts";
import type { Disaster } from "./chaos.ts";
import type { ChaosCluster } from "./chaos-cluster.ts";
import { hangMs, isRunning } from "./struck-processes.ts";

type OfCluster = {
  readonly weight: number;
  readonly needsNetwork?: true;
  readonly strike: (
    cluster: ChaosCluster,
  ) => Promise<(() => Promise<unknown>) | undefined> | (() => Promise<unknown>) | undefined;
};

const disasters: Readonly<Record<string, OfCluster>> = {
  "worker killed": {
    weight: 4,
    strike: ({ workers, random }: ChaosCluster) => signalOne(workers(), random, "SIGKILL"),
  },
  "worker suspended": {
    weight: 3,
    strike: ({ workers, random }: ChaosCluster) => signalOne(workers(), random, "SIGSTOP"),
  },
  "agent killed": {
    weight: 2,
    strike: async (cluster: ChaosCluster) => {
      const place = cluster.somePlace();
      const back = cluster.absences.begin([`node ${place}`]);
      await cluster.agents[place]?.kill();
      return () => cluster.startAgent(place).then(back);
    },
  },
  "nodes lost": {
    weight: 2,
    strike: async (cluster: ChaosCluster) => {
      const kept = cluster.somePlace();
      const places = [...cluster.agents.keys()].filter((place) => place !== kept);
      const back = cluster.absences.begin(places.map((place): Part => `node ${place}`));
      await Promise.all(places.map((place) => cluster.agents[place]?.kill()));
      return () => Promise.all(places.map((place) => cluster.startAgent(place))).then(back);
    },
  },
  "agent suspended": {
    weight: 2,
    strike: ({ agents, somePlace, absences }: ChaosCluster) => {
      const place = somePlace();
      const agent = agents[place];
      if (agent === undefined || !isRunning(agent)) return undefined;
      const back = absences.begin([`node ${place}`]);
      agent.child.kill("SIGSTOP");
      return async () => {
        agent.child.kill("SIGCONT");
        back();
      };
    },
  },
  "NATS server killed": {
    weight: 2,
    strike: (cluster: ChaosCluster) => killServer(cluster),
  },
  "NATS server suspended": {
    weight: 1,
    strike: (cluster: ChaosCluster) => suspendServer(cluster),
  },
  "runner killed": {
    weight: 1,
    strike: async (cluster: ChaosCluster) => {
      const back = cluster.absences.begin(["runner"]);
      await cluster.killRunner();
      return async () => {
        cluster.resume();
        back();
      };
    },
  },
  "runner suspended": {
    weight: 1,
    strike: ({ runner, absences }: ChaosCluster) => {
      if (runner === undefined || !isRunning(runner)) return undefined;
      const back = absences.begin(["runner"]);
      runner.child.kill("SIGSTOP");
      return async () => {
        runner.child.kill("SIGCONT");
        back();
      };
    },
  },
  "door flooded": {
    weight: 2,
    strike: async ({ runner, agents, workers, random }: ChaosCluster) => {
      const own = [runner?.child.pid, ...agents.map((agent) => agent?.child.pid)];
      const pids = [...own, ...workers()].filter((pid) => pid !== undefined);
      const flood = new Flood();
      const pid = pids[Math.floor(random() ** 2 * pids.length)] as number;
      flood.at(pid);
      // None is struck whose doors are shut, or who hears nobody.
      for (let waitedMs = 0; flood.numConnected === 0 && waitedMs < 500; waitedMs += 20) await delay(20);
      if (flood.numConnected === 0) {
        flood.end();
        return undefined;
      }
      const again = setInterval(() => flood.at(pid), 100).unref(); // at those that it opens meanwhile, too
      return async () => {
        clearInterval(again);
        flood.end();
      };
    },
  },
  "child left behind": {
    weight: 2,
    strike: ({ workers, random }: ChaosCluster) => signalOne(workers(), random, "SIGUSR2"),
  },
  "agent hung": {
    weight: 1,
    strike: async ({ agents, somePlace, absences }: ChaosCluster) => {
      const place = somePlace();
      const agent = agents[place];
      if (agent === undefined || !isRunning(agent)) return undefined;
      agent.child.kill("SIGUSR2");
      const back = absences.begin([`node ${place}`]);
      setTimeout(back, hangMs).unref();
      agent.child.once("exit", back); // whoever takes its place does not hang
      return async () => {};
    },
  },
  "namesake started": {
    weight: 1,
    strike: async (cluster: ChaosCluster) => {
      const place = cluster.somePlace();
      return (await cluster.startNamesake(place)) ? () => cluster.startAgent(place) : undefined;
    },
  },
  "network cut": { weight: 2, needsNetwork: true, strike: (cluster: ChaosCluster) => cut(cluster, ["to", "from"]) },
  "network cut from a node": {
    weight: 1,
    needsNetwork: true,
    strike: (cluster: ChaosCluster) => cut(cluster, ["from"]),
  },
  "network cut to a node": { weight: 1, needsNetwork: true, strike: (cluster: ChaosCluster) => cut(cluster, ["to"]) },
};

export type Servers = Pick<ChaosCluster, "nats" | "absences" | "somePlace">;

export async function killServer({ nats, somePlace, absences }: Servers) {
  const place = somePlace();
  const server = nats.servers[place];
  const back = absences.begin([`server ${place}`]);
  await server?.stop("SIGKILL");
  return async () => {
    await server?.start();
    back();
  };
}

export async function suspendServer({ nats, somePlace, absences }: Servers) {
  const place = somePlace();
  const server = nats.servers[place];
  const back = absences.begin([`server ${place}`]);
  server?.signal("SIGSTOP");
  return async () => {
    server?.signal("SIGCONT");
    back();
  };
}

export async function signalOne(pids: readonly number[], random: () => number, signal: NodeJS.Signals) {
  const pid = pids[Math.floor(random() * pids.length)];
  if (pid === undefined) return undefined;
  try {
    process.kill(pid, signal);
  } catch {
    return undefined;
  }
  return async () => {
    try {
      if (signal === "SIGSTOP") process.kill(pid, "SIGCONT");
    } catch {
      // it was ended and replaced meanwhile
    }
  };
}

async function cut({ network, somePlace, absences }: ChaosCluster, ways: readonly ("to" | "from")[]) {
  const place = somePlace();
  const back = absences.begin([`node ${place}`, `server ${place}`]);
  for (const way of ways) await network?.cut(place, way);
  return async () => {
    for (const way of ways) await network?.mend(place, way);
    back();
  };
}

/** Those for which there is what it takes. */
export function clusterDisasters(cluster: ChaosCluster): Record<string, Disaster> {
  const possible = Object.entries(disasters).filter(([, { needsNetwork }]) => !needsNetwork || cluster.network);
  return Object.fromEntries(
    possible.map(([kind, { weight, strike }]) => [kind, { weight, strike: async () => strike(cluster) }]),
  );
}
