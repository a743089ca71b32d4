/** Trackers get each step's metrics; one that fails, hangs or is slow loses rows, is named once, and delays nothing. */
import { execFileSync } from "node:child_process";
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { createServer, type IncomingMessage, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { crc32c, type RunEvent, type TrackerConfig } from "@treadle/contracts";
import fc from "fast-check";
import protobuf from "protobufjs";
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";
import { type TrackedRow, type Tracker, TrackerFeed } from "../src/trackers/tracker-feed.ts";
import { Trackers } from "../src/trackers/trackers.ts";

let folder: string;
const warnings: string[] = [];
const warn = (message: string) => warnings.push(message);
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-trackers-"));
  warnings.length = 0;
});
afterEach(() => rm(folder, { recursive: true, force: true }));

const open = (...configs: TrackerConfig[]) =>
  new Trackers(configs, {
    runId: "run-1",
    folder,
    projectRoot: folder,
    steps: 2,
    warn: (message) => warn(message),
    loadModule: (path) => import(pathToFileURL(join(folder, path)).href),
  });
const stepFinished = (step: number, metrics: Record<string, number>): RunEvent => ({
  type: "step-finished",
  atMs: 1_700_000_000_000 + step,
  step,
  seconds: 0.5,
  metrics,
  tokens: 0,
});
const runFinished = (steps: number) => ({ type: "run-finished", atMs: 0, summary: { steps } }) as unknown as RunEvent;

/** Two steps of a run, which ends. */
async function track(
  config: TrackerConfig,
  metrics: Record<string, number> = { reward: 0.25, "loss/kl": -1e-3 },
): Promise<void> {
  const trackers = open(config);
  trackers.event(stepFinished(1, metrics));
  trackers.event(stepFinished(2, { reward: Number.NaN }));
  trackers.event(runFinished(2));
  await trackers.close();
}

