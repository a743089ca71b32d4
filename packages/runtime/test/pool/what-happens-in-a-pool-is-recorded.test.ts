import { spawnSync } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmdirSync,
  rmSync,
  statSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { PoolEntry } from "@treadle/contracts";
import { afterEach, beforeEach, expect, test } from "vitest";
import { DevicePool } from "../../src/pool/device-pool.ts";
import {
  listPoolHistories,
  newPoolHistoryName,
  PoolHistoryFile,
  poolHistoryFiles,
} from "../../src/pool/pool-history-file.ts";

const never = 1_000_000_000;
const limits = { residents: 2, turnMs: never, patienceMs: never, yieldMs: never, beatLimitMs: never };
const devices = [{ id: "gpu:0", memoryMiB: 100 }];

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "treadle-pool-history-"));
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

const entriesIn = (file: string): PoolEntry[] =>
  readFileSync(file, "utf8")
    .trimEnd()
    .split("\n")
    .map((line) => PoolEntry.parse(JSON.parse(line)));

/** Two runs that take turns on a device so many times; what that leads to is written after every so many. */
async function takeTurns(history: PoolHistoryFile, turns: number, writtenAfter = turns) {
  const pool = new DevicePool(limits, { history });
  const granted = { a: 0, b: 0 };
  for (const run of ["a", "b"] as const) {
    const reply = (message: { readonly type: string }) => {
      if (message.type === "granted") granted[run]++;
    };
    pool.add(run, { reply, end: (why) => expect.fail(why) });
    history.isRun(run, `20260101-000000-${run}-0000000`);
    pool.received(run, { type: "join", member: { priority: 0, weight: 1, devices } });
    pool.received(run, { type: "request", devices: ["gpu:0"] });
  }
  for (let turn = 1; turn <= turns; turn++) {
    const run = turn % 2 === 1 ? "a" : "b";
    pool.received(run, { type: "release", token: turn });
    pool.received(run, { type: "request", devices: ["gpu:0"] });
    if (turn % writtenAfter === 0) await history.flush();
  }
  return { pool, granted };
}

test("a history says which folder a run has, who held what, and who waited for whom, by the clock of traces", async () => {
  const name = newPoolHistoryName();
  const history = new PoolHistoryFile({ folder, name });
  const beganMs = Date.now();
  const { pool } = await takeTurns(history, 1);
  await pool.close();
  const [old, newest] = poolHistoryFiles(folder, name);
  expect(() => statSync(old)).toThrow(/ENOENT/);
  expect(statSync(newest).mode & 0o077).toBe(0);
  const entries = entriesIn(newest);
  expect(entries.map(({ atMs: _, ...entry }) => entry)).toEqual([
    { type: "run", run: "a", runId: "20260101-000000-a-0000000" },
    { type: "stage", run: "a", stage: "resident" },
    { type: "holds", run: "a", token: 1, devices: ["gpu:0"] },
    { type: "run", run: "b", runId: "20260101-000000-b-0000000" },
    { type: "stage", run: "b", stage: "resident" },
    { type: "waits", run: "b", on: { type: "devices", runs: ["a"] } },
    { type: "released", token: 1 },
    { type: "holds", run: "b", token: 2, devices: ["gpu:0"] },
    { type: "waits", run: "b", on: null },
    { type: "waits", run: "a", on: { type: "devices", runs: ["b"] } },
  ]);
  expect(Math.abs((entries[0] as PoolEntry).atMs - beganMs)).toBeLessThan(60_000);
  expect(await listPoolHistories(folder)).toEqual([{ name, files: [newest] }]);
});

test("PH2: a history stays within its size, and either of its two files says by itself what was so when it began", async () => {
  const maxBytes = 4000;
  const history = new PoolHistoryFile({ folder, name: "pool-x", maxBytes });
  const { pool, granted } = await takeTurns(history, 300, 3);
  await pool.close();
  expect(granted.a + granted.b).toBe(301);
  for (const file of poolHistoryFiles(folder, "pool-x")) {
    expect(statSync(file).size).toBeLessThan(maxBytes + 2000);
    const [first, second, ...rest] = entriesIn(file);
    expect([first, second].map((entry) => entry?.type)).toEqual(["run", "run"]);
    const stages = rest.flatMap((entry) => (entry.type === "stage" ? [entry.run] : []));
    expect(stages.sort()).toEqual(["a", "b"]);
    const known = new Set<number>();
    for (const entry of rest) {
      if (entry.type === "holds") known.add(entry.token);
      if (entry.type === "released") expect(known.has(entry.token), `${entry.token} is known`).toBe(true);
    }
    expect(known.size).toBeGreaterThan(1);
  }
});

test("PH1: lines that cannot be written as fast as they come are lost, and then all that is so is said again", async () => {
  const history = new PoolHistoryFile({ folder, name: "pool-x", maxBytes: 20_000 });
  const { pool } = await takeTurns(history, 200, 200);
  const lost = 201;
  pool.received("a", { type: "release", token: lost });
  await pool.close();
  const [old, newest] = poolHistoryFiles(folder, "pool-x").map(entriesIn) as [PoolEntry[], PoolEntry[]];
  const all = [...old, ...newest];
  const tokens = all.flatMap((entry) => (entry.type === "holds" ? [entry.token] : []));
  expect(new Set(tokens).size).toBeLessThan(200);
  const last = new Map(all.flatMap((entry) => (entry.type === "stage" ? [[entry.run, entry.stage]] : [])));
  expect([...last]).toEqual([
    ["a", "resident"],
    ["b", "resident"],
  ]);
  expect(heldBy(all)).toEqual([lost + 1]);
});

