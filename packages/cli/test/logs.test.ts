import { appendFile, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, it, onTestFinished } from "vitest";
import { jsonLine, LogReader, personLine } from "../src/commands/logs.ts";

const atMs = Date.UTC(2026, 0, 2, 3, 4, 5);
const logged = JSON.stringify({ level: 40, time: atMs, pid: 7, worker: "rollout/0", seconds: 3, msg: "slow" });

it("shows a logger's line to a person: when, who, how bad, what, and the facts beside it", () => {
  expect(personLine("rollout/0", logged)).toMatch(/^\d\d:\d\d:05 {2}rollout\/0 +warn {2}slow \{"seconds":3\}$/);
});

it("shows what a library printed as it is, without what moves a cursor", () => {
  expect(personLine("rollout/0", "{ not JSON \u001b[2J")).toMatch(/^ +rollout\/0 +\{ not JSON $/);
});

it("lets no part of a line move a cursor, its level neither", () => {
  const line = JSON.stringify({ level: "\u001b]0;owned\u0007\u001b[2J", msg: "hello" });
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  expect(personLine("rollout/0", line)).not.toMatch(/[\u0000-\u001f\u007f-\u009f]/);
});

it("gives machines no control character as it is", () => {
  const line = JSON.stringify({ level: 40, time: atMs, msg: "\u009b2J\u007f\u001b[2J" });
  const printed = jsonLine("rollout/\u009b0", line);
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  expect(printed).not.toMatch(/[\u0000-\u001f\u007f-\u009f]/);
  expect(JSON.parse(printed).text).toContain("\u009b2J\u007f");
});

it("gives machines an object a line", () => {
  expect(JSON.parse(jsonLine("rollout/0", logged))).toEqual({
    worker: "rollout/0",
    atMs,
    level: "warn",
    text: 'slow {"seconds":3}',
  });
  expect(JSON.parse(jsonLine("rollout/0", "printed"))).toEqual({ worker: "rollout/0", text: "printed" });
});

async function freshOf(reader: LogReader): Promise<string[]> {
  const lines: string[] = [];
  for await (const line of reader.fresh()) lines.push(line);
  return lines;
}

it("reads a file to its end, however long it is, and later what has come", async () => {
  const folder = await mkdtemp(join(tmpdir(), "treadle-logs-"));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  const file = join(folder, "rollout-0.log");
  const lines = Array.from({ length: 200_000 }, (_, at) => `ä line ${at}`);
  await writeFile(file, `${lines.join("\n")}\nbegun`);
  const reader = new LogReader(file);
  expect(await freshOf(reader)).toEqual(lines);
  expect(await freshOf(reader)).toEqual([]);
  await appendFile(file, " and ended\n");
  expect(await freshOf(reader)).toEqual(["begun and ended"]);
});
