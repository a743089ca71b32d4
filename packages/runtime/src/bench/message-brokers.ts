/** Small messages by other means: JetStream's acknowledged publish and moleculer's calls. Both are development tools. */
import { fork } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import { startNatsServer } from "@treadle/transport/testing";
import { moduleFile } from "./bench-cluster.ts";
import { smallItem } from "./items.ts";
import { median, timed } from "./row.ts";

export type BrokerRate = { readonly rate: number } | { readonly missing: string };

const inFlight = 256;
const rounds = 4;

/** Calls `act` `count` times with so many under way at once. */
async function pipelined(count: number, act: () => Promise<unknown>): Promise<void> {
  let next = 0;
  const lane = async () => {
    while (next++ < count) await act();
  };
  await Promise.all(Array.from({ length: inFlight }, lane));
}

async function rateOf(count: number, act: () => Promise<unknown>): Promise<number> {
  const rates: number[] = [];
  for (let round = 0; round < rounds + 1; round++) {
    const ms = await timed(() => pipelined(count, act));
    if (round > 0) rates.push((count / ms) * 1000);
  }
  return median(rates);
}

/** Publishes to a stream in memory, the fastest that JetStream has. */
export async function measureJetStream(sizeBytes: number): Promise<BrokerRate> {
  try {
    await using server = await startNatsServer();
    const { connect } = await import("@nats-io/transport-node");
    const { jetstream, jetstreamManager, StorageType } = await import("@nats-io/jetstream");
    const connection = await connect({ port: server.port });
    try {
      const manager = await jetstreamManager(connection);
      await manager.streams.add({
        name: "bench",
        subjects: ["bench.items"],
        storage: StorageType.Memory,
        max_msgs: 10_000,
      });
      const stream = jetstream(connection);
      const item = smallItem(1, sizeBytes);
      return { rate: await rateOf(4000, () => stream.publish("bench.items", JSON.stringify(item))) };
    } finally {
      await connection.close();
    }
  } catch (error) {
    return { missing: `JetStream could not be measured: ${(error as Error).message}` };
  }
}

/** Calls an action of a node in another process; the answer is a number, as small as they come. */
export async function measureMoleculer(sizeBytes: number): Promise<BrokerRate> {
  try {
    const { startBroker } = await import("./moleculer-node.ts");
    const script = fileURLToPath(new URL(moduleFile("./moleculer-node"), import.meta.url));
    const far = fork(script, ["far"], { stdio: ["ignore", "ignore", "inherit", "ipc"] });
    try {
      const [port] = (await Promise.race([
        once(far, "message"),
        once(far, "exit").then(() => {
          throw new Error("its node ended at once");
        }),
      ])) as [number];
      const broker = await startBroker("near", [`127.0.0.1:${port}/far`]);
      try {
        await broker.waitForServices("items", 20_000);
        const item = smallItem(1, sizeBytes);
        return { rate: await rateOf(4000, () => broker.call("items.put", item)) };
      } finally {
        await broker.stop();
      }
    } finally {
      far.kill("SIGKILL");
    }
  } catch (error) {
    return { missing: `moleculer could not be measured: ${(error as Error).message}` };
  }
}
