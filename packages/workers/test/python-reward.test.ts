/** A reward that is a Python function: what it is called with, and what becomes of one that fails. */
import { execFileSync } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Prompt } from "@treadle/contracts";
import { type Reward, scoreCompletion } from "@treadle/learning";
import { afterAll, afterEach, beforeAll, expect, test, vi } from "vitest";
import { pythonReward } from "../src/reward/python-reward.ts";

/** Seconds that no other process sleeps. */
const nap = 600 + process.pid / 1e7;

const functions = `
import os, subprocess, time
print("imported")
started = os.getpid()

def check(prompt, completion, answer, metadata):
    assert os.getpid() != started
    print("scoring", flush=True)
    assert prompt == [{"role": "user", "content": "2 + 2 — ½"}], prompt
    return metadata["weight"] if completion == answer else 0

def share(completion, **_):
    return len(completion) / 10

def bad(completion, **_):
    return {"a": 1}[completion]

def odd(completion, **_):
    return float(completion)

def hang(completion, **_):
    if completion == "hang":
        subprocess.run(["sleep", "${nap}"])
    return 1

def die(completion, **_):
    if completion == "die":
        os._exit(3)
    return 1
`;

let folder: string;
const opened: Reward[] = [];
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-python-reward-"));
  await writeFile(join(folder, "rewards.py"), functions);
  await writeFile(join(folder, "broken.py"), "import missing_module\n");
});
afterAll(() => rm(folder, { recursive: true, force: true }));
afterEach(async () => {
  for (const reward of opened.splice(0)) await reward.close?.();
});

const warnings: string[] = [];
async function open(name: string, more: object = {}): Promise<Reward> {
  const reward = pythonReward.create({ name: "python", function: join(folder, name), ...more }, "reward");
  opened.push(reward);
  await reward.open?.({ warn: (message) => warnings.push(message) });
  return reward;
}
const prompt: Prompt = { id: "p", tokens: Int32Array.of(), answer: "4" };
const score = (reward: Reward, text: string, asked: Prompt = prompt) =>
  scoreCompletion(reward, asked, { tokens: Int32Array.of(), text });

test("the function gets the chat, the completion, the answer and the metadata, each call in a process of its own", async () => {
  const reward = await open("rewards.py:check");
  const asked = { ...prompt, messages: [{ role: "user", content: "2 + 2 — ½" }], metadata: { weight: 0.25 } };
  expect(await Promise.all(["4", "5", "4\n"].map((text) => score(reward, text, asked)))).toEqual([0.25, 0, 0]);
});

test("many calls at once are each answered with their own score (PR1)", async () => {
  const reward = await open("rewards.py:share");
  const texts = Array.from({ length: 200 }, (_, length) => "x".repeat(length));
  expect(await Promise.all(texts.map((text) => score(reward, text)))).toEqual(texts.map(({ length }) => length / 10));
});

test("what the function raises ends the run with the error and its line, and the next call is answered", async () => {
  const reward = await open("rewards.py:bad");
  await expect(score(reward, "b")).rejects.toThrow(
    /rewards\.py:bad': raised: KeyError: 'b', at File .*rewards\.py", line 16/,
  );
  expect(await score(reward, "a")).toBe(1);
});

test("a score that is no finite number is refused", async () => {
  const reward = await open("rewards.py:odd");
  await expect(score(reward, "nan")).rejects.toThrow("returned nan");
  await expect(score(reward, "inf")).rejects.toThrow("returned inf");
  expect(await score(reward, "-1.5")).toBe(-1.5);
});

test("a call beyond its deadline is ended with what it started, or gets the reward for failures", async () => {
  const strict = await open("rewards.py:hang", { timeoutMs: 500 });
  await expect(score(strict, "hang")).rejects.toThrow("did not answer within '500' ms");
  const lenient = await open("rewards.py:hang", { timeoutMs: 500, failureReward: -1 });
  warnings.length = 0;
  expect(await Promise.all([score(lenient, "hang"), score(lenient, "hang")])).toEqual([-1, -1]);
  expect(warnings).toEqual([expect.stringContaining("did not answer within '500' ms; such completions get '-1'")]);
  const sleeping = () => execFileSync("ps", ["-A", "-o", "args="], { encoding: "utf8" }).includes(`sleep ${nap}`);
  await vi.waitFor(() => expect(sleeping()).toBe(false), { timeout: 30_000 });
});

test("a call whose process dies is answered, and so is the next (PR1)", async () => {
  const reward = await open("rewards.py:die");
  await expect(score(reward, "die")).rejects.toThrow("process ended with status 3");
  expect(await score(reward, "live")).toBe(1);
});

test.each([
  [
    "broken.py:score",
    {},
    /cannot be imported: ModuleNotFoundError: No module named 'missing_module', at File .*broken\.py", line 1/,
  ],
  ["rewards.py:nothing", {}, /has no function 'nothing'/],
  ["none.py:score", {}, /No such file or directory/],
  ["rewards.py:check", { python: "/nowhere/python" }, /'\/nowhere\/python' did not start/],
])("what cannot be scored with is found before the first completion: %s %o", async (name, more, message) => {
  await expect(open(name, more)).rejects.toThrow(message);
});

test("calls that are open when the process ends are answered with its end (PR1)", async () => {
  const reward = await open("rewards.py:hang", { timeoutMs: 100_000 });
  const asked = score(reward, "hang");
  const closed = reward.close?.();
  await expect(asked).rejects.toThrow("its process ended (exit code 0)");
  await closed;
});

test("PGR1: under an agent only files of the project, neither hidden nor installed nor of runs, are imported", async () => {
  const rights = { node: "a", project: folder, interpreters: [], programs: [], models: [], variables: [] };
  vi.stubEnv("TREADLE_PROGRAM_RIGHTS", JSON.stringify(rights));
  try {
    const elsewhere = [
      "../x.py:f",
      ".venv/lib/python3/site-packages/x.py:f",
      "env/site-packages/x.py:f",
      "runs/x/x.py:f",
    ];
    for (const name of elsewhere) await expect(open(name), name).rejects.toMatchObject({ code: "node.forbidden" });
    expect(await score(await open("rewards.py:share"), "xx")).toBe(0.2);
  } finally {
    vi.unstubAllEnvs();
  }
});
