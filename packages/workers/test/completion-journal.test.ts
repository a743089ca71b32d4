import { spawn } from "node:child_process";
import { once } from "node:events";
import {
  appendFile,
  chmod,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  rename,
  rm,
  symlink,
  truncate,
  writeFile,
} from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { HostFiles } from "@treadle/contracts";
import { createRandom } from "@treadle/learning";
import { beforeEach, expect, onTestFinished, test } from "vitest";
import { CompletionJournal, type KeptPart } from "../src/rollout/completion-journal.ts";

const seed = Number(process.env["TREADLE_SEED"]);
const prompt = Int32Array.of(1, 2, 3);
const id = CompletionJournal.idOf(prompt, 7);
const part = (from: number, tokens: number[], more: Partial<KeptPart> = {}): KeptPart => ({
  ...{ id, from, tokens: Int32Array.from(tokens), logprobs: Float32Array.from(tokens, (token) => -token / 4) },
  ...more,
});

let hostFiles: HostFiles;
let said: string[];
beforeEach(async () => {
  const folder = await mkdtemp(join(tmpdir(), "treadle-host-"));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  hostFiles = { folder, ownPrefix: "treadle-a.1-", leftPrefix: "treadle-a.left-", runPrefix: "treadle-a." };
  said = [];
});
const open = (sampledBy: unknown = 1, isCurrent = () => true) =>
  new CompletionJournal({
    ...{ hostFiles, component: "rollout", rank: 0, sampledBy, isCurrent },
    log: { info: (message) => void said.push(message), warn: (message) => void said.push(message) },
  });
const names = () => readdir(hostFiles.folder);
const pathOf = async () => join(hostFiles.folder, (await names())[0] as string);

test("CJ1: what was kept is found under what it was sampled by, and by its prompt, key and start alone", () => {
  const other = CompletionJournal.idOf(prompt, 8);
  const journal = open();
  journal.keep([part(0, [4, 5]), part(0, [9], { id: other, finishReason: "stop", answers: [[0, 1]] })]);
  journal.keep([part(2, [6])]);
  journal.keep([part(9, [1])]); // of a start that is not there
  const next = open();
  expect(next.find(id)).toEqual({ ...tokensOf([4, 5, 6]), answers: [], finishReason: undefined });
  expect(next.find(other)).toEqual({ ...tokensOf([9]), answers: [[0, 1]], finishReason: "stop" });
  for (const none of [
    CompletionJournal.idOf(Int32Array.of(1, 2), 7),
    CompletionJournal.idOf(prompt, 7, Int32Array.of(4)),
  ])
    expect(next.find(none)).toBeUndefined();
  expect(open(2).find(id)).toBeUndefined();
});

test("what a call has made is removed with what it found of its rank; of weights that are replaced nothing stays", async () => {
  open().keep([part(0, [4])]);
  const next = open();
  expect(next.find(id)).toBeDefined();
  next.done();
  expect(await names()).toEqual([]);
  expect(said).toEqual(["'1' completions went on with '1' tokens that a process before had of them"]);
  let isCurrent = true;
  const replaced = open(1, () => isCurrent);
  replaced.keep([part(0, [4])]);
  isCurrent = false;
  replaced.keep([part(1, [5])]);
  expect(await names()).toEqual([]);
});

test("CJ1: once weights have changed, or a call has stopped keeping, nothing of before goes on in it", () => {
  open().keep([part(0, [4, 5])]);
  let isCurrent = true;
  const [changed, stopped] = [open(1, () => isCurrent), open()];
  expect(changed.find(id)).toBeDefined();
  isCurrent = false;
  expect(changed.find(id)).toBeUndefined();
  stopped.stop();
  expect(stopped.find(id)).toBeUndefined();
});

