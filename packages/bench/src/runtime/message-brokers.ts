/** Small messages by other means: JetStream's acknowledged publish and moleculer's calls. Both are development tools. */
import { fork } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import { startNatsServer } from "@treadle/transport/testing";
import { moduleFile, scriptArguments } from "../processes.ts";
import { smallItem } from "./items.ts";

export type Broker = AsyncDisposable & { readonly send: () => Promise<unknown> };

/** Publishes to a stream in memory, the fastest that JetStream has. */
export async function openJetStream(sizeBytes: number): Promise<Broker> {
  const server = await startNatsServer();
  try {
    const { connect } = await import("@nats-io/transport-node");
    const { jetstream, jetstreamManager, StorageType } = await import("@nats-io/jetstream");
    const connection = await connect({ port: server.port });
    const manager = await jetstreamManager(connection);
    await manager.streams.add({
      name: "bench",
      subjects: ["bench.items"],
      storage: StorageType.Memory,
      max_msgs: 10_000,
    });
    const stream = jetstream(connection);
    const item = smallItem(1, sizeBytes);
    return {
      send: () => stream.publish("bench.items", JSON.stringify(item)),
      async [Symbol.asyncDispose]() {
        await connection.close();
        await server[Symbol.asyncDispose]();
      },
    };
  } catch (error) {
    await server[Symbol.asyncDispose]();
    throw error;
  }
}

/** Calls an action of a node in another process; the answer is a number, as small as they come. */
export async function openMoleculer(sizeBytes: number): Promise<Broker> {
  const { startBroker } = await import("./moleculer-node.ts");
  const script = fileURLToPath(new URL(moduleFile("./moleculer-node"), import.meta.url));
  const execArgv = scriptArguments(script).slice(0, -1);
  const far = fork(script, ["far"], { execArgv, stdio: ["ignore", "ignore", "inherit", "ipc"] });
  try {
    const [port] = (await Promise.race([
      once(far, "message"),
      once(far, "exit").then(() => {
        throw new Error("its node ended at once");
      }),
    ])) as [number];
    const broker = await startBroker("near", [`127.0.0.1:${port}/far`]);
    await broker.waitForServices("items", 20_000);
    const item = smallItem(1, sizeBytes);
    return {
      send: () => broker.call("items.put", item),
      async [Symbol.asyncDispose]() {
        await broker.stop();
        far.kill("SIGKILL");
      },
    };
  } catch (error) {
    far.kill("SIGKILL");
    throw error;
  }
}
