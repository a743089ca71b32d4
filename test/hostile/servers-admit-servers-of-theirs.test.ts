/** What `treadle cluster init` writes for three servers makes them one cluster, which a server without their password does not enter. */

import { mkdtemp, rm } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { NatsConfig } from "@treadle/contracts";
import { openNatsControlPlane } from "@treadle/transport";
import { freePort, type NatsServer, startNatsServer } from "@treadle/transport/testing";
import { afterEach, expect, test } from "vitest";
import { initCluster } from "../../packages/cli/src/cluster-folder.ts";
import { makeCertificates } from "../../packages/transport/test/support/certificates.ts";
import { until } from "../support/cluster.ts";

const toClose: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const close of toClose.splice(0).reverse()) await close();
});

const routesAbove = 2000;

async function isFree(port: number): Promise<boolean> {
  const server = createServer();
  return new Promise((resolve) => {
    server.once("error", () => resolve(false));
    server.listen(port, "127.0.0.1", () => server.close(() => resolve(true)));
  });
}

/** Of a server: the one for routes is free, too. */
async function portOfServer(): Promise<number> {
  for (;;) {
    const port = await freePort();
    if (port + routesAbove < 65_536 && (await isFree(port + routesAbove))) return port;
  }
}

async function start(port: number, args: readonly string[]): Promise<NatsServer> {
  const server = await startNatsServer({ port, args });
  toClose.push(() => server[Symbol.asyncDispose]());
  return server;
}

/** Another server, which tries to enter by these flags: how many it has routes to. */
async function enter(route: string): Promise<() => Promise<number>> {
  const monitor = await freePort();
  const own = `nats://127.0.0.1:${await freePort()}`;
  await start(await freePort(), [
    ...["--name", crypto.randomUUID(), "--cluster_name", "treadle"],
    ...["--cluster", own, "--routes", route, "-m", String(monitor)],
  ]);
  return async () => {
    const answer = await fetch(`http://127.0.0.1:${monitor}/routez`);
    return ((await answer.json()) as { num_routes: number }).num_routes;
  };
}

test.each([false, true])(
  "three servers of 'cluster init' are one cluster, and no other server enters it (TLS: %s)",
  async (hasTls) => {
    const folder = await mkdtemp(join(tmpdir(), "treadle-servers-"));
    toClose.push(() => rm(folder, { recursive: true, force: true }));
    const tls = hasTls ? await makeCertificates(folder, "servers", "IP:127.0.0.1") : undefined;
    const ports = [await portOfServer(), await portOfServer(), await portOfServer()];
    const routePassword = crypto.randomUUID();
    const servers = ports.map((port) => `127.0.0.1:${port}`);
    const cluster = join(folder, "cluster");
    const configs = await initCluster(cluster, { servers, routePassword, ...(tls ? { tls } : {}) }, []);
    await Promise.all(ports.map((port, i) => start(port, ["-c", configs[i] as string])));

    const open = async (server: string) => {
      const nats = NatsConfig.parse({
        ...{ url: `nats://${server}`, replicas: 3, ...(tls ? { tls: { ca: tls.ca } } : {}) },
        ...{ credentialsFile: join(cluster, "runner.nk"), trustFile: join(cluster, "trust") },
      });
      for (let attempt = 0; ; attempt++) {
        try {
          const plane = await openNatsControlPlane({ nats, name: "test", env: {} });
          toClose.push(() => plane.close());
          return plane;
        } catch (error) {
          if (attempt === 20) throw error; // they elect who keeps what
          await new Promise((resolve) => setTimeout(resolve, 1000));
        }
      }
    };
    const [one, other] = [await open(servers[0] as string), await open(servers[2] as string)];
    await one.announce("run", "run-1", {}, () => undefined);
    await until(
      () => other.members("run").some(({ isUntrusted }) => !isUntrusted),
      "the run, by another server",
      60_000,
    );

    const route = `127.0.0.1:${(ports[0] as number) + routesAbove}`;
    const numOfStranger = await enter(`nats://${route}`);
    const numOfGuest = await enter(`nats-route://server:guessed@${route}`);
    if (!hasTls) {
      const numOfServer = await enter(`nats-route://server:${routePassword}@${route}`);
      await until(async () => (await numOfServer()) > 0, "a server with the password", 60_000);
    }
    await new Promise((resolve) => setTimeout(resolve, 3000)); // they try each second
    expect([await numOfStranger(), await numOfGuest()]).toEqual([0, 0]);
  },
  300_000,
);
