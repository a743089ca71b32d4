/** A client of an action service in another process, over gRPC, and its commands one after another. */
import { once } from "node:events";
import * as grpc from "@grpc/grpc-js";
import { serviceDefinition } from "@treadle/actions/internal";
import { z } from "zod";
import { startChild } from "../runtime/network/child.ts";

const Client = grpc.makeClientConstructor(serviceDefinition(), "Actions");
const Finished = z.object({ finished: z.object({ exit_code: z.literal(0) }) });

export type ServiceClient = {
  /** runs a command on so many cores */
  run(command: readonly string[], cores: number): Promise<void>;
  /** a call that does nothing */
  call(): Promise<void>;
  close(): Promise<void>;
};

export async function openServiceClient(driver: "cgroup" | "process"): Promise<ServiceClient> {
  const child = await startChild("../actions/service-process", { driver });
  const { address } = z.object({ address: z.string() }).parse(child.ready);
  const client = new Client(address, grpc.credentials.createInsecure());
  type Unary = (message: object, callback: (error: grpc.ServiceError | null) => void) => void;
  const unary = (method: string, message: object): Promise<void> =>
    new Promise((resolve, reject) =>
      (client[method] as Unary).call(client, message, (error) => (error === null ? resolve() : reject(error))),
    );
  const close = async (): Promise<void> => {
    client.close();
    await child[Symbol.asyncDispose]();
  };
  try {
    await unary("OpenTrajectory", { trajectory: "one" });
  } catch (error) {
    await close();
    throw error;
  }
  return {
    async run(command, cores) {
      const request = { trajectory: "one", kind: "sleep", cost: { cpu: { fixed: cores } }, command };
      const events = (client.Submit as (message: object) => grpc.ClientReadableStream<unknown>).call(client, request);
      let last: unknown;
      events.on("data", (event) => {
        last = event;
      });
      await once(events, "end");
      Finished.parse(last);
    },
    async call() {
      await unary("Cancel", { action: "none" });
    },
    close,
  };
}
