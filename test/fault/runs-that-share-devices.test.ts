/** `treadle multiplex` and `treadle pool` as a user starts them: whatever becomes of one run or of the pool, nothing is left, and others go on. */
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { replayRun } from "@treadle/runtime/runner";
import { startNatsServer } from "@treadle/transport/testing";
import { afterEach, expect, test } from "vitest";
import { isAlive } from "../support/cluster.ts";
import { projectRoot } from "../support/project.ts";
import { type Finished, type Started, startTreadle, temporaryRuns, treadle, until } from "../support/treadle.ts";

const turns = fileURLToPath(new URL("../support/workflows/turns", import.meta.url));
/** So long that a machine with much else to do passes for alive. */
const beatLimit = ["--beat-limit", "30"];
const minutes = 60_000;

const started: Started[] = [];
afterEach(() => {
  for (const { child } of started.splice(0)) if (child.exitCode === null) child.kill("SIGKILL");
});

type Share = { readonly a?: readonly string[]; readonly b?: readonly string[]; readonly flags?: readonly string[] };

function share(root: string, { a = [], b = [], flags = [] }: Share): Started & { readonly ledger: () => string[] } {
  const file = join(root, "turns.txt");
  const settings = (run: string, own: readonly string[]) =>
    [`name=${run}`, `ledger=${file}`, ...own].flatMap((each) => ["--set", `${run}.${each}`]);
  const all = [`a=${turns}`, `b=${turns}`, ...settings("a", a), ...settings("b", b), ...beatLimit, ...flags];
  const multiplex = startTreadle(["multiplex", "--json", "--runs", root, ...all]);
  started.push(multiplex);
  const ledger = () => (existsSync(file) ? readFileSync(file, "utf8").trim().split("\n") : []);
  return { ...multiplex, ledger };
}

type Outcome = { readonly name: string; readonly runId: string; readonly outcome: string; readonly why?: string };
const outcomes = ({ stdout, stderr }: Finished): Record<string, Outcome> => {
  expect(stdout, stderr).toMatch(/^\{/);
  const { runs } = JSON.parse(stdout) as { runs: Outcome[] };
  return Object.fromEntries(runs.map((run) => [run.name, run]));
};

/** Processes of a run with its folder below `root`, the one that decides first: other tests have runs of that name. */
function processesOf(run: string, root: string): number[] {
  return readdirSync("/proc")
    .filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid)
    .map(Number)
    .filter((pid) => {
      try {
        const words = readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0");
        return words.includes("--pooled") && words.includes(root) && words.includes(`name=${run}`);
      } catch {
        return false; // it has just ended
      }
    });
}

/** Of all runs, by what they have told. */
async function workersOf(root: string): Promise<number[]> {
  const runs = (await readdir(root)).filter((name) => existsSync(join(root, name, "events.jsonl")));
  const texts = await Promise.all(runs.map((run) => readFile(join(root, run, "events.jsonl"), "utf8")));
  return texts.flatMap(workersIn);
}

/** Those that have ended may wait for a moment to be reaped. */
async function expectNoneLeft(root: string): Promise<void> {
  const workers = await workersOf(root);
  expect(workers.length).toBeGreaterThan(0);
  await until(() => !workers.some(isAlive));
}

/** No turn begins before the one before has ended, unless it was cut short by the end of its run. */
function expectTurns(ledger: readonly string[], cutShort?: string): void {
  let holder: string | undefined;
  for (const line of ledger) {
    const [run, what] = line.split(" ");
    if (what === "begins") {
      expect([undefined, cutShort], `'${line}' while '${holder}' holds`).toContain(holder);
      holder = run;
    } else {
      expect(holder, line).toBe(run);
      holder = undefined;
    }
  }
}
const endsOf = (ledger: readonly string[], run: string): string[] =>
  ledger.filter((line) => line.startsWith(`${run} ends`));

test(
  "PD2, LL1: two runs take turns on a device, one by one, and both finish",
  async () => {
    await using runs = await temporaryRuns();
    const shared = share(runs.path, { a: ["steps=6", "waitsFor=b ends 1"], b: ["steps=6", "waitsFor=a ends 1"] });
    const finished = await shared.finished;
    expect(outcomes(finished)).toMatchObject({ a: { outcome: "finished" }, b: { outcome: "finished" } });
    expect(finished.code).toBe(0);
    expectTurns(shared.ledger());
    expect(endsOf(shared.ledger(), "a")).toHaveLength(6);
    expect(endsOf(shared.ledger(), "b")).toHaveLength(6);
  },
  5 * minutes,
);

