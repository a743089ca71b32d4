/** The live page of the runs below a folder, over HTTP. */
import { stat } from "node:fs/promises";
import type { Server } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { serve } from "@hono/node-server";
import { TreadleError } from "@treadle/contracts";
import { boundConnections } from "@treadle/observe";
import { RunLibrary } from "./data/run-library.ts";
import { type RemoteRuns, RunMirror } from "./data/run-mirror.ts";
import { accessTo } from "./server/access.ts";
import { createApp } from "./server/app.ts";
import { readAssets } from "./server/assets.ts";
import type { ActionStatus, ClusterStatus } from "./view/wire.ts";

export type DashboardOptions = {
  /** where runs keep their folders */
  readonly runsRoot: string;
  /** default: loopback */
  readonly host?: string | undefined;
  /** default: a free one */
  readonly port?: number | undefined;
  /** what a browser must show; default: a random one */
  readonly token?: string | undefined;
  /** what is at a NATS server, where one was given */
  readonly cluster?: (() => Promise<ClusterStatus>) | undefined;
  /** runs of other machines, which are shown as those of this one are */
  readonly remote?: RemoteRuns | undefined;
  /** what an action service does, where one was given */
  readonly actions?: (() => Promise<ActionStatus>) | undefined;
};

export type { RemoteRuns } from "./data/run-mirror.ts";

export type Dashboard = {
  /** with the token */
  readonly url: string;
  /** the page of a run */
  urlOf(runId: string): string;
  close(): Promise<void>;
};

const isFolder = (path: string): Promise<boolean> =>
  stat(path).then(
    (found) => found.isDirectory(),
    () => false,
  );

const requestTimeoutMs = 10_000;
const maxConnections = 128;

/** Rejects with `dashboard.unavailable` when the address cannot be had. */
export async function serveDashboard({
  runsRoot,
  host = "127.0.0.1",
  port = 0,
  token,
  cluster,
  remote,
  actions,
}: DashboardOptions): Promise<Dashboard> {
  const access = accessTo(host, token);
  const assets = await readAssets();
  const mirror = remote && (await RunMirror.open(remote, (runId) => isFolder(join(runsRoot, runId))));
  const app = createApp({ library: new RunLibrary(runsRoot, mirror), assets, access, cluster, actions });
  const server = await new Promise<Server>((resolve, reject) => {
    const opened = serve({ fetch: app.fetch, hostname: host, port }, () => resolve(opened)) as Server;
    opened.requestTimeout = requestTimeoutMs;
    opened.headersTimeout = requestTimeoutMs;
    boundConnections(opened, maxConnections);
    opened.once("error", (cause: NodeJS.ErrnoException) => {
      const why = cause.code === "EADDRINUSE" ? "something else listens there already" : cause.message;
      const remedy = "give another port with --port, or 0 for a free one";
      void mirror?.close();
      reject(
        new TreadleError(
          "dashboard.unavailable",
          `the dashboard cannot listen at '${host}:${port}': ${why}; ${remedy}`,
          {
            cause,
          },
        ),
      );
    });
  });
  const taken = (server.address() as AddressInfo).port;
  const origin = `http://${host.includes(":") ? `[${host}]` : host}:${taken}`;
  const query = `?token=${encodeURIComponent(access.token)}`;
  return {
    url: `${origin}/${query}`,
    urlOf: (runId) => `${origin}/${query}#/run/${encodeURIComponent(runId)}`,
    close: async () => {
      await new Promise<void>((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      });
      await mirror?.close();
    },
  };
}
