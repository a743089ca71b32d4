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
type RendezvousReply = { readonly type: "awaited" } | RendezvousOutcome;
type RendezvousOutcome =
  | { readonly type: "place"; readonly place: Rendezvous }
  | { readonly type: "missing"; readonly workers: readonly string[] };

/** What a rank needs of its messages to meet the others. */
export type RendezvousPorts = {
  readonly component: string;
  readonly rank: number;
  readonly address: RendezvousAddress;
  /** all ranks but this one */
  readonly others: readonly string[];
  readonly send: (to: string, value: unknown) => Promise<void>;
  readonly recv: (from: string) => Promise<unknown>;
  /** Nobody waits for a message of that rank any more. */
  readonly end: (from: string, reason: unknown) => void;
};

/** Resolves with the place once all ranks have come; throws `rendezvous.incomplete` with those that did not in time. */
export async function meet(ports: RendezvousPorts, timeoutMs: number): Promise<Rendezvous> {
  const limit = AbortSignal.timeout(timeoutMs);
  const outcome = ports.rank === 0 ? await receive(ports, limit) : await come(ports, limit);
  if (outcome.type === "place") return outcome.place;
  throw incomplete(ports.component, outcome.workers, timeoutMs);
}

/** RV1, RV3: the first rank waits for the others, and tells those that came what became of it. */
async function receive(ports: RendezvousPorts, limit: AbortSignal): Promise<RendezvousOutcome> {
  const { others, send, recv } = ports;
  const came = await Promise.all(
    others.map(async (other) => {
      if (!(await hasCome(ports, limit, other, () => recv(other)))) return false;
      await send(other, { type: "awaited" } satisfies RendezvousReply);
      return true;
    }),
  );
  const workers = others.filter((_, at) => !came[at]);
  const outcome: RendezvousOutcome =
    workers.length > 0 ? { type: "missing", workers } : { type: "place", place: await openPlace(ports.address) };
  await Promise.all(others.map((other, at) => came[at] && send(other, outcome)));
  return outcome;
}

/** Once the first rank has answered, the limit is that one's. */
async function come(ports: RendezvousPorts, limit: AbortSignal): Promise<RendezvousOutcome> {
  const first = `${ports.component}/0`;
  const arrive = async () => {
    await ports.send(first, null);
    if (!limit.aborted) await ports.recv(first);
  };
  if (!(await hasCome(ports, limit, first, arrive))) return { type: "missing", workers: [first] };
  return (await ports.recv(first)) as RendezvousOutcome;
}

/** Whether a message came before the limit; after it nobody waits for it. */
async function hasCome(
  { end }: RendezvousPorts,
  limit: AbortSignal,
  from: string,
  ask: () => Promise<unknown>,
): Promise<boolean> {
  let isOver = () => {};
  const over = new Promise<false>((resolve) => {
    isOver = () => {
      resolve(false);
      end(from, limit.reason);
    };
  });
  limit.addEventListener("abort", isOver);
  try {
    return await Promise.race([ask().then(() => true), over]);
  } finally {
    limit.removeEventListener("abort", isOver);
  }
}

/** The operating system chooses the port, and may give it to another process only if the first rank does not take it soon. */
async function openPlace({ host, listen }: RendezvousAddress): Promise<Rendezvous> {
  const server = createServer();
  server.listen(0, listen);
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, "close");
  return { host, listen, port, key: randomUUID() };
}

function incomplete(component: string, workers: readonly string[], timeoutMs: number): TreadleError {
  const names = workers.map((worker) => `'${worker}'`).join(", ");
  return new TreadleError(
    "rendezvous.incomplete",
    `the ranks of '${component}' did not meet within ${timeoutMs} ms: ${names} did not come; have every rank of the group call 'rendezvous', with restart = "group" where it does so as it starts, or raise its timeoutMs`,
    { details: { component, workers: [...workers] } },
  );
}
