/** A moleculer node over TCP; run as a process of its own it serves `items.put`. */
import { createServer } from "node:net";
import type { ServiceBroker } from "moleculer";

export async function startBroker(nodeID: string, urls: readonly string[], port?: number): Promise<ServiceBroker> {
  const { default: moleculer } = await import("moleculer");
  const broker = new moleculer.ServiceBroker({
    nodeID,
    logger: false,
    transporter: { type: "TCP", options: { udpDiscovery: false, urls: [...urls], port: port ?? null } },
  });
  if (nodeID === "far") {
    broker.createService({ name: "items", actions: { put: { handler: () => 1 } } });
  }
  await broker.start();
  return broker;
}

if (process.argv[2] === "far" && process.send) {
  const probe = createServer().listen(0, "127.0.0.1", () => {
    const { port } = probe.address() as { port: number };
    probe.close(async () => {
      await startBroker("far", [`127.0.0.1:${port}/far`], port);
      process.send?.(port);
    });
  });
  process.on("disconnect", () => process.exit(0));
}
