/** From configuration and environment to a connection to NATS, with every reason why there is none. */
import { setTimeout as delay } from "node:timers/promises";
import { type NatsConfig, TreadleError } from "@treadle/contracts";
import { NatsConnection } from "./nats-connection.ts";
import type { NatsThreadOptions } from "./nats-messages.ts";

export type NatsControlPlaneOptions = {
  readonly nats: NatsConfig;
  /** as the server lists this client */
  readonly name: string;
  /** where user, password and token are looked up; default the process's */
  readonly env?: Readonly<Record<string, string | undefined>>;
};

/**
 * Two pings without an answer end a connection when the third is due. Three of four parts of a lease leave the fourth for
 * another server, so that whoever is cut off with its server is neither silent for others nor takes them for silent.
 */
const pingsALease = 4;

/** Rejects with `control-plane.unreachable`, `control-plane.refused` or `config.invalid`. */
export async function openNatsConnection(options: NatsControlPlaneOptions): Promise<NatsConnection> {
  return NatsConnection.open(natsOptions(options));
}

/** What a thread connects with. Throws `config.invalid`. */
export function natsOptions(options: NatsControlPlaneOptions): NatsThreadOptions {
  const { nats, env = process.env } = options;
  const servers = typeof nats.url === "string" ? nats.url.split(",") : nats.url;
  return {
    servers: servers.map(checkServer),
    name: options.name,
    pingMs: nats.leaseMs / pingsALease,
    credentialsFile: nats.credentialsFile,
    user: env["TREADLE_NATS_USER"],
    password: env["TREADLE_NATS_PASSWORD"],
    token: env["TREADLE_NATS_TOKEN"],
    ...(nats.tls === undefined ? {} : { tls: nats.tls }),
  };
}

function checkServer(server: string): string {
  const address = server.includes("://") ? server : `nats://${server}`;
  const url = URL.canParse(address) ? new URL(address) : undefined;
  if (url === undefined || !/^(nats|tls):$/.test(url.protocol) || url.hostname === "") {
    throw new TreadleError(
      "config.invalid",
      `'${server}' is no address of a NATS server; give one as nats://host:4222`,
    );
  }
  if (url.username !== "" || url.password !== "") {
    throw new TreadleError(
      "config.invalid",
      `the address of the NATS server at '${url.host}' holds credentials, and addresses are written into run folders; set TREADLE_NATS_USER and TREADLE_NATS_PASSWORD, or cluster.nats.credentialsFile`,
    );
  }
  return url.protocol === "tls:" ? `tls://${url.host}` : url.host;
}

/** Names become parts of subjects and keys. */
export function checkName(kind: string, name: string): string {
  if (/^[A-Za-z0-9_-]{1,100}$/.test(name)) return name;
  throw new TreadleError(
    "config.invalid",
    `a ${kind} cannot be called '${name}' over NATS; letters, digits, '_' and '-' are allowed, 100 at most`,
  );
}

/** Servers elect who leads a bucket in seconds, after one of them has died; what was asked of that one takes ten to fail. */
const electionMs = 30_000;
const retryMs = 250;

/** Does it again while servers elect, for some seconds. What it does must be harmless when it is done twice. */
export async function throughElections<T>(act: () => Promise<T>, messages = /temporarily unavailable/): Promise<T> {
  for (const startedMs = performance.now(); ; ) {
    try {
      return await act();
    } catch (error) {
      const cause = error as TreadleError;
      const mayBeElecting = cause.code === "call.timeout" || messages.test(cause.message);
      if (!mayBeElecting || performance.now() - startedMs > electionMs) throw cause;
      await delay(retryMs);
    }
  }
}

/** Said for a moment by a server that starts again, too. */
export const awayForAMoment = /temporarily unavailable|jetstream is not enabled/i;

/** Names what a server lacks that cannot open a bucket. */
export async function mustKeep(open: () => Promise<void>): Promise<void> {
  try {
    await throughElections(open);
  } catch (error) {
    const cause = error as TreadleError;
    if (cause.code === "control-plane.refused") throw cause;
    if (cause.code === "call.timeout" || /temporarily unavailable/.test(cause.message)) {
      throw new TreadleError(
        "control-plane.unreachable",
        `the NATS servers keep nothing just now: ${cause.message}; most of them must be there and have found each other, so try again in a moment`,
        { cause },
      );
    }
    throw new TreadleError(
      "control-plane.refused",
      `the NATS server cannot keep what must survive: ${cause.message}; start it with JetStream ('nats-server -js'), and no more cluster.nats.replicas than it has servers`,
      { cause },
    );
  }
}
