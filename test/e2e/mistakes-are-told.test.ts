/** Mistakes of a newcomer's first workflow, and what a run says of them: each in a process, as they would see it. */
import { once } from "node:events";
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import type { RunEvent } from "@treadle/contracts";
import { expect, test } from "vitest";
import { isAlive } from "../support/cluster.ts";
import { pidsOf } from "../support/ledger.ts";
import { startTreadle, temporaryRuns, treadle, until } from "../support/treadle.ts";

const args = (runs: string, mistake: string, ...settings: string[]) => [
  ...["run", "test/support/workflows/mistakes", "--plain", "--runs", runs, "--set", `mistake=${mistake}`],
  ...settings.flatMap((set) => ["--set", set]),
];

test("an endless loop is named with its worker, method and line, and a second signal ends the run with its worker", async () => {
  await using runs = await temporaryRuns();
  const started = startTreadle(args(runs.path, "endless-loop", "supervision.stallMs=2000"));
  await until(() => /without a pause/.test(started.output()));
  expect(started.output()).toMatch(
    /'judge\/0' has computed in 'score' for \d+ s without a pause, now at 'backtrack' \(test\/support\/workflows\/mistakes\/run\.ts:\d+:\d+\), called by 'score' \(\S+\);/,
  );
  const [run = ""] = await readdir(runs.path);
  const events = (await readFile(join(runs.path, run, "events.jsonl"), "utf8")).trim().split("\n");
  const pids = pidsOf(events.map((line) => JSON.parse(line) as RunEvent));
  expect(pids).toHaveLength(1);
  started.child.kill("SIGTERM");
  await until(() => started.output().includes("press Ctrl-C again"));
  expect(pids.filter(isAlive)).toEqual(pids);
  started.child.kill("SIGTERM");
  expect((await started.finished).code).toBe(130);
  await until(() => !pids.some(isAlive));
});

test("a workflow that computes for ever is told of, and the next signal ends it with its workers", async () => {
  await using runs = await temporaryRuns();
  const started = startTreadle(args(runs.path, "endless-workflow"));
  const ended = once(started.child, "exit");
  await until(() =>
    /has computed for \d+ s without a pause: should it be told to stop .* it ends at once/.test(started.output()),
  );
  const [run = ""] = await readdir(runs.path);
  const events = (await readFile(join(runs.path, run, "events.jsonl"), "utf8")).trim().split("\n");
  const pids = pidsOf(events.map((line) => JSON.parse(line) as RunEvent));
  expect(pids).toHaveLength(1);
  started.child.kill("SIGTERM");
  expect(await ended).toEqual([null, "SIGTERM"]);
  await until(() => !pids.some(isAlive));
});

test("items that nobody takes are named when their step ends", async () => {
  await using runs = await temporaryRuns();
  const { code, stdout } = await treadle(args(runs.path, "never-taken"));
  expect(code).toBe(0);
  expect(stdout).toContain("channel 'doubled' holds '2' items of step 1 that nobody took");
});

test("a handle that is awaited before anything can be put names the missing call, and ends as a misuse", async () => {
  await using runs = await temporaryRuns();
  const { code, stdout, stderr } = await treadle(args(runs.path, "never-put", "supervision.stallMs=1000"));
  expect(code).toBe(2);
  expect(stdout).toContain("'judge.double' waits for items of 'items', into which no open call puts");
  expect(stderr).toContain("make the call that gets 'items.sink' before awaiting 'judge.double'");
});

test("a result that cannot leave its worker is named with worker, method and field, and a lock without await is warned of", async () => {
  await using runs = await temporaryRuns();
  const { code, stdout, stderr } = await treadle(args(runs.path, "function-in-result"));
  expect(code).toBe(2);
  expect(stderr.replace(/\s+/g, " ")).toContain(
    "what 'judge/0' returned from 'explain' holds a function in 'scores.0.judge', which cannot leave its process",
  );
  expect(stdout).toContain("'explain' ended without giving its device lock back; write 'await using _ = await");
});

test("an instance whose methods would be lost on a channel is refused, by item, field and method", async () => {
  await using runs = await temporaryRuns();
  const { code, stderr } = await treadle(args(runs.path, "instance-on-channel"));
  expect(code).toBe(2);
  expect(stderr.replace(/\s+/g, " ")).toContain(
    "item '0' put into channel 'priced' holds an instance of 'Money' with its method 'euros' in 'price'",
  );
});

test("items of one id are warned of, once", async () => {
  await using runs = await temporaryRuns();
  const { code, stdout } = await treadle(args(runs.path, "same-ids", "steps=3"));
  expect(code).toBe(0);
  expect(stdout.match(/two items are called 'x', of steps 1 and 1/g)).toHaveLength(1);
});

test("validate names a reward that does not exist, and a vocabulary that the alphabet does not fit", async () => {
  for (const [setting, said] of [
    ["reward.name=arithmetik", "did you mean 'arithmetic'"],
    ["model.vocabSize=4", "'model.vocabSize' is '4'"],
  ] as const) {
    const { code, stderr } = await treadle(["validate", "workflows/reasoning-grpo", "--set", setting]);
    expect(code).toBe(2);
    expect(stderr.replace(/\s+/g, " ")).toContain(said);
  }
});

test("devices that must stay free are named where auto has too few without them", async () => {
  const sets = ["placement.mode=auto", "placement.wishes.freeDevices=0-5", "placement.wishes.modes=[spatial]"];
  const { code, stderr } = await treadle(["validate", "workflows/emulated", ...sets.flatMap((set) => ["--set", set])]);
  expect(code).toBe(2);
  expect(stderr).toContain("placement.wishes.freeDevices '0-5' leaves too few devices, 2 of 8");
});
