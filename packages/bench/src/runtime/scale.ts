/**
 * Many workers on three node agents and three NATS servers, all on this machine: what the runner and the control plane do
 * for 10,000 trajectories under way, and how long the loss of a worker and of a NATS server is felt.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { readFile } from "node:fs/promises";
import { freemem } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { type ControlPlane, median, NatsConfig, type RunEvent } from "@treadle/contracts";
import { openNatsControlPlane } from "@treadle/transport";
import { freePort, type NatsServer, startNatsServer } from "@treadle/transport/testing";
import { z } from "zod";
import { moduleFile, scriptArguments } from "../processes.ts";
import { type BenchRow, row, timed } from "../row.ts";
import { openBenchCluster } from "./bench-cluster.ts";
import { Chunk } from "./items.ts";
import { TrajectoryWorker } from "./workers/trajectory-worker.ts";

const mostWorkers = 200;
const trajectories = 10_000;
const nodes = ["a", "b", "c"];
/** of a worker process, the most that was measured: compiled, or with its loader; a third of what is free stays free */
const workerMiB = process.env["TREADLE_COMPILED"] === "1" ? 60 : 140;
const startTimeoutMs = 120_000;
const deaths = 3;
const Traffic = z.looseObject({ in_msgs: z.int(), out_msgs: z.int() });

export async function benchScale(): Promise<BenchRow[]> {
  const ends: (() => unknown)[] = [];
  const close = async () => {
    for (const end of ends.splice(0).reverse()) await end();
  };
  try {
    const servers = await startServers();
    ends.push(() => Promise.all(servers.map(({ server }) => server[Symbol.asyncDispose]())));
    const url = servers.map(({ server }) => server.url).join(",");
    const agents = await Promise.all(nodes.map((name) => startAgent(name, url, ends)));
    return await measure(servers, url, agents.length);
  } finally {
    await close();
  }
}

type MonitoredServer = { readonly server: NatsServer; readonly monitor: string };

async function startServers(): Promise<MonitoredServer[]> {
  const routes = await Promise.all(nodes.map(() => freePort()));
  const all = routes.map((port) => `nats://127.0.0.1:${port}`).join(",");
  return Promise.all(
    routes.map(async (port, index) => {
      const monitor = await freePort();
      const cluster = ["--name", `s${index}`, "--cluster_name", "bench", "--cluster", `nats://127.0.0.1:${port}`];
      const server = await startNatsServer({ args: [...cluster, "--routes", all, "-m", String(monitor)] });
      return { server, monitor: `http://127.0.0.1:${monitor}/varz` };
    }),
  );
}

async function startAgent(name: string, url: string, ends: (() => unknown)[]): Promise<ChildProcess> {
  const script = fileURLToPath(new URL(moduleFile("./scale-node"), import.meta.url));
  const child = spawn(process.execPath, [...scriptArguments(script), name, url], {
    stdio: ["pipe", "pipe", "inherit"],
  });
  ends.push(async () => {
    const exited = once(child, "exit");
    child.stdin?.end();
    const timer = setTimeout(() => child.kill("SIGKILL"), 10_000);
    if (child.exitCode === null && child.signalCode === null) await exited;
    clearTimeout(timer);
  });
  await once(child.stdout as NodeJS.ReadableStream, "data", { signal: AbortSignal.timeout(startTimeoutMs) });
  return child;
}

async function measure(servers: readonly MonitoredServer[], url: string, numAgents: number): Promise<BenchRow[]> {
  const fits = Math.floor(((freemem() / 2 ** 20) * (2 / 3)) / workerMiB);
  const asked = Number(process.env["TREADLE_SCALE_WORKERS"] ?? mostWorkers);
  const ranks = Math.max(numAgents, Math.min(asked, fits));
  const events: RunEvent[] = [];
  await using bench = await openBenchCluster(
    {
      cluster: {
        devices: ranks,
        nats: { url: url.split(","), replicas: 3 },
        minNodes: numAgents,
        nodeWaitMs: startTimeoutMs,
      },
      placement: { mode: "spatial" },
      batch: trajectories,
      flow: { granularity: 1, capacity: trajectories },
      supervision: { startTimeoutMs: 1_200_000, heartbeatTimeoutMs: 60_000, maxRestarts: deaths + 2 },
    },
    (event) => events.push(event),
  );
  const { cluster } = bench;
  const worker = cluster.launch(TrajectoryWorker, { turns: 5, turnMs: 4000 }, { ranks: { fixed: ranks } });
  const startMs = await timed(() => cluster.start());
  const prompts = cluster.channel("prompts", Chunk);
  const episodes = cluster.channel("episodes", Chunk);
  const title = `${ranks} workers on ${numAgents} agents`;
  const common = { notMeasured: "several machines; workers that compute, which would take the cores from the rest" };

  const memoryMiB = await memoryOf(
    events.flatMap((event) => (event.type === "worker-started" ? (event.pid ?? []) : [])),
  );
  const idle = await during(servers, () => sleep(5000));
  let step = 0;
  const make = async (count: number, share: number) => {
    cluster.step = ++step;
    await prompts.put(...Array.from({ length: count }, (_, id) => ({ id })));
    const calls = worker.generate(prompts.source, episodes.sink, share);
    let made = 0;
    for await (const _ of episodes) made++;
    await calls;
    if (made !== count) throw new Error(`${made} trajectories of ${count} were made`);
  };
  const busy = await during(servers, () => make(trajectories, Math.ceil(trajectories / ranks)));
  const restarts = await killWorkers(events, () => make(ranks, 1));
  const failOverMs = await failOver(servers, url);
  return [
    row({ name: `${title}: started`, value: startMs / 1000, unit: "s", ...common }),
    row({
      name: `${title}, idle: memory of a worker, its part of what it shares with others included`,
      value: memoryMiB,
      unit: "MiB",
      ...common,
    }),
    row({ name: `${title}, idle: messages of the control plane`, value: idle.messages, unit: "messages/s", ...common }),
    row({ name: `${title}, idle: the runner's share of a core`, value: idle.cpuPercent, unit: "%", ...common }),
    row({
      name: `${title}, ${trajectories} trajectories under way for ${busy.seconds.toFixed(0)} s: messages of the control plane`,
      value: busy.messages,
      unit: "messages/s",
      ...common,
    }),
    row({
      name: `${title}, ${trajectories} trajectories under way: the runner's share of a core`,
      value: busy.cpuPercent,
      unit: "%",
      ...common,
    }),
    row({
      name: `${title}: a worker that is killed is replaced, ready for calls`,
      value: median(restarts) / 1000,
      unit: "s",
      ...common,
    }),
    row({
      name: "three NATS servers, each killed in turn: what must survive can be written again, the longest time",
      value: failOverMs / 1000,
      unit: "s",
      notMeasured: "a server whose machine goes silent without closing its connections",
    }),
  ];
}

