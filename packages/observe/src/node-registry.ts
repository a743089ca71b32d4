/** Metrics of one node agent: the machine, its runs, and the worker processes that it watches. */
import type { Exposition } from "./registry.ts";

export type NodeFacts = {
  readonly cpus: number;
  readonly memoryBytes: number;
  readonly devices: readonly { readonly kind: string }[];
};

export interface NodeRegistry extends Exposition {
  /** The worker processes there are now, by run. */
  workers(byRun: Readonly<Record<string, readonly string[]>>): void;
  /** A heartbeat of a worker: how long its event loop was busy, and its memory. */
  beat(run: string, beat: { readonly worker: string; readonly rssBytes: number; readonly busyMs: number }): void;
  /** A worker process has ended. */
  exited(run: string, worker: string, how: "exit" | "signal" | "failure"): void;
  connected(isConnected: boolean): void;
}

export async function createNodeRegistry(node: string, facts: NodeFacts): Promise<NodeRegistry> {
  const { Counter, collectDefaultMetrics, Gauge, Registry } = await import("prom-client");
  const registry = new Registry();
  registry.setDefaultLabels({ node });
  collectDefaultMetrics({ register: registry });
  const common = (name: string, help: string, labelNames: readonly string[] = []) => ({
    name: `treadle_node_${name}`,
    help,
    labelNames,
    registers: [registry],
  });
  new Gauge(common("cpus", "processor cores")).set(facts.cpus);
  new Gauge(common("memory_bytes", "memory of the machine")).set(facts.memoryBytes);
  const devices = new Gauge(common("devices", "accelerators and custom devices", ["kind"]));
  for (const { kind } of facts.devices) devices.inc({ kind });
  const workers = new Gauge(common("workers", "worker processes", ["run"]));
  const memory = new Gauge(
    common("worker_resident_memory_bytes", "resident memory of a worker process", ["run", "worker"]),
  );
  const busy = new Gauge(common("worker_busy_seconds", "how long a worker has not answered", ["run", "worker"]));
  const exits = new Counter(common("worker_exits_total", "worker processes that ended", ["run", "how"]));
  const connected = new Gauge(common("control_plane_connected", "1 while the NATS server is reached"));
  const losses = new Counter(common("control_plane_losses_total", "times that the NATS server went away"));
  connected.set(1);
  return {
    contentType: registry.contentType,
    exposition: () => registry.metrics(),
    workers(byRun) {
      workers.reset();
      for (const [run, names] of Object.entries(byRun)) workers.set({ run }, names.length);
    },
    beat(run, { worker, rssBytes, busyMs }) {
      memory.set({ run, worker }, rssBytes);
      busy.set({ run, worker }, busyMs / 1000);
    },
    exited(run, worker, how) {
      exits.inc({ run, how });
      memory.remove({ run, worker });
      busy.remove({ run, worker });
    },
    connected(isConnected) {
      connected.set(isConnected ? 1 : 0);
      if (!isConnected) losses.inc();
    },
  };
}