/** What a reader takes for held, by entries alone. */
function heldBy(entries: readonly PoolEntry[]): number[] {
  const held = new Set<number>();
  let doubtful = new Set<number>();
  for (const entry of entries) {
    if (entry.type === "holds") held.add(entry.token);
    else if (entry.type === "released") held.delete(entry.token);
    else if (entry.type === "lost") {
      doubtful = new Set([...doubtful, ...held]);
      held.clear();
    }
  }
  expect(doubtful.size, "the history says that it has lost lines").toBeGreaterThan(0);
  return [...held];
}

const blocks = {
  "a write that fails": (newest: string) => {
    renameSync(newest, `${newest}.aside`);
    mkdirSync(newest);
    return () => {
      rmdirSync(newest);
      renameSync(`${newest}.aside`, newest);
    };
  },
  "a write that fails half-way": (newest: string) => {
    const undo = blocks["a write that fails"](newest);
    return () => {
      undo();
      writeFileSync(newest, '{"type":"holds","atMs":1', { flag: "a" });
    };
  },
};

test.for(Object.entries(blocks))(
  "PH1: after %s, what is so is said again, and nothing else is taken for so",
  async ([_, block]) => {
    const history = new PoolHistoryFile({ folder, name: "pool-x" });
    const { pool } = await takeTurns(history, 4, 1);
    const [, newest] = poolHistoryFiles(folder, "pool-x");
    const unblock = block(newest);
    const turn = (token: number) => {
      const run = token % 2 === 1 ? "a" : "b";
      pool.received(run, { type: "release", token });
      pool.received(run, { type: "request", devices: ["gpu:0"] });
    };
    for (const token of [5, 6, 7]) {
      turn(token);
      await history.flush();
    }
    unblock();
    turn(8);
    await pool.close();
    const lines = readFileSync(newest, "utf8").trimEnd().split("\n");
    const whole = lines.filter((line) => line.endsWith("}")).map((line) => PoolEntry.parse(JSON.parse(line)));
    expect(heldBy(whole)).toEqual([9]);
    const afterLoss = whole.slice(whole.findIndex(({ type }) => type === "lost"));
    expect(afterLoss.flatMap((entry) => (entry.type === "run" || entry.type === "stage" ? [entry.run] : []))).toEqual([
      "a",
      "b",
      "a",
      "b",
    ]);
  },
);

test("PH1: a disk that stays full does not push the history out of its files", async () => {
  const maxBytes = 4000;
  const history = new PoolHistoryFile({ folder, name: "pool-x", maxBytes });
  const { pool } = await takeTurns(history, 2, 1);
  const [old, newest] = poolHistoryFiles(folder, "pool-x");
  const before = readFileSync(newest, "utf8");
  const unblock = blocks["a write that fails"](newest);
  for (let token = 3; token < 103; token++) {
    const run = token % 2 === 1 ? "a" : "b";
    pool.received(run, { type: "release", token });
    pool.received(run, { type: "request", devices: ["gpu:0"] });
    await history.flush();
  }
  unblock();
  await pool.close();
  expect(existsSync(old)).toBe(false);
  expect(readFileSync(newest, "utf8").startsWith(before)).toBe(true);
});

test("histories are plain files, with their old half alone too, and the newest is last", async () => {
  const path = (name: string) => join(folder, name);
  const write = (name: string, atSeconds: number) => {
    writeFileSync(path(name), "");
    utimesSync(path(name), atSeconds, atSeconds);
  };
  write("pool-b.jsonl", 1000);
  write("pool-a.old.jsonl", 2000);
  write("pool-c.jsonl", 500);
  write("pool-c.old.jsonl", 400);
  write("other.jsonl", 9000);
  mkdirSync(path("pool-folder.jsonl"));
  symlinkSync(path("nowhere"), path("pool-dangling.jsonl"));
  expect(spawnSync("mkfifo", [path("pool-fifo.jsonl"), path("pool-b.old.jsonl")]).status).toBe(0);
  expect(await listPoolHistories(folder)).toEqual([
    { name: "pool-c", files: [path("pool-c.old.jsonl"), path("pool-c.jsonl")] },
    { name: "pool-b", files: [path("pool-b.jsonl")] },
    { name: "pool-a", files: [path("pool-a.old.jsonl")] },
  ]);
  expect(await listPoolHistories(path("nowhere"))).toEqual([]);
});

test("PH1: where nothing can be written, runs get their devices all the same", async () => {
  const file = join(folder, "no-folder");
  writeFileSync(file, "");
  const { pool, granted } = await takeTurns(new PoolHistoryFile({ folder: file, name: "pool-x", maxBytes: 2000 }), 100);
  await pool.close();
  expect(granted.a + granted.b).toBe(101);
});
