/**
 * What the dashboard answers: pages, and runs as data. It only reads.
 *
 * AP1 every answer is bounded, whatever a request asks for and however large a run is.
 * AP2 a run is named by its id, which is looked up in the list of runs; nothing else of a request becomes a path.
 * AP3 the page may load nothing from elsewhere and run no script but ours, so a hostile prompt or log line stays text.
 */
import { basename } from "node:path";
import { type Context, Hono } from "hono";
import { getCookie, setCookie } from "hono/cookie";
import { streamSSE } from "hono/streaming";
import { loggedWorkers, logPage } from "../data/log-pages.ts";
import type { RunData } from "../data/run-data.ts";
import type { RunLibrary } from "../data/run-library.ts";
import { drawFlow } from "../static/flow-drawing.ts";
import { type ActionStatus, type ClusterStatus, encodeNumber, type Versions } from "../view/wire.ts";
import type { Access } from "./access.ts";
import type { Assets } from "./assets.ts";

export type AppPorts = {
  readonly library: RunLibrary;
  readonly assets: Assets;
  readonly access: Access;
  readonly cluster: (() => Promise<ClusterStatus>) | undefined;
  readonly actions: (() => Promise<ActionStatus>) | undefined;
};

const maxMetrics = 20_000;
const maxSpans = 250_000;
/** While a trace is read, so many rows are waited for no longer than this. */
const spansWaitMs = 400;
const maxFaults = 2000;
const maxEpisodes = 20_000;
const maxStreams = 32;
const lookMs = 500;
const listMs = 2000;
const keepAliveMs = 15_000;