test(
  "MR1, PS2: a run is killed while it has the device: the other goes on, nothing is left, and it is resumed",
  async () => {
    await using runs = await temporaryRuns();
    const shared = share(runs.path, { a: ["holdMs=2000", "steps=3"], b: ["steps=8", "waitsFor=a begins 2"] });
    await until(() => shared.ledger().at(-1) === "a begins 2");
    const [runner] = processesOf("a", runs.path);
    process.kill(runner as number, "SIGKILL");
    const finished = await shared.finished;
    const { a, b } = outcomes(finished);
    expect(a).toMatchObject({ outcome: "failed", why: expect.stringContaining("SIGKILL") });
    expect(b).toMatchObject({ outcome: "finished" });
    expect(finished.code).toBe(1);
    expectTurns(shared.ledger(), "a");
    expect(endsOf(shared.ledger(), "b")).toHaveLength(8);
    await expectNoneLeft(runs.path);
    const resumed = await treadle(["resume", (a as Outcome).runId, "--runs", runs.path, "--set", "holdMs=1", "--json"]);
    expect(JSON.parse(resumed.stdout)).toMatchObject({ steps: 3 });
  },
  5 * minutes,
);

test(
  "PD7: a run that is stopped while it has the device is ended by name, and the other goes on",
  async () => {
    await using runs = await temporaryRuns();
    const shared = share(runs.path, { a: ["holdMs=1000", "steps=3"], b: ["steps=4", "waitsFor=a begins 1"] });
    await until(() => shared.ledger().includes("a begins 1"));
    process.kill(processesOf("a", runs.path)[0] as number, "SIGSTOP");
    const { a, b } = outcomes(await shared.finished);
    expect(a).toMatchObject({ outcome: "ended", why: expect.stringContaining("run 'a' gave no sign of life") });
    expect(b).toMatchObject({ outcome: "finished" });
    await expectNoneLeft(runs.path);
  },
  5 * minutes,
);

test(
  "PD6: a run that never yields is told to, and ended by name when it has not; the other goes on",
  async () => {
    await using runs = await temporaryRuns();
    const flags = ["--turn", "0.1", "--yield-limit", "20"];
    const shared = share(runs.path, { a: ["holdMs=1000000000"], b: ["steps=4", "waitsFor=a begins 1"], flags });
    const { a, b } = outcomes(await shared.finished);
    expect(a).toMatchObject({
      outcome: "ended",
      why: expect.stringContaining("run 'a' was told to yield its devices"),
    });
    expect(b).toMatchObject({ outcome: "finished" });
    expectTurns(shared.ledger(), "a");
    await expectNoneLeft(runs.path);
  },
  5 * minutes,
);

test(
  "PD8: a run that must be as fast as alone shares its device with nobody: the other is admitted at its end",
  async () => {
    await using runs = await temporaryRuns();
    const shared = share(runs.path, { a: ["steps=4", "pool.maxSlowdown=1"], b: ["steps=4", "pool.maxSlowdown=1"] });
    const finished = await shared.finished;
    expect(outcomes(finished)).toMatchObject({ a: { outcome: "finished" }, b: { outcome: "finished" } });
    expectTurns(shared.ledger());
    const holders = shared.ledger().map((line) => line.split(" ")[0]);
    expect(holders.filter((run, i) => run !== holders[i - 1])).toHaveLength(2);
  },
  5 * minutes,
);

test(
  "S4: when the process that has the pool is killed, its runs end, and leave no process",
  async () => {
    await using runs = await temporaryRuns();
    const shared = share(runs.path, { a: ["steps=1000"], b: ["steps=1000"] });
    await until(() => endsOf(shared.ledger(), "a").length > 0 && endsOf(shared.ledger(), "b").length > 0);
    const all = [...processesOf("a", runs.path), ...processesOf("b", runs.path), ...(await workersOf(runs.path))];
    expect(all.length).toBeGreaterThanOrEqual(4);
    shared.child.kill("SIGKILL");
    await until(() => all.every((pid) => !isAlive(pid)));
  },
  5 * minutes,
);

