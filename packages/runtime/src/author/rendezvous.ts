/**
 * Where the ranks of a group meet on sockets of their own, as those of an engine that spans processes do: what torchrun
 * calls MASTER_ADDR and MASTER_PORT.
 *
 * - RV1 every rank gets the same place, and gets it once all of them have come.
 * - RV2 a place has a key of one meeting, and only present processes are told it: one that comes with another key, or with
 *   none, is left of an earlier meeting, or a stranger.
 * - RV3 a rank that does not come is named to all that did; nobody waits for it beyond the limit.
 */
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { type AddressInfo, createServer } from "node:net";
import { TreadleError } from "@treadle/contracts";

export type Rendezvous = {
  /** by which the other ranks reach the node of the first rank */
  readonly host: string;
  /** free on that node just now; the first rank listens on it */
  readonly port: number;
  /** the address that the first rank listens on, where that is another than `host`, as behind a network translation */
  readonly listen: string;
  /** RV2: who connects shows it, and the first rank lets nobody else join */
  readonly key: string;
};

export type RendezvousOptions = {
  /** for which ranks that have come wait for the others; default 60,000 */
  readonly timeoutMs?: number | undefined;
};

/** Where a process listens for others, and is reached by them. */
export type RendezvousAddress = Pick<Rendezvous, "host" | "listen">;

/** The first rank's answers to one that has come, in this order. */
export type RendezvousReply = { readonly type: "awaited" } | RendezvousOutcome;
export type RendezvousOutcome =
  | { readonly type: "place"; readonly place: Rendezvous }
  | { readonly type: "missing"; readonly workers: readonly string[] };

/** The operating system chooses the port, and may give it to another process only if the first rank does not take it soon. */
export async function openPlace({ host, listen }: RendezvousAddress): Promise<Rendezvous> {
  const server = createServer();
  server.listen(0, listen);
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, "close");
  return { host, listen, port, key: randomUUID() };
}

export function incomplete(component: string, workers: readonly string[], timeoutMs: number): TreadleError {
  const names = workers.map((worker) => `'${worker}'`).join(", ");
  return new TreadleError(
    "rendezvous.incomplete",
    `the ranks of '${component}' did not meet within ${timeoutMs} ms: ${names} did not come; have every rank of the group call 'rendezvous', with restart = "group" where it does so as it starts, or raise its timeoutMs`,
    { details: { component, workers: [...workers] } },
  );
}