test("what a process that lives has kept is its own; once it is dead others go on with it", async () => {
  open().keep([part(0, [4, 5])]);
  const other = spawn("sleep", ["60"]);
  await rename(await pathOf(), join(hostFiles.folder, `${hostFiles.leftPrefix}completions-rollout-1-${other.pid}-0`));
  const next = open();
  expect(next.find(id)).toBeUndefined();
  other.kill("SIGKILL");
  await once(other, "exit");
  expect(next.find(id)).toMatchObject(tokensOf([4, 5]));
});

test("CJ3: what stands in the way under such a name is told, and keeps no call from writing", async () => {
  await symlink("/etc/passwd", join(hostFiles.folder, `${hostFiles.leftPrefix}completions-rollout-7-999999999-0`));
  await mkdir(join(hostFiles.folder, `${hostFiles.leftPrefix}completions-rollout-7-999999999-1`), { mode: 0o700 });
  const journal = open();
  expect(journal.find(id)).toBeUndefined();
  expect(said).toEqual([expect.stringContaining("ELOOP"), expect.stringContaining("EISDIR")]);
  journal.keep([part(0, [4])]);
  expect(open().find(id)).toMatchObject(tokensOf([4]));
});

test("CJ2: numbers that no record has end what counts of a file", async () => {
  const journal = open();
  journal.keep([part(0, [4, 5])]);
  const path = await pathOf();
  const { length } = await readFile(path);
  for (const [from, numTokens, numAnswers] of [
    [-1, 0, 0],
    [0, -3, 3],
    [0, 3, -3],
    [0, -9, 0],
  ] as const) {
    await truncate(path, length);
    const numWords = 9 + 2 * (numTokens + numAnswers);
    const words = Int32Array.of(numWords, 1, 2, 3, 4, from, numTokens, 0, numAnswers);
    await appendFile(path, new Uint8Array(words.buffer));
    expect(open().find(id)).toMatchObject(tokensOf([4, 5]));
  }
});

test(`CJ2: a file that is cut anywhere has whole records of its start (seed ${seed})`, async () => {
  const random = createRandom(seed).split("cuts");
  const journal = open();
  const whole = Array.from({ length: 20 }, (_, at) => at);
  for (const token of whole) journal.keep([part(token, [token])]);
  const path = await pathOf();
  const { length } = await readFile(path);
  for (let cut = length, at = 0; cut > 0; cut -= 1 + random.split(`${at++}`).integer(40)) {
    await truncate(path, cut);
    const kept = open().find(id);
    expect([...(kept?.tokens ?? [])]).toEqual(whole.slice(0, kept?.tokens.length ?? 0));
    expect(kept?.tokens.length ?? 0).toBeGreaterThanOrEqual(Math.floor((cut / length) * 20) - 2);
  }
});

test("CJ3: what cannot be kept or read is told, and costs no call", async () => {
  const journal = open();
  const large = Int32Array.from({ length: 9_000_000 });
  journal.keep([part(0, [4])]);
  journal.keep([{ id, from: 1, tokens: large, logprobs: new Float32Array(large.length) }]);
  expect(said).toEqual([expect.stringMatching(/kept no more in this call.*more than 67108864 bytes/)]);
  journal.keep([part(1, [5])]);
  expect(open().find(id)).toMatchObject(tokensOf([4]));
  const path = await pathOf();
  await chmod(path, 0o644); // others might have written it
  expect(open().find(id)).toBeUndefined();
  await writeFile(path, "nothing of ours");
  await appendFile(path, Buffer.alloc(999, 255));
  expect(open().find(id)).toBeUndefined();
  await rm(hostFiles.folder, { recursive: true });
  const nowhere = open();
  nowhere.keep([part(0, [4])]);
  expect(nowhere.find(id)).toBeUndefined();
  nowhere.done();
  expect(said.slice(1)).toEqual([expect.stringContaining("ENOENT"), expect.stringContaining("ENOENT")]);
});

const tokensOf = (tokens: number[]) => ({
  tokens: Int32Array.from(tokens),
  logprobs: Float32Array.from(tokens, (token) => -token / 4),
});
