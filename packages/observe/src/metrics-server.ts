/**
 * Serves one exposition over HTTP, on loopback unless told otherwise.
 *
 * MV1 nothing but `GET /metrics` is answered, and with a token or client certificates only to who has them.
 * MV2 a peer that is slow, silent or one of many holds no more than its connection, and that not for long, nor in another's
 *    place (HC1).
 */
import { createHash, timingSafeEqual } from "node:crypto";
import { readFile } from "node:fs/promises";
import type { RequestListener, Server } from "node:http";
import type { AddressInfo } from "node:net";
import { type MetricsConfig, TreadleError } from "@treadle/contracts";
import { boundConnections } from "./http-connections.ts";
import type { Exposition } from "./registry.ts";

export type MetricsServer = {
  readonly url: string;
  close(): Promise<void>;
};

const defaultLimits = { requestTimeoutMs: 5000, maxConnections: 64 };

/**
 * With TREADLE_METRICS_TOKEN in the environment a scraper must send it as a bearer token. Rejects with
 * `metrics.unavailable` when the address cannot be had or a file cannot be read.
 */
export async function serveMetrics(
  exposition: Exposition,
  config: MetricsConfig,
  env: NodeJS.ProcessEnv = process.env,
  { requestTimeoutMs, maxConnections } = defaultLimits,
): Promise<MetricsServer> {
  const { host, port } = parseMetricsAddress(config.address);
  const answer = handler(exposition, env["TREADLE_METRICS_TOKEN"] || undefined);
  // Loaded here: worker processes never serve anything.
  const limits = {
    requestTimeout: requestTimeoutMs, // MV2
    headersTimeout: requestTimeoutMs,
    handshakeTimeout: requestTimeoutMs,
    // By default Node looks for those that are late twice a minute only.
    connectionsCheckingInterval: requestTimeoutMs / 2,
  };
  const server = config.tls
    ? (await import("node:https")).createServer({ ...(await readTls(config.tls)), ...limits }, answer)
    : (await import("node:http")).createServer(limits, answer);
  boundConnections(server, maxConnections); // MV2
  await listen(server, host, port);
  server.unref();
  const { port: taken } = server.address() as AddressInfo;
  const shown = host.includes(":") ? `[${host}]` : host;
  return {
    url: `${config.tls ? "https" : "http"}://${shown}:${taken}/metrics`,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

/** `9464` and `:9464` are on loopback; `0.0.0.0:9464` and `[::]:9464` are on every interface. */
export function parseMetricsAddress(address: string | number): { host: string; port: number } {
  const match = /^(?:(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9_.-]+))?:)?(\d{1,5})$/.exec(String(address));
  const port = Number(match?.[3]);
  if (match === null || port > 65_535) {
    throw new TreadleError(
      "metrics.unavailable",
      `metrics address '${address}' is not of the form port, host:port or [address]:port; give one as '9464' or '0.0.0.0:9464'`,
    );
  }
  return { host: match[1] ?? match[2] ?? "127.0.0.1", port };
}

function handler(exposition: Exposition, token: string | undefined): RequestListener {
  return (request, response) => {
    const path = request.url?.split("?")[0];
    if (path !== "/metrics") return response.writeHead(404).end("metrics are at /metrics\n");
    if (request.method !== "GET" && request.method !== "HEAD") {
      return response.writeHead(405, { allow: "GET, HEAD" }).end();
    }
    if (token !== undefined && !isAuthorised(request.headers.authorization, token)) {
      return response.writeHead(401, { "www-authenticate": "Bearer" }).end("a bearer token is needed\n");
    }
    exposition.exposition().then(
      (text) => response.writeHead(200, { "content-type": exposition.contentType }).end(text),
      () => response.writeHead(500).end("metrics could not be collected\n"),
    );
    return response;
  };
}

/** Takes as long whatever is wrong about it. */
function isAuthorised(header: string | undefined, token: string): boolean {
  const digest = (text: string) => createHash("sha256").update(text).digest();
  return timingSafeEqual(digest(header ?? ""), digest(`Bearer ${token}`));
}

async function readTls({ ca, cert, key }: NonNullable<MetricsConfig["tls"]>): Promise<object> {
  const read = async (path: string) => {
    try {
      return await readFile(path);
    } catch (cause) {
      throw new TreadleError("metrics.unavailable", `'${path}' for metrics over TLS cannot be read; give a PEM file`, {
        cause,
      });
    }
  };
  const files = { cert: await read(cert), key: await read(key) };
  return ca === undefined ? files : { ...files, ca: await read(ca), requestCert: true, rejectUnauthorized: true };
}

function listen(server: Server, host: string, port: number): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once("error", (cause) => {
      reject(
        new TreadleError(
          "metrics.unavailable",
          `metrics cannot be served at '${host}:${port}': ${cause.message}; give a free address, or 0 as the port`,
          { cause },
        ),
      );
    });
    server.listen(port, host, resolve);
  });
}