describe("a feed", () => {
  type Act = (signal: AbortSignal) => Promise<void>;
  class Double implements Tracker {
    readonly name = "a double";
    readonly written: number[] = [];
    readonly ends: string[] = [];
    readonly acts: { open?: Act; write?: Act; close?: Act };
    constructor(acts: Double["acts"]) {
      this.acts = acts;
    }
    async open(signal: AbortSignal): Promise<void> {
      await this.acts.open?.(signal);
    }
    async write(rows: readonly TrackedRow[], signal: AbortSignal): Promise<void> {
      await this.acts.write?.(signal);
      this.written.push(...rows.map(({ step }) => step));
    }
    async close(end: string, signal: AbortSignal): Promise<void> {
      await this.acts.close?.(signal);
      this.ends.push(end);
    }
  }
  const row = (step: number): TrackedRow => ({ step, atMs: step, values: {} });
  const never: Act = () => new Promise(() => {});

  test("writes every row once and in order", async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(fc.nat({ max: 60 }), { maxLength: 8 }), async (bursts) => {
        const tracker = new Double({ write: () => new Promise((resolve) => setImmediate(resolve)) });
        const feed = new TrackerFeed(tracker, warn);
        let step = 0;
        for (const burst of bursts) {
          for (let index = 0; index < burst; index++) feed.write(row(step++));
          await new Promise((resolve) => setImmediate(resolve));
        }
        await feed.close("finished");
        expect(tracker.written).toEqual(Array.from({ length: step }, (_, index) => index));
      }),
    );
    expect(warnings).toEqual([]);
  });

  test("TK1 of a tracker that fails now and then warns once, and counts what was lost", async () => {
    let calls = 0;
    const tracker = new Double({
      write: async () => {
        if (++calls % 2 === 1) throw new Error("no room");
      },
    });
    const feed = new TrackerFeed(tracker, warn);
    for (let step = 0; step < 4; step++) {
      feed.write(row(step));
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    await feed.close("open");
    expect(tracker.ends).toEqual(["open"]);
    expect(warnings).toEqual([
      "metrics do not reach a double: no room; the run goes on, and counts what is dropped",
      `'${4 - tracker.written.length}' rows of metrics were dropped for a double`,
    ]);
  });

  const unreadable = Object.defineProperty(new Error("hidden"), "message", {
    get: () => {
      throw new Error("no message either");
    },
  });
  test.each<[string, unknown, string]>([
    ["nothing", undefined, "'undefined' was thrown"],
    ["null", null, "'null' was thrown"],
    ["a text", "no room", "no room"],
    ["a number", 7, "'7' was thrown"],
    ["a symbol", Symbol("full"), "'Symbol(full)' was thrown"],
    ["an object with a message", { message: "no room", cause: new Error("full disk") }, "no room: full disk"],
    ["an object without one", Object.create(null), "an object without a message was thrown"],
    ["an object whose message is no text", { message: 7 }, "an object without a message was thrown"],
    ["an error without a message", new TypeError(), "'TypeError' was thrown"],
    ["an error whose message throws", unreadable, "an object without a message was thrown"],
  ])("TK1 of a tracker that throws %s goes on, and says so", async (_, thrown, why) => {
    let calls = 0;
    const tracker = new Double({
      write: async () => {
        if (++calls === 1) throw thrown;
      },
    });
    const feed = new TrackerFeed(tracker, warn);
    feed.write(row(1));
    await new Promise((resolve) => setTimeout(resolve, 5));
    feed.write(row(2));
    await feed.close("finished");
    expect(tracker.written.at(-1)).toBe(2);
    expect(tracker.ends).toEqual(["finished"]);
    expect(warnings[0]).toBe(`metrics do not reach a double: ${why}; the run goes on, and counts what is dropped`);
    expect(warnings[1]).toMatch(/'[12]' rows of metrics were dropped/);
  });

  test("TK1 of a tracker that hangs holds so many rows and no more", async () => {
    let signal: AbortSignal | undefined;
    const tracker = new Double({
      write: (given) => {
        signal = given;
        return never(given);
      },
    });
    const feed = new TrackerFeed(tracker, warn, { maxWaiting: 10, callMs: 600_000, closeMs: 50 });
    feed.write(row(0));
    await new Promise((resolve) => setTimeout(resolve, 5));
    for (let step = 1; step <= 30; step++) feed.write(row(step));
    await feed.close("finished");
    expect(signal?.aborted).toBe(true);
    expect(warnings).toEqual([
      "metrics do not reach a double: '10' rows wait for it; the run goes on, and counts what is dropped",
      "'31' rows of metrics were dropped for a double",
    ]);
  });

  test.each(["open", "write", "close"] as const)("TK2 closes in time where '%s' never ends", async (act) => {
    const feed = new TrackerFeed(new Double({ [act]: never }), warn, { callMs: 600_000, closeMs: 50 });
    feed.write(row(1));
    await feed.close("finished");
    expect(warnings[0]).toBe(
      "metrics do not reach a double: it did not close within '50' ms; the run goes on, and counts what is dropped",
    );
  });

  test("TK1 goes on after a call that was late", async () => {
    let calls = 0;
    const tracker = new Double({ write: (signal) => (++calls === 1 ? never(signal) : Promise.resolve()) });
    const feed = new TrackerFeed(tracker, warn, { callMs: 20 });
    feed.write(row(1));
    await expect.poll(() => warnings.length).toBe(1);
    feed.write(row(2));
    await feed.close("finished");
    expect(tracker.written).toEqual([2]);
    expect(warnings[0]).toContain("it did not answer within '20' ms");
  });
});

test("jsonl appends the lines of each step", async () => {
  await track({ kind: "jsonl", path: "all.jsonl" });
  const lines = (await readFile(join(folder, "all.jsonl"), "utf8")).trim().split("\n");
  expect(lines.map((line) => JSON.parse(line))).toEqual([
    { step: 1, seconds: 0.5, reward: 0.25, "loss/kl": -1e-3 },
    { step: 2, seconds: 0.5, reward: "NaN" },
  ]);
});

