import { appendFileSync, existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer, request } from "node:http";
import { connect, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { type Dashboard, serveDashboard } from "../src/serve.ts";
import { writeSyntheticFolder } from "../src/testing/index.ts";

let root: string;
let dashboard: Dashboard;
const runId = "20260101-000000-reasoning-grpo-0042";
beforeEach(async () => {
  root = join(mkdtempSync(join(tmpdir(), "treadle-dashboard-")), "runs");
  writeSyntheticFolder(join(root, runId), 20);
  writeFileSync(join(root, "../secret.json"), "{}");
  dashboard = await serveDashboard({ runsRoot: root });
});
afterEach(async () => {
  await dashboard.close();
  rmSync(join(root, ".."), { recursive: true, force: true });
});

/** As a browser has it that was given the address. */
async function cookieOf(address: string): Promise<string> {
  const response = await fetch(address, { redirect: "manual" });
  return response.headers.get("set-cookie")?.split(";")[0] ?? "";
}
const live = async (signal: AbortSignal): Promise<Response> => {
  const headers = { cookie: await cookieOf(dashboard.url) };
  return fetch(new URL(`/api/runs/${runId}/live`, dashboard.url), { signal, headers });
};
const raw = async (path: string, headers: Record<string, string> = {}, method = "GET", base = dashboard.url) =>
  sent(path, { cookie: await cookieOf(base), ...headers }, method, base);

/** As sent: `fetch` would tidy the path. */
const sent = (path: string, headers: Record<string, string> = {}, method = "GET", base = dashboard.url) =>
  new Promise<{ status: number; text: string; headers: NodeJS.Dict<string | string[]> }>((resolve, reject) => {
    const { hostname, port } = new URL(base);
    request({ hostname, port, path, method, headers }, (response) => {
      let text = "";
      response.on("data", (chunk) => {
        text += chunk;
      });
      response.on("end", () => resolve({ status: response.statusCode ?? 0, text, headers: response.headers }));
    })
      .on("error", reject)
      .end();
  });

describe("who may look", () => {
  it("HC1: whoever asks, however many connections others hold that ask nothing; a page that is open stays open", async () => {
    const mayBeOpen = 128;
    const { port } = new URL(dashboard.url);
    const watching = new AbortController();
    const page = (await live(watching.signal)).body!.getReader();
    await page.read();
    const idle: Socket[] = [];
    try {
      while (idle.length < mayBeOpen + 20) {
        const socket = connect(Number(port), "127.0.0.1");
        idle.push(socket.on("error", () => {}).resume());
        await new Promise((resolve) => socket.once("connect", resolve));
      }
      expect((await raw("/api/runs", { connection: "close" })).status).toBe(200);
      appendFileSync(join(root, runId, "metrics.jsonl"), "{}\n");
      expect((await page.read()).done).toBe(false);
    } finally {
      watching.abort();
      for (const socket of idle) socket.destroy();
    }
  }, 60_000);

  it("AC2: on loopback: by this machine's own names, and to read only", async () => {
    expect((await raw("/")).status).toBe(200);
    expect((await raw("/", { host: "evil.example:4800" })).status).toBe(421);
    expect((await raw("/", { host: "localhost.evil.example" })).status).toBe(421);
    expect((await raw("/api/runs", { "sec-fetch-site": "cross-site" })).status).toBe(403);
    expect((await raw("/api/runs", {}, "POST")).status).toBe(405);
  });

  it.each(["127.0.0.1", "0.0.0.0"])(
    "AC1: on %s whoever has the token, which then is in a cookie, and not in the address",
    async (host) => {
      const open = await serveDashboard({ runsRoot: root, host });
      try {
        const token = new URL(open.url).searchParams.get("token");
        expect(token).toMatch(/^[\w-]{32}$/);
        const ask = (path: string, headers = {}) =>
          sent(path, headers, "GET", open.url.replace("0.0.0.0", "127.0.0.1"));
        expect((await ask("/")).status).toBe(401);
        expect((await ask("/api/runs")).status).toBe(401);
        expect((await ask("/?token=wrong")).status).toBe(401);
        const first = await ask(`/?token=${token}`);
        const [cookie] = first.headers["set-cookie"] as string[];
        expect([first.status, first.headers["location"]]).toEqual([302, "/"]);
        expect(cookie).toMatch(/HttpOnly.*SameSite=Strict/);
        expect((await ask("/api/runs", { cookie: cookie!.split(";")[0] })).status).toBe(200);
        // Another one on this machine has another cookie, which takes the place of none.
        const others = await cookieOf(dashboard.url);
        expect(others.split("=")[0]).not.toBe(cookie!.split("=")[0]);
        expect((await ask("/api/runs", { cookie: others })).status).toBe(401);
      } finally {
        await open.close();
      }
    },
  );

  it("says what to do when the port is taken", async () => {
    const other = createServer().listen(0, "127.0.0.1");
    await new Promise((resolve) => other.once("listening", resolve));
    const { port } = other.address() as { port: number };
    await expect(serveDashboard({ runsRoot: root, port })).rejects.toMatchObject({
      code: "dashboard.unavailable",
      message: expect.stringContaining("--port"),
    });
    other.close();
  });
});

describe("what is served", () => {
  it("AP2, AP3: no path leads out of the folder of runs, and no answer lacks the policy", async () => {
    mkdirSync(join(root, ".hidden"));
    for (const path of [
      "/api/runs/../secret.json",
      "/api/runs/%2e%2e",
      "/api/runs/%2e%2e%2fsecret.json/facts",
      "/api/runs/..%5csecret",
      "/api/runs/.hidden",
      "/api/runs/nobody/metrics",
      "/assets/../package.json",
      "/assets/page/..%2f..%2fserve.ts",
      `/api/runs/${runId}/logs?worker=..%2F..%2Fsecret.json`,
      `/api/runs/${runId}/episodes/-1`,
      `/api/runs/${runId}/spans/99999999`,
      "/vendor/lit-html/package.json",
    ]) {
      expect([path, (await raw(path)).status]).toEqual([path, 404]);
    }
    for (const path of ["/", "/api/runs", `/api/runs/${runId}/episodes`, "/nothing"]) {
      const { headers } = await raw(path);
      expect(headers["content-security-policy"]).toContain("default-src 'none'");
      expect(headers["content-security-policy"]).not.toContain("unsafe");
    }
  });

  it("what is at a NATS server, where one was given", async () => {
    expect((await raw("/api/cluster")).status).toBe(404);
    const cluster = async () => ({
      nodes: [],
      runs: [{ runId: "r", info: undefined, status: undefined, problem: "silent" }],
      ended: [],
    });
    const other = await serveDashboard({ runsRoot: root, cluster });
    expect(JSON.parse((await raw("/api/cluster", {}, "GET", other.url)).text).runs[0].problem).toBe("silent");
    await other.close();
  });

  it("what an action service does, where one was given; one that is silent says so", async () => {
    expect((await raw("/api/actions")).status).toBe(404);
    const actions = async () => Promise.reject(new Error("no actions service answers"));
    const other = await serveDashboard({ runsRoot: root, actions });
    expect(await raw("/api/actions", {}, "GET", other.url)).toMatchObject({
      status: 500,
      text: "no actions service answers\n",
    });
    await other.close();
  });

  it("what a plan was predicted to take, and what flows as a picture, where a profile had them", async () => {
    const facts = JSON.parse((await raw(`/api/runs/${runId}/facts`)).text);
    expect(facts.prediction).toEqual({ stepSeconds: 1.4, components: { rollout: 1, inference: 0.2, actor: 0.35 } });
    const flow = await raw(`/api/runs/${runId}/flow.svg`);
    expect(flow.headers["content-type"]).toBe("image/svg+xml");
    expect(flow.text).toMatch(/^<svg .*>episodes<.*>rollout</s);
    rmSync(join(root, runId, "graph.json"));
    expect((await raw(`/api/runs/${runId}/flow.svg`)).status).toBe(404);
  });

  it("a finished run: its list entry, metrics from any row, and spans as columns", async () => {
    const [row] = JSON.parse((await raw("/api/runs")).text);
    expect(row).toMatchObject({ runId, step: 20 });
    const metrics = JSON.parse((await raw(`/api/runs/${runId}/metrics?from=18`)).text);
    expect(metrics.map(({ step }: { step: number }) => step)).toEqual([19, 20]);
    expect((await raw(`/api/runs/${runId}/metrics?from=-5&from=x`)).status).toBe(200);
  });

  it("RD1: tells a run's page at once what is new, and goes on when a file is torn", async () => {
    const events: string[] = [];
    const ended = new AbortController();
    const response = await live(ended.signal);
    const reader = response.body!.getReader();
    const until = async (text: string) => {
      while (!events.join("").includes(text)) events.push(Buffer.from((await reader.read()).value ?? []).toString());
    };
    await until('"metrics":20');
    appendFileSync(join(root, runId, "metrics.jsonl"), '{"step":21,"reward":1}\n{"step":22,"rew');
    await until('"metrics":21');
    appendFileSync(join(root, runId, "metrics.jsonl"), 'ard":}\n{"step":23,"reward":2}\n');
    await until('"metrics":22');
    expect(JSON.parse((await raw(`/api/runs/${runId}`)).text).damages.join()).toMatch(/1 lines of metrics.jsonl/);
    ended.abort();
  });

  it("AP1: however much there is, an answer has a part of it, and so many pages are live", async () => {
    const lines = Array.from({ length: 20_500 }, (_, i) => `${JSON.stringify({ step: i })}\n`);
    writeFileSync(join(root, runId, "metrics.jsonl"), lines.join(""));
    const warnings = Array.from({ length: 2500 }, (_, i) => ({
      type: "log",
      atMs: i,
      worker: "a/0",
      level: "warn",
      line: "w",
    }));
    writeFileSync(join(root, runId, "events.jsonl"), warnings.map((each) => `${JSON.stringify(each)}\n`).join(""));
    const numOf = async (part: string) => JSON.parse((await raw(`/api/runs/${runId}/${part}`)).text).length;
    expect([await numOf("metrics"), await numOf("metrics?from=20000")]).toEqual([20_000, 500]);
    expect([await numOf("faults"), await numOf("faults?from=2000")]).toEqual([2000, 500]);
    const ended = new AbortController();
    const open = () => live(ended.signal);
    const all = await Promise.all(Array.from({ length: 32 }, open));
    expect(new Set(all.map(({ status }) => status))).toEqual(new Set([200]));
    expect((await open()).status).toBe(503);
    ended.abort();
  });

  it("RD1: shows whatever is left of a damaged folder", async () => {
    const folder = join(root, "20260102-000000-torn-0001");
    mkdirSync(folder);
    for (const name of [
      "config.json",
      "plan.json",
      "summary.json",
      "metrics.jsonl",
      "events.jsonl",
      "trace.jsonl",
      "journal.jsonl",
    ]) {
      writeFileSync(join(folder, name), Buffer.from([0xff, 0x00, 0x7b, 0x22, 0x0a, 0x5b]));
    }
    mkdirSync(join(root, "20260103-000000-empty-0001"));
    const runs = JSON.parse((await raw("/api/runs")).text);
    expect(runs.map(({ runId: id }: { runId: string }) => id)).toHaveLength(3);
    for (const part of ["", "/facts", "/metrics", "/spans", "/faults", "/episodes", "/logs"]) {
      expect([part, (await raw(`/api/runs/20260102-000000-torn-0001${part}`)).status]).toEqual([part, 200]);
    }
    expect(existsSync(join(folder, "runner.lock"))).toBe(false);
  });
});
