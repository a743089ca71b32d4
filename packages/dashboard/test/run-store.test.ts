import { appendFileSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { completionFolder } from "@treadle/contracts";
import { traceLine } from "@treadle/observe";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { RunStore } from "../src/page/run-store.ts";
import { serveDashboard } from "../src/serve.ts";
import { writeSyntheticFolder } from "../src/testing/index.ts";

const runId = "20260101-000000-reasoning-grpo-0001";
let root: string;
let dashboard: Awaited<ReturnType<typeof serveDashboard>>;
let cookie: string;
/** paths of requests, and what is answered in place of the server */
const asked: string[] = [];
let fails: (path: string) => boolean;

/** As a browser has it, without what it does after a loss. */
class Events {
  onopen = () => {};
  onerror = () => {};
  readonly #heard = new Map<string, (event: { data: string }) => void>();
  readonly #ending = new AbortController();

  constructor(path: string) {
    void this.#read(path).catch(() => {
      if (!this.#ending.signal.aborted) this.onerror();
    });
  }

  addEventListener(name: string, act: (event: { data: string }) => void): void {
    this.#heard.set(name, act);
  }

  close(): void {
    this.#ending.abort();
  }

  async #read(path: string): Promise<void> {
    const response = await fetch(path, { signal: this.#ending.signal });
    if (!response.ok) throw new Error(String(response.status));
    this.onopen();
    let text = "";
    for await (const chunk of response.body as unknown as AsyncIterable<Uint8Array>) {
      const events = (text + new TextDecoder().decode(chunk)).split("\n\n");
      text = events.pop() as string;
      for (const event of events) {
        const [, name = ""] = /^event: (.*)$/m.exec(event) ?? [];
        const [, data = ""] = /^data: (.*)$/m.exec(event) ?? [];
        this.#heard.get(name)?.({ data });
      }
    }
    throw new Error("the stream has ended");
  }
}

async function serve(port?: number): Promise<void> {
  dashboard = await serveDashboard({ runsRoot: root, ...(port === undefined ? {} : { port }) });
  const entered = await realFetch(dashboard.url, { redirect: "manual" });
  cookie = entered.headers.get("set-cookie")?.split(";")[0] ?? "";
}

const realFetch = globalThis.fetch;
const stores: RunStore[] = [];
function open(...parts: Parameters<RunStore["want"]>[0][]): RunStore {
  const store = new RunStore(
    runId,
    () => {},
    () => {},
  );
  for (const part of parts) store.want(part);
  stores.push(store);
  return store;
}

const episode = (promptId: string) =>
  JSON.stringify({
    ...{ step: 1, worker: "rollout/0", promptId, reward: 1, length: 1, finishReason: "stop", answer: "46" },
    turns: [{ by: "prompt", text: "12+34=" }],
  });
const span = (at: number) =>
  `${traceLine({ worker: "rollout/0", pid: 1, dropped: 0, records: [{ kind: "span", name: "decode", category: "compute", startMs: 1e6 + at, durationMs: 1 }] })}\n`;
const folder = (...parts: string[]) => join(root, runId, ...parts);
const writeEpisodes = (file: string, ...ids: string[]) =>
  writeFileSync(folder("artifacts", completionFolder, file), `${ids.map(episode).join("\n")}\n`);

beforeEach(async () => {
  root = mkdtempSync(join(tmpdir(), "treadle-store-"));
  writeSyntheticFolder(folder(), 3);
  mkdirSync(folder("artifacts", completionFolder), { recursive: true });
  writeFileSync(folder("trace.jsonl"), span(0) + span(5));
  writeEpisodes("step-000001-rollout-0.jsonl", "a", "b");
  asked.length = 0;
  fails = () => false;
  await serve();
  vi.stubGlobal("EventSource", Events);
  vi.stubGlobal("fetch", (path: string, init: RequestInit = {}) => {
    asked.push(path);
    if (fails(path)) return Promise.resolve(new Response("too many open files", { status: 500 }));
    return realFetch(new URL(path, dashboard.url), { ...init, headers: { cookie } });
  });
});

afterEach(async () => {
  for (const store of stores.splice(0)) store.close();
  await dashboard.close();
  vi.unstubAllGlobals();
  rmSync(root, { recursive: true });
});

const until = (holds: () => boolean) => vi.waitFor(() => expect(holds()).toBe(true), { timeout: 20_000, interval: 20 });

it("what is looked at is there, not asked for again and again, and kept up to date", async () => {
  const store = open("episodes", "facts", "spans");
  await until(() => store.episodes.length === 2 && store.spans.length === 2 && store.facts !== undefined);
  await until(
    () => store.versions !== undefined && !(["episodes", "facts", "spans"] as const).some((p) => store.lacks(p)),
  );
  const numAsked = (part: string) => asked.filter((path) => path.includes(part)).length;
  expect(numAsked("facts")).toBe(1);
  // Once more where the server said that nobody had asked while it was asked.
  expect(numAsked("episodes")).toBeLessThanOrEqual(2);
  appendFileSync(folder("trace.jsonl"), span(9));
  writeEpisodes("step-000002-rollout-0.jsonl", "c");
  await until(() => store.episodes.length === 3 && store.spans.length === 3);
});

it("a server that comes back is asked for what it has not read: nothing is lost, and what is new comes", async () => {
  const store = open("episodes", "spans");
  await until(() => store.episodes.length === 2 && store.spans.length === 2);
  const { port } = new URL(dashboard.url);
  await dashboard.close();
  appendFileSync(folder("trace.jsonl"), span(9));
  writeEpisodes("step-000002-rollout-0.jsonl", "c");
  await serve(Number(port));
  await until(() => store.episodes.length === 3 && store.spans.length === 3);
  expect(store.episodes.map(({ promptId }) => promptId)).toEqual(["a", "b", "c"]);
});

it("a request that failed is made again, not at once, also where nothing of the run changes", async () => {
  fails = (path) => /spans|episodes|facts/.test(path);
  const store = open("episodes", "facts", "spans");
  await until(() => store.versions !== undefined);
  await delay(300);
  expect(asked.filter((path) => path.includes("episodes")).length).toBeLessThan(5);
  fails = () => false;
  await until(() => store.episodes.length === 2 && store.spans.length === 2 && store.facts !== undefined);
});

it("a trace without a span that counts is said to be read", async () => {
  writeFileSync(folder("trace.jsonl"), span(0).replace("compute", "unheard-of").repeat(2000));
  const store = open("spans");
  await until(() => store.versions !== undefined && !store.lacks("spans"));
  expect(store.spans.length).toBe(0);
});