describe("tensorboard", () => {
  const { root } = protobuf.parse(`syntax = "proto3";
    message Event { double wall_time = 1; int64 step = 2; oneof what { string file_version = 3; Summary summary = 5; } }
    message Summary { message Value { string tag = 1; oneof value { float simple_value = 2; } } repeated Value value = 1; }`);

  /** Bit by bit, as the polynomial says. */
  function checksum(data: Buffer): number {
    let sum = ~0;
    for (const byte of data) {
      sum ^= byte;
      for (let bit = 0; bit < 8; bit++) sum = (sum >>> 1) ^ (0x82f63b78 & -(sum & 1));
    }
    return ~sum >>> 0;
  }
  const unmasked = (value: number): number => {
    const turned = (value - 0xa282ead8) >>> 0;
    return ((turned >>> 17) | (turned << 15)) >>> 0;
  };

  function eventsOf(file: Buffer): object[] {
    const events: object[] = [];
    for (let at = 0; at < file.length; ) {
      const length = Number(file.readBigUInt64LE(at));
      expect(unmasked(file.readUInt32LE(at + 8))).toBe(checksum(file.subarray(at, at + 8)));
      const data = file.subarray(at + 12, at + 12 + length);
      expect(unmasked(file.readUInt32LE(at + 12 + length))).toBe(checksum(data));
      events.push(root.lookupType("Event").toObject(root.lookupType("Event").decode(data), { longs: Number }));
      at += 16 + length;
    }
    return events;
  }

  test("writes event files that a reader of records and protocol buffers understands", async () => {
    await track({ kind: "tensorboard" });
    const [name] = await readdir(join(folder, "tensorboard"));
    expect(name).toMatch(/^events\.out\.tfevents\.\d{10}\./);
    const [version, ...events] = eventsOf(await readFile(join(folder, "tensorboard", name as string)));
    expect(version).toMatchObject({ fileVersion: "brain.Event:2" });
    expect(events).toEqual([
      {
        wallTime: 1_700_000_000.001,
        step: 1,
        summary: {
          value: [
            { tag: "seconds", simpleValue: 0.5 },
            { tag: "reward", simpleValue: 0.25 },
            { tag: "loss/kl", simpleValue: Math.fround(-1e-3) },
          ],
        },
      },
      {
        wallTime: 1_700_000_000.002,
        step: 2,
        summary: {
          value: [
            { tag: "seconds", simpleValue: 0.5 },
            { tag: "reward", simpleValue: Number.NaN },
          ],
        },
      },
    ]);
  });

  test("checksums are Castagnoli's", () => {
    expect(crc32c(Buffer.from("123456789"))).toBe(0xe3069283);
    fc.assert(fc.property(fc.uint8Array(), (data) => crc32c(data) === checksum(Buffer.from(data))));
  });

  test("large steps and long names are whole", async () => {
    const trackers = open({ kind: "tensorboard", folder: "boards" });
    trackers.event(stepFinished(2 ** 40, { ["x".repeat(300)]: 1 }));
    await trackers.close();
    const [name] = await readdir(join(folder, "boards", "run-1"));
    const [, event] = eventsOf(await readFile(join(folder, "boards", "run-1", name as string)));
    expect(event).toMatchObject({ step: 2 ** 40, summary: { value: [{}, { tag: "x".repeat(300) }] } });
  });

  test("a folder that cannot be made is named, and stops nothing", async () => {
    await writeFile(join(folder, "taken"), "");
    await track({ kind: "tensorboard", folder: "taken" });
    expect(warnings).toEqual([
      expect.stringContaining("metrics do not reach TensorBoard's files in"),
      expect.stringContaining("'2' rows"),
    ]);
  });
});

