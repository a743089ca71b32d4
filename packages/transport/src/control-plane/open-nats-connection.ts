/** From configuration and environment to a connection to NATS, with every reason why there is none. */
import { isLoopback, type NatsConfig, TreadleError } from "@treadle/contracts";
import { NatsConnection } from "./nats-connection.ts";
import type { NatsThreadOptions } from "./nats-messages.ts";
import { hostOf } from "./server-host.ts";

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
  return {
    servers: serversOf(nats),
    name: options.name,
    isFixed: nats.trustFile === undefined,
    pingMs: nats.leaseMs / pingsALease,
    credentialsFile: nats.credentialsFile,
    user: env["TREADLE_NATS_USER"],
    password: env["TREADLE_NATS_PASSWORD"],
    token: env["TREADLE_NATS_TOKEN"],
    ...(nats.tls === undefined ? {} : { tls: nats.tls }),
  };
}

/**
 * Throws `control-plane.untrusted` where others than processes of this machine may be at the servers, and no keys are given
 * by which to tell whose commands count. `listensOn`: where the server that has answered takes clients; it may be reached on
 * loopback and listen for everybody.
 */
export function requireTrust(nats: NatsConfig, listensOn: readonly string[] = []): void {
  if (nats.trustFile !== undefined) return;
  const keys =
    "and without keys its every client could start workers here; set up keys with 'treadle cluster init', then give --cluster or --trust (cluster.nats.trustFile)";
  const away = serversOf(nats).find((server) => !isServerOnLoopback(server));
  if (away !== undefined) {
    throw new TreadleError("control-plane.untrusted", `the NATS server at '${away}' is not on loopback, ${keys}`);
  }
  const open = listensOn.find((host) => !isLoopback(host));
  if (open !== undefined) {
    throw new TreadleError(
      "control-plane.untrusted",
      `the NATS server at '${serversOf(nats).join(", ")}' listens on '${open}', not on loopback alone, ${keys}, or start the server with '-a 127.0.0.1'`,
    );
  }
}

/** `server`: as `nats://host:4222`, or without the scheme. */
export const isServerOnLoopback = (server: string): boolean => isLoopback(hostOf(server));

const serversOf = ({ url }: NatsConfig): string[] => (typeof url === "string" ? url.split(",") : url).map(checkServer);

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