test(
  "S2: a worker that dies while it has the device is started again within its run, and both runs finish",
  async () => {
    await using runs = await temporaryRuns();
    const shared = share(runs.path, { a: ["holdMs=2000", "steps=3"], b: ["steps=6", "waitsFor=a begins 2"] });
    await until(() => shared.ledger().includes("a begins 2"));
    const [holder] = await workersOfRun(runs.path, "a");
    process.kill(holder as number, "SIGKILL");
    const finished = await shared.finished;
    expect(outcomes(finished)).toMatchObject({ a: { outcome: "finished" }, b: { outcome: "finished" } });
    expectTurns(shared.ledger(), "a");
  },
  5 * minutes,
);

async function workersOfRun(root: string, name: string): Promise<number[]> {
  for (const run of await readdir(root)) {
    if (isRunOf(join(root, run), name)) return workersIn(await readFile(join(root, run, "events.jsonl"), "utf8"));
  }
  return [];
}

const workersIn = (events: string): number[] =>
  [...events.matchAll(/"type":"worker-(?:re)?started"[^\n]*?"pid":(\d+)/g)].map(([, pid]) => Number(pid));

test(
  "PS2, PS3, PS4, PD9: a pool is killed and started again under its runs, one of which is killed and resumed: all finish, in turns",
  async () => {
    await using nats = await startNatsServer();
    await using runs = await temporaryRuns();
    const file = join(runs.path, "turns.txt");
    const ledger = () => (existsSync(file) ? readFileSync(file, "utf8").trim().split("\n") : []);
    const there = ["--nats", nats.url];
    const start = (args: readonly string[]): Started => {
      const process = startTreadle([...args, ...there]);
      started.push(process);
      return process;
    };
    const startPool = async (): Promise<Started> => {
      const pool = start(["pool", "start", "shared", "--runs", runs.path, "--turn", "0.1", "--beat-limit", "60"]);
      await until(() => pool.output().includes("is ready for runs") || pool.child.exitCode !== null);
      expect(pool.child.exitCode, pool.output()).toBeNull();
      return pool;
    };
    const run = (name: string, ...own: readonly string[]): Started => {
      const settings = [`name=${name}`, `ledger=${file}`, ...own].flatMap((each) => ["--set", each]);
      return start(["run", turns, "--pool", "shared", "--json", "--runs", runs.path, ...settings]);
    };
    const names = async (): Promise<string[]> => {
      const { stdout, stderr } = await treadle(["pool", "status", "--json", ...there]);
      expect(stderr).toBe("");
      const { pools } = JSON.parse(stdout) as { pools: { runs: { run: string }[] }[] };
      return pools.flatMap((pool) => pool.runs.map((each) => each.run));
    };

    const first = await startPool();
    const a = run("a", "steps=60", "holdMs=200", "waitsFor=b ends 1");
    const b = run("b", "steps=12", "holdMs=50", "waitsFor=a ends 1");
    await until(() => endsOf(ledger(), "a").length > 2 && endsOf(ledger(), "b").length > 2);
    first.child.kill("SIGKILL");
    await first.finished;
    const pool = await startPool();
    const numEnded = endsOf(ledger(), "a").length;
    await until(() => endsOf(ledger(), "a").length > numEnded + 1);
    const [runId] = (await readdir(runs.path)).filter((name) => isRunOf(join(runs.path, name), "a"));
    expect(await names()).toContain(runId);
    await until(() => ledger().at(-1)?.startsWith("a begins") === true);
    a.child.kill("SIGKILL");
    const finished = await b.finished;
    expect(finished.code, finished.stderr).toBe(0);
    await until(async () => (await names()).length === 0);
    const resumed = start([
      ...["resume", runId as string, "--pool", "shared", "--json", "--runs", runs.path],
      ...["--set", "holdMs=1"],
    ]);
    const { stdout, stderr } = await resumed.finished;
    expect(stdout, stderr).toContain('"steps":60');
    pool.child.kill("SIGTERM");
    expect((await pool.finished).code).toBe(0);
    const page = await treadle(["trace", "--pool", "--runs", runs.path]);
    expect(page.stdout, page.stderr).toMatch(/pool-shared-\d+\.html: 2 runs, /);
    expectTurns(ledger(), "a");
    expect(endsOf(ledger(), "b")).toHaveLength(12);
    await expectNoneLeft(runs.path);
  },
  5 * minutes,
);