describe("mlflow", () => {
  type Call = {
    readonly path: string;
    readonly body: Record<string, unknown>;
    readonly authorization: string | undefined;
  };
  let server: Server;
  let calls: Call[];
  let experiments: Map<string, string>;
  let runs: { id: string; experiment: string; tags: { key: string; value: string }[] }[];
  let failing: (path: string) => boolean;
  let url: string;

  beforeEach(async () => {
    [calls, experiments, runs, failing] = [[], new Map(), [], () => false];
    server = createServer((request, response) => {
      void bodyOf(request).then((text) => {
        const asked = new URL(request.url ?? "", "http://server");
        const path = asked.pathname.replace("/api/2.0/mlflow/", "");
        const body = text === "" ? {} : (JSON.parse(text) as Record<string, unknown>);
        calls.push({ path, body, authorization: request.headers.authorization });
        const [status, answer] = failing(path)
          ? [500, { error_code: "INTERNAL_ERROR" }]
          : answerTo(path, asked.searchParams, body);
        response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(answer));
      });
    });
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
    url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  });
  afterEach(() => {
    server.closeAllConnections();
    server.close();
  });

  async function bodyOf(request: IncomingMessage): Promise<string> {
    let text = "";
    for await (const chunk of request.setEncoding("utf8")) text += chunk as string;
    return text;
  }

  /** The routes as MLflow has them. */
  function answerTo(path: string, query: URLSearchParams, body: Record<string, unknown>): [number, object] {
    switch (path) {
      case "experiments/get-by-name": {
        const id = experiments.get(query.get("experiment_name") ?? "");
        return id ? [200, { experiment: { experiment_id: id } }] : [404, { error_code: "RESOURCE_DOES_NOT_EXIST" }];
      }
      case "experiments/create":
        experiments.set(body["name"] as string, `${experiments.size}`);
        return [200, { experiment_id: `${experiments.size - 1}` }];
      case "runs/search": {
        const value = /^tags\.`treadle\.run` = '(.*)'$/.exec(body["filter"] as string)?.[1];
        const found = runs.filter(({ tags }) => tags.some((tag) => tag.key === "treadle.run" && tag.value === value));
        return [200, found.length === 0 ? {} : { runs: found.map(({ id }) => ({ info: { run_id: id } })) }];
      }
      case "runs/create":
        runs.push({ id: `r${runs.length}`, experiment: body["experiment_id"] as string, tags: body["tags"] as [] });
        return [200, { run: { info: { run_id: `r${runs.length - 1}` } } }];
      case "runs/log-batch":
      case "runs/update":
        return runs.some(({ id }) => id === body["run_id"])
          ? [200, {}]
          : [404, { error_code: "RESOURCE_DOES_NOT_EXIST" }];
      default:
        return [404, { error_code: "ENDPOINT_NOT_FOUND" }];
    }
  }
  const config = () => ({ kind: "mlflow", url, experiment: "sums" }) as const;

  test("gets an experiment, a run, its metrics and how it ended", async () => {
    await track(config(), { reward: 0.25, "loss(kl)": 1 });
    expect(warnings).toEqual([]);
    const logged = calls.filter(({ path }) => path === "runs/log-batch").flatMap(({ body }) => body["metrics"]);
    expect(logged).toEqual([
      { key: "seconds", value: 0.5, step: 1, timestamp: 1_700_000_000_001 },
      { key: "reward", value: 0.25, step: 1, timestamp: 1_700_000_000_001 },
      { key: "loss_kl_", value: 1, step: 1, timestamp: 1_700_000_000_001 },
      { key: "seconds", value: 0.5, step: 2, timestamp: 1_700_000_000_002 },
    ]);
    expect(calls.at(-1)).toMatchObject({ path: "runs/update", body: { run_id: "r0", status: "FINISHED" } });
  });

  test("goes on with the same run when the run is resumed", async () => {
    const begun = open(config());
    begun.event(stepFinished(1, {}));
    await begun.close();
    expect(calls.at(-1)?.body).toMatchObject({ status: "KILLED" });
    await track(config());
    expect(runs).toHaveLength(1);
    expect(experiments.size).toBe(1);
    expect(calls.map(({ body }) => body["status"]).filter(Boolean)).toEqual(["KILLED", "RUNNING", "FINISHED"]);
  });

  test("that refuses metrics is named with what it said", async () => {
    failing = (path) => path === "runs/log-batch";
    await track(config());
    expect(warnings[0]).toContain(
      `metrics do not reach MLflow at ${url}: it answered 500 to '/api/2.0/mlflow/runs/log-batch'`,
    );
    expect(warnings[1]).toContain("'2' rows");
  });

  test("that is not there is named", async () => {
    await track({ kind: "mlflow", url: "http://127.0.0.1:1", experiment: "sums" });
    expect(warnings[0]).toContain("metrics do not reach MLflow at http://127.0.0.1:1: fetch failed");
  });
});