export function createApp({ library, assets, access, cluster, actions }: AppPorts): Hono {
  const app = new Hono();
  let numStreams = 0;

  app.use(async (c, next) => {
    if (!access.isOwnHost(c.req.header("host"))) return c.text("this dashboard is for this machine only\n", 421);
    if (c.req.method !== "GET" && c.req.method !== "HEAD") return c.text("only reading is possible\n", 405);
    const site = c.req.header("sec-fetch-site");
    if (c.req.path.startsWith("/api/") && site === "cross-site") return c.text("asked from another site\n", 403);
    const given = c.req.query("token");
    if (given !== undefined) {
      if (!access.isToken(given)) return c.text("that token is not this dashboard's\n", 401);
      setCookie(c, access.cookie, given, { httpOnly: true, sameSite: "Strict", path: "/" });
      return c.redirect("/");
    }
    if (!access.isToken(getCookie(c, access.cookie))) {
      return c.text("open the address that 'treadle dashboard' printed: it has the token\n", 401);
    }
    await next();
    for (const [name, value] of Object.entries(headers(assets))) c.header(name, value);
    return undefined;
  });

  const page = (c: Context) => c.html(assets.shell);
  app.get("/", page);
  for (const [path, { body, contentType, tag }] of assets.files) {
    app.get(path, (c) => {
      if (c.req.header("if-none-match") === tag) return c.body(null, 304, { etag: tag });
      return c.body(body, 200, { "content-type": contentType, "cache-control": "no-cache", etag: tag });
    });
  }

  app.get("/api/runs", async (c) => json(c, await library.list()));
  app.get("/api/runs/live", (c) =>
    live(c, async (send) => {
      let last = "";
      return async () => {
        const text = JSON.stringify(await library.list(), encodeNumber);
        if (text !== last) await send("runs", text);
        last = text;
        return listMs;
      };
    }),
  );

  app.get("/api/cluster", async (c) =>
    cluster === undefined ? c.text("no NATS server was given\n", 404) : json(c, await cluster()),
  );

  app.get("/api/actions", async (c) =>
    actions === undefined ? c.text("no action service was given\n", 404) : json(c, await actions()),
  );

  const withRun = (answer: (c: Context, run: RunData) => Response | Promise<Response>) => async (c: Context) => {
    const run = await library.get(c.req.param("id") ?? ""); // AP2
    if (run === undefined) return c.text("there is no such run\n", 404);
    await run.refresh();
    return answer(c, run);
  };
  app.get(
    "/api/runs/:id",
    withRun((c, run) => json(c, { ...run.now, versions: run.versions })),
  );
  app.get(
    "/api/runs/:id/facts",
    withRun((c, run) => json(c, run.facts)),
  );
  app.get(
    "/api/runs/:id/flow.svg",
    withRun((c, run) => {
      const { graph, workflow } = run.facts;
      if (graph === undefined) return c.text("the run has no flow graph here\n", 404);
      return c.body(drawFlow(graph, basename(workflow)), 200, { "content-type": "image/svg+xml" });
    }),
  );
  app.get(
    "/api/runs/:id/metrics",
    withRun((c, run) => json(c, run.metricsFrom(number(c, "from")).slice(0, maxMetrics))),
  );
  app.get(
    "/api/runs/:id/faults",
    withRun((c, run) => json(c, run.faultsFrom(number(c, "from")).slice(0, maxFaults))),
  );
  app.get(
    "/api/runs/:id/spans",
    withRun(async (c, run) => {
      const from = number(c, "from");
      await run.trace.readTo(from + maxSpans, spansWaitMs);
      const bytes = run.trace.table.encode(from, maxSpans, run.trace.isAtEnd);
      return c.body(bytes.buffer as ArrayBuffer, 200, { "content-type": "application/octet-stream" });
    }),
  );
  app.get(
    "/api/runs/:id/spans/:row",
    withRun(async (c, run) => {
      const attributes = await run.trace.attributesOf(Number(c.req.param("row")));
      return attributes === undefined ? c.text("there is no such span\n", 404) : json(c, attributes);
    }),
  );
  app.get(
    "/api/runs/:id/episodes",
    withRun(async (c, run) => {
      await run.completions.refresh();
      return json(c, run.completions.lines.slice(number(c, "from")).slice(0, maxEpisodes));
    }),
  );
  app.get(
    "/api/runs/:id/episodes/:index",
    withRun(async (c, run) => {
      await run.completions.refresh();
      const record = await run.completions.open(Number(c.req.param("index")));
      return record === undefined ? c.text("there is no such episode\n", 404) : json(c, record);
    }),
  );
  app.get(
    "/api/runs/:id/logs",
    withRun(async (c, run) => {
      const worker = c.req.query("worker");
      if (worker === undefined) return json(c, await loggedWorkers(run.folder));
      const found = await logPage(run.folder, worker, { after: optional(c, "after"), before: optional(c, "before") });
      return found === undefined ? c.text("there is no such log\n", 404) : json(c, found);
    }),
  );
  app.get(
    "/api/runs/:id/live",
    withRun((c, run) =>
      live(c, async (send) => {
        let last: Versions | undefined;
        return async () => {
          if (run.trace.isRead) void run.trace.read().catch(() => {});
          await run.refresh();
          const { versions } = run;
          if (JSON.stringify(versions) !== JSON.stringify(last)) {
            const hasNow = versions.now !== last?.now;
            last = versions;
            await send("run", JSON.stringify({ versions, ...(hasNow ? { now: run.now } : {}) }, encodeNumber));
          }
          return lookMs;
        };
      }),
    ),
  );

  app.notFound((c) => c.text("there is nothing here\n", 404));
  app.onError((error, c) => c.text(`${error.message}\n`, 500));

  type Send = (event: string, data: string) => Promise<void>;
  /** Looks again and again until the browser leaves; `open` gives what to do each time, which says how long to wait. */
  function live(c: Context, open: (send: Send) => Promise<() => Promise<number>>): Response | Promise<Response> {
    if (numStreams >= maxStreams) return c.text("too many live pages are open; close some\n", 503); // AP1
    numStreams++;
    return streamSSE(c, async (stream) => {
      let lastSentMs = performance.now();
      const send: Send = async (event, data) => {
        lastSentMs = performance.now();
        await stream.writeSSE({ event, data });
      };
      try {
        const look = await open(send);
        while (!stream.aborted && !stream.closed) {
          const waitMs = await look();
          if (performance.now() - lastSentMs > keepAliveMs) await send("beat", "");
          await stream.sleep(waitMs);
        }
      } finally {
        numStreams--;
      }
    });
  }
  return app;
}

const headers = ({ importMapHash }: Assets): Readonly<Record<string, string>> => ({
  "content-security-policy": [
    "default-src 'none'",
    `script-src 'self' ${importMapHash}`,
    "style-src 'self'",
    "img-src 'self' data:",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
  ].join("; "), // AP3
  "x-content-type-options": "nosniff",
  "referrer-policy": "no-referrer",
  "cross-origin-opener-policy": "same-origin",
  "cross-origin-resource-policy": "same-origin",
});

function json(c: Context, value: unknown): Response {
  return c.body(JSON.stringify(value, encodeNumber), 200, {
    "content-type": "application/json; charset=utf-8",
    "cache-control": "no-store",
  });
}

function optional(c: Context, name: string): number | undefined {
  const value = Number(c.req.query(name) ?? Number.NaN);
  return Number.isSafeInteger(value) && value >= 0 ? value : undefined;
}

const number = (c: Context, name: string): number => optional(c, name) ?? 0;