const isRunOf = (folder: string, name: string): boolean => {
  const config = join(folder, "config.json");
  return existsSync(config) && readFileSync(config, "utf8").includes(`"name": "${name}"`);
};

test("what is wrong with one run is said before any begins, by its name and key", async () => {
  await using runs = await temporaryRuns();
  const wrong = [...["0", "-1", ".nan", ".inf"].map((weight) => `weight=${weight}`), "maxSlowdown=0.9"];
  for (const setting of wrong) {
    const finished = await share(runs.path, { b: [`pool.${setting}`] }).finished;
    expect(finished.code, finished.stderr).toBe(2);
    expect(finished.stderr).toMatch(new RegExp(`run 'b': [\\s\\S]*pool\\.${setting.split("=")[0]}`));
  }
  expect(await readdir(runs.path)).toEqual([]);
}, 300_000);

test("PD1: a run that asks for memory which no device has is refused, with what is missing; the other goes on", async () => {
  await using runs = await temporaryRuns();
  const own = ["steps=1", "cluster.memoryPerDeviceMiB=100"];
  const { a, b } = outcomes(await share(runs.path, { a: own, b: [...own, "pool.memoryPerDeviceMiB=130"] }).finished);
  expect(a).toMatchObject({ outcome: "finished" });
  expect(b).toMatchObject({
    outcome: "failed",
    why: expect.stringContaining("'30' less than pool.memoryPerDeviceMiB"),
  });
}, 300_000);

test(
  "an on-policy run learns the same in a pool as alone, bit for bit",
  async () => {
    await using runs = await temporaryRuns();
    // Of one rank: the order in which the items of several arrive is not the same in two runs alone.
    const settings = ["steps=6", "batch=16", "cluster.devices=1"];
    const flags = ["one", "two"].flatMap((run) => settings.flatMap((each) => ["--set", `${run}.${each}`]));
    const pooled = outcomes(
      await treadle([
        ...["multiplex", "--json", "--runs", runs.path, "one=workflows/bandit", "two=workflows/bandit"],
        ...["--set", "two.seed=8", "--turn", "0.001", ...beatLimit, ...flags],
        ...["one", "two"].flatMap((run) => ["--set", `${run}.observe.record=true`]),
      ]),
    );
    for (const [name, seed] of Object.entries({ one: 7, two: 8 })) {
      const own = settings.flatMap((each) => ["--set", each]);
      const args = ["run", "workflows/bandit", "--json", "--runs", runs.path, ...own, "--set", `seed=${seed}`];
      const { runId } = JSON.parse((await treadle(args)).stdout) as { runId: string };
      const learnt = await learntBy(join(runs.path, runId));
      expect(learnt.state.length).toBeGreaterThan(0);
      expect(learnt.rewards).toHaveLength(6);
      const folder = join(runs.path, (pooled[name] as Outcome).runId);
      expect(await learntBy(folder), name).toEqual(learnt);
      // RS7: what it decided, leases included, is decided again from what it wrote down.
      const { recordings } = await replayRun(folder, projectRoot);
      expect(recordings).toMatchObject([{ inputs: expect.toSatisfy((inputs: number) => inputs > 100) }]);
    }
  },
  5 * minutes,
);

async function learntBy(folder: string): Promise<{ rewards: unknown[]; state: string[] }> {
  const events = (await readFile(join(folder, "events.jsonl"), "utf8")).trim().split("\n");
  const finished = events.map((line) => JSON.parse(line)).filter(({ type }) => type === "step-finished");
  const rewards = finished.map(({ metrics }: { metrics: unknown }) => metrics);
  const [component = ""] = await readdir(join(folder, "state"));
  const part = join(folder, "state", component, "rank-0");
  const files = (await readdir(part, { recursive: true, withFileTypes: true })).filter((each) => each.isFile());
  const state = await Promise.all(
    files.map(async (file) => (await readFile(join(file.parentPath, file.name))).toString("base64")),
  );
  return { rewards, state };
}