describe("wandb", () => {
  /** A client that keeps what it is told in a file. */
  const double = `
import json, os, time
out = open(os.environ["WANDB_DOUBLE"], "a")
def say(*what):
    out.write(json.dumps(what) + "\\n")
    out.flush()
class Run:
    def log(self, values, step):
        print("noise", flush=True)
        if "hang" in values: time.sleep(600)
        if "refuse" in values: raise ValueError("no such metric")
        say("log", values, step)
    def finish(self, exit_code): say("finish", exit_code)
def init(**given):
    say("init", given)
    return Run()
`;
  beforeEach(async () => {
    await mkdir(join(folder, "modules"));
    await writeFile(join(folder, "modules", "wandb.py"), double);
    vi.stubEnv("PYTHONPATH", join(folder, "modules"));
    vi.stubEnv("WANDB_DOUBLE", join(folder, "said"));
  });
  afterEach(() => {
    vi.unstubAllEnvs();
  });
  const config = { kind: "wandb", project: "sums", mode: "offline", python: "python3" } as const;
  const said = async () =>
    (await readFile(join(folder, "said"), "utf8"))
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line));

  test("gets the run, its metrics and how it ended from the client", async () => {
    await track(config);
    expect(warnings).toEqual([]);
    expect(await said()).toEqual([
      ["init", { project: "sums", mode: "offline", id: "run-1", name: "run-1", dir: folder, resume: "allow" }],
      ["log", { seconds: 0.5, reward: 0.25, "loss/kl": -1e-3 }, 1],
      ["log", { seconds: 0.5 }, 2],
      ["finish", 0],
    ]);
  });

  test("that refuses a metric, or is not installed, is named", async () => {
    await track(config, { refuse: 1 });
    expect(warnings[0]).toContain("metrics do not reach W&B: ValueError: no such metric");
    warnings.length = 0;
    await writeFile(join(folder, "modules", "wandb.py"), "raise ImportError('no wandb')");
    await track(config);
    expect(warnings[0]).toContain("metrics do not reach W&B: ImportError: no wandb");
    expect(warnings[1]).toContain("'2' rows");
  });

  test("that hangs leaves no process", async () => {
    const { WandbTracker } = await import("../src/trackers/wandb.ts");
    const tracker = new WandbTracker({ ...config, runId: `hanging-${process.pid}`, folder });
    const feed = new TrackerFeed(tracker, warn, { callMs: 600_000, closeMs: 5000 });
    feed.write({ step: 1, atMs: 0, values: { hang: 1 } });
    await feed.close("failed");
    const running = () =>
      execFileSync("ps", ["-A", "-o", "args="], { encoding: "utf8" }).includes(`hanging-${process.pid}`);
    await expect.poll(running, { timeout: 30_000 }).toBe(false);
    expect(warnings.at(-1)).toBe("'1' rows of metrics were dropped for W&B");
  });
});

describe("a module of the project", () => {
  const tracked = async (text: string) => {
    await writeFile(join(folder, "own.mjs"), text);
    await track({ kind: "module", module: "own.mjs", settings: { team: "sums" } });
  };

  test("gets the rows, how the run ended, and its settings", async () => {
    const out = join(folder, "out.txt");
    await tracked(`import { appendFileSync } from "node:fs";
      const say = (value) => appendFileSync(${JSON.stringify(out)}, JSON.stringify(value) + "\\n");
      export const createTracker = async ({ runId, folder, steps, settings }) => {
        say({ runId, isThere: folder.length > 0, steps, settings });
        return { write: (rows) => rows.forEach(({ step, values }) => say({ step, reward: values.reward })), close: say };
      };`);
    const lines = (await readFile(out, "utf8")).trim().split("\n");
    expect(lines.map((line) => JSON.parse(line))).toEqual([
      { runId: "run-1", isThere: true, steps: 2, settings: { team: "sums" } },
      { step: 1, reward: 0.25 },
      { step: 2, reward: null },
      "finished",
    ]);
    expect(warnings).toEqual([]);
  });

  test.each([
    ["export const other = 1;", "exports no function 'createTracker'"],
    ["export const createTracker = () => undefined;", "whose 'createTracker' returned 'undefined'; return the tracker"],
    ["export const createTracker = () => ({ close() {} });", "whose tracker lacks 'write'; return { write(rows)"],
    ["export const createTracker = () => { throw new Error('no such team'); };", "no such team"],
    ["import './missing.mjs';", "missing.mjs"],
    ["export const createTracker = () => ({ write() { throw new Error('is full'); } });", "is full"],
    ["export const createTracker = () => { throw undefined; };", "whose 'createTracker' threw 'undefined'"],
    ["export const createTracker = () => ({ write() { throw 'is full'; } });", "is full"],
    ["export const createTracker = () => ({ write: () => Promise.reject() });", "'undefined' was thrown"],
  ])("TK1 that fails reaches no step, and says why: %s", async (text, why) => {
    await tracked(text);
    expect(warnings[0]).toContain(why);
    expect(warnings.at(-1)).toMatch(/'2' rows of metrics were dropped for 'own.mjs'/);
  });
});
