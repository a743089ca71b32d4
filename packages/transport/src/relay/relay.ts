/**
 * Links between processes of which neither can dial the other: their bytes go by way of NATS. On each machine one relay, on
 * a thread of its own, serves the processes of a run there. A process dials its relay's unix socket and names whom it
 * wants; the relay opens a tunnel to that member's relay, which dials the process. What passes is the link's own bytes, so
 * frames, bounds, handshake and token are those of any other link, end to end; between the relays they are sealed.
 *
 * Owner of: the thread. The tunnels, and what they promise (TU1 to TU6), are in `tunnel.ts`, `tunnel-seal.ts` and `openings.ts`.
 */
import { Worker as Thread } from "node:worker_threads";
import { type NatsConfig, TreadleError } from "@treadle/contracts";
import { threadEntry } from "../control-plane/nats-connection.ts";
import { natsOptions } from "../control-plane/open-nats-connection.ts";
import type { RelayThreadOptions } from "./relay-thread.ts";

export type RelayOptions = {
  readonly nats: NatsConfig;
  readonly runId: string;
  /** shared secret of the run */
  readonly token: string;
  /** a node's name, or `runner` */
  readonly member: string;
  /** unix socket on which processes of this machine ask for others; without it none does */
  readonly path?: string | undefined;
  /** whom others may ask for here: a port of this machine, by name; else the sockets beside `path` */
  readonly ports: Readonly<Record<string, { readonly host: string; readonly port: number }>>;
};

export type Relay = { close(): Promise<void> };

/** Rejects with `control-plane.unreachable` or `control-plane.refused`. */
export async function openRelay(options: RelayOptions): Promise<Relay> {
  const { nats, runId, token, member, path, ports } = options;
  const data: RelayThreadOptions = {
    nats: natsOptions({ nats, name: `treadle relay ${member}` }),
    subject: `${nats.subjectPrefix}.relay.${runId}`,
    member,
    token,
    path,
    ports,
  };
  const thread = new Thread(threadEntry("relay/relay-thread.ts"), {
    workerData: data,
    execArgv: [],
    env: {},
  });
  const exited = new Promise<void>((resolve) => thread.once("exit", () => resolve()));
  try {
    await new Promise<void>((resolve, reject) => {
      const fail = (message: string) =>
        reject(new TreadleError("control-plane.unreachable", `no relay over NATS: ${message}`));
      thread.once("message", (failure: string | undefined) => (failure === undefined ? resolve() : fail(failure)));
      thread.on("error", (error) => fail(error.message));
      thread.once("exit", () => fail("its thread has ended"));
    });
  } catch (error) {
    await thread.terminate();
    throw error;
  }
  return {
    close: async () => {
      thread.postMessage("close");
      await Promise.race([exited, new Promise((resolve) => setTimeout(resolve, closeMs).unref())]);
      await thread.terminate();
    },
  };
}

const closeMs = 2000;