/** The median of the processes' proportional set sizes, in MiB; null where the system does not tell. */
async function memoryOf(pids: readonly number[]): Promise<number | null> {
  const sizes = await Promise.all(
    pids.map(async (pid) => {
      const text = await readFile(`/proc/${pid}/smaps_rollup`, "utf8").catch(() => "");
      return Number(/^Pss:\s+(\d+) kB/m.exec(text)?.[1] ?? Number.NaN) / 1024;
    }),
  );
  const known = sizes.filter((size) => !Number.isNaN(size));
  return known.length === 0 ? null : median(known);
}

type During = { readonly seconds: number; readonly messages: number; readonly cpuPercent: number };

/** Messages that the servers took from clients and each other, and processor time of this process, which is the runner. */
async function during(servers: readonly MonitoredServer[], act: () => Promise<unknown>): Promise<During> {
  const count = async () => {
    const counts = await Promise.all(
      servers.map(async ({ monitor }) => Traffic.parse(await (await fetch(monitor)).json()).in_msgs),
    );
    return counts.reduce((sum, each) => sum + each, 0);
  };
  const before = await count();
  const cpu = process.cpuUsage();
  const seconds = (await timed(act)) / 1000;
  const { user, system } = process.cpuUsage(cpu);
  return {
    seconds,
    messages: ((await count()) - before) / seconds,
    cpuPercent: ((user + system) / 1e6 / seconds) * 100,
  };
}

/** Milliseconds from the kill to the replacement that takes calls. */
async function killWorkers(events: RunEvent[], keepBusy: () => PromiseLike<unknown>): Promise<number[]> {
  const times: number[] = [];
  for (let death = 0; death < deaths; death++) {
    const victim = events.findLast(
      (event) => event.type === "worker-started" && event.worker === `trajectory/${death}`,
    );
    if (victim?.type !== "worker-started" || victim.pid === undefined) throw new Error("no worker has started");
    const isBack = () => events.some((event) => event.type === "worker-restarted" && event.worker === victim.worker);
    const startedMs = performance.now();
    process.kill(victim.pid, "SIGKILL");
    while (!isBack()) {
      if (performance.now() - startedMs > startTimeoutMs) throw new Error(`'${victim.worker}' was not replaced`);
      await sleep(5);
    }
    times.push(performance.now() - startedMs);
    await keepBusy();
  }
  return times;
}

/** Each server is killed in turn and started again: milliseconds from the kill to the next write that is kept, the longest. */
async function failOver(servers: readonly MonitoredServer[], url: string): Promise<number> {
  const nats = NatsConfig.parse({ url: url.split(","), replicas: 3 });
  const plane = await openNatsControlPlane({ nats, name: "treadle bench" });
  try {
    const times: number[] = [];
    for (const { server } of servers) {
      await untilKept(plane);
      await server.stop("SIGKILL");
      times.push(await untilKept(plane));
      await server.start();
      await sleep(3000); // it takes over what it has missed
    }
    return Math.max(...times);
  } finally {
    await plane.close();
  }
}

/** Milliseconds until a write is kept. */
async function untilKept(plane: ControlPlane): Promise<number> {
  const startedMs = performance.now();
  for (let attempt = 0; performance.now() - startedMs < startTimeoutMs; attempt++) {
    const kept = plane.keep("probe", attempt).then(
      () => true,
      () => false,
    );
    if (await Promise.race([kept, sleep(1000, false)])) return performance.now() - startedMs;
    await sleep(20);
  }
  throw new Error(`nothing could be written within ${startTimeoutMs} ms`);
}
