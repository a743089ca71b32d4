/** The configuration of NATS servers to which only the holders of given keys have access, each to what it needs. Pure. */
import { z } from "zod";
import { permissionsOf } from "./nats-permissions.ts";
import type { TrustedKey } from "./trust-file.ts";

const hostPort = /^(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):\d{1,5}$/;

/** What the servers of a cluster are, as `treadle cluster init` was told. */
export const ServerSetup = z.strictObject({
  /** where clients reach each server */
  servers: z.array(z.string().regex(hostPort, "must be host:port")).min(1),
  /** the address that a server listens on, where it is not that by which it is reached */
  listen: z.string().optional(),
  subjectPrefix: z
    .string()
    .regex(/^[A-Za-z0-9_-]{1,64}$/, "must be letters, digits, '_' and '-'")
    .default("treadle"),
  /** folder of JetStream on each server; absent: as its command line says */
  store: z.string().optional(),
  /** the servers' certificate files */
  tls: z.strictObject({ ca: z.string(), cert: z.string(), key: z.string() }).optional(),
  /** by which servers know one another; absent for one alone */
  routePassword: z.string().optional(),
});
export type ServerSetup = z.infer<typeof ServerSetup>;

/**
 * What a server bears of its clients, so that one that floods it takes nothing from the others. A machine has a handful of
 * connections, its agent's and its runners'; workers have none. Messages end below 900,000 bytes (`boundedText`). The number of
 * subscriptions is that of one connection: relays have one a tunnel.
 */
const limits = { max_connections: 8192, max_payload: 2 ** 20, max_subscriptions: 65_536 };

/** Servers of one cluster reach one another on ports above those of clients by so many. */
const routesAbove = 2000;

const head = "# Written by 'treadle cluster'; what is changed here is lost when it writes again.";
const written = (lines: object): string =>
  Object.entries(lines)
    .map(([name, value]) => `${name}: ${JSON.stringify(value, null, 2)}\n`)
    .join(""); // JSON is of the form that NATS reads

/** Who is admitted, to what: the same for all servers. */
export function accountsConfig({ subjectPrefix }: ServerSetup, keys: readonly TrustedKey[]): string {
  const users = keys.map((each) => {
    const { publish, subscribe } = permissionsOf(each, subjectPrefix);
    const permissions = { publish: { allow: publish }, subscribe: { allow: subscribe } };
    return { nkey: each.key, permissions };
  });
  return `${head}\n${written({ accounts: { TREADLE: { jetstream: "enabled", users } } })}`;
}

/** As many as there are servers, in their order. `accounts`: the file beside them that says who is admitted. */
export function serverConfigs(setup: ServerSetup, accounts: string): string[] {
  const { servers, listen, store, tls, routePassword } = setup;
  return servers.map((server, index) => {
    const { host, port } = partsOf(server);
    const bind = listen ?? host;
    const routes = servers.filter((other) => other !== server).map((other) => routeTo(other, routePassword ?? ""));
    const lines = {
      server_name: `treadle-${index + 1}`,
      listen: `${bind}:${port}`,
      jetstream: store === undefined || { store_dir: servers.length === 1 ? store : `${store}/${index + 1}` },
      // Connections that are cut in half, and servers that are cut off, are noticed in seconds.
      ping_interval: "2s",
      ping_max: 2,
      ...limits,
      ...(tls === undefined ? {} : { tls: tlsOf(tls) }),
      ...(servers.length === 1
        ? {}
        : {
            cluster: {
              name: "treadle",
              listen: `${bind}:${port + routesAbove}`,
              authorization: { user: "server", password: routePassword },
              ...(tls === undefined ? {} : { tls: { ...tlsOf(tls), verify: true } }),
              routes,
            },
          }),
    };
    return `${head}\n${written(lines)}include "./${accounts}"\n`;
  });
}

const tlsOf = ({ ca, cert, key }: NonNullable<ServerSetup["tls"]>): object => ({
  ca_file: ca,
  cert_file: cert,
  key_file: key,
});

function routeTo(server: string, password: string): string {
  const { host, port } = partsOf(server);
  return `nats-route://server:${password}@${host}:${port + routesAbove}`;
}

function partsOf(server: string): { host: string; port: number } {
  const at = server.lastIndexOf(":");
  return { host: server.slice(0, at), port: Number(server.slice(at + 1)) };
}
