import { appendFileSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { ReadRunFile } from "@treadle/contracts";
import { expect, onTestFinished, test } from "vitest";
import { ShownFiles } from "../../../src/runner/run/run-files.ts";

function folderOfRun() {
  const folder = mkdtempSync(join(tmpdir(), "treadle-shown-"));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  const shown = new ShownFiles(folder);
  /** All that comes after what is known, part by part. */
  const rest = async (file: ReadRunFile["file"], known = { version: "", fromByte: 0 }) => {
    const parts: Buffer[] = [];
    for (;;) {
      const part = await shown.read({ file, ...known, reader: "one" });
      const data = Buffer.from(part.data, "base64");
      parts.push(data);
      known = { version: part.version, fromByte: part.fromByte + data.length };
      if (data.length === 0 || known.fromByte >= part.sizeBytes)
        return { text: Buffer.concat(parts).toString(), known };
    }
  };
  return { folder, shown, rest };
}

test("what grows is read on from where it was known, what is replaced from its beginning, what is not there is empty", async () => {
  const { folder, rest } = folderOfRun();
  expect((await rest("trace.jsonl")).text).toBe("");
  const lines = "{}\n".repeat(300_000); // more than a part
  writeFileSync(join(folder, "metrics.jsonl"), lines);
  const first = await rest("metrics.jsonl");
  expect(first.text).toBe(lines);
  appendFileSync(join(folder, "metrics.jsonl"), "[]\n");
  expect((await rest("metrics.jsonl", first.known)).text).toBe("[]\n");
  writeFileSync(join(folder, "plan.json"), '{"mode":"spatial"}');
  const plan = await rest("plan.json");
  expect((await rest("plan.json", plan.known)).text).toBe("");
  writeFileSync(join(folder, "plan.json"), '{"mode":"temporal","maxStaleness":0}');
  expect((await rest("plan.json", plan.known)).text).toBe('{"mode":"temporal","maxStaleness":0}');
});

test("secrets of the configuration stay where they are", async () => {
  const { folder, rest } = folderOfRun();
  writeFileSync(join(folder, "config.json"), JSON.stringify({ config: { tool: { apiKey: "abc123" } } }, null, 2));
  const { text } = await rest("config.json");
  expect(text).not.toContain("abc123");
  expect(JSON.parse(text)).toMatchObject({ config: { tool: {} } });
});

test("SF1: a runner waits until its followers have read their files to the end, and for no follower that is silent", async () => {
  const { folder, shown, rest } = folderOfRun();
  const path = join(folder, "events.jsonl");
  const limits = { silentMs: 200_000, waitMs: 400_000 };
  await shown.areRead(limits); // nobody follows

  writeFileSync(path, "{}\n");
  const { known } = await rest("events.jsonl");
  await rest("plan.json");
  await shown.read({ file: "events.jsonl", fromByte: 0, version: "", reader: "other" });
  appendFileSync(path, "[]\n".repeat(200_000)); // more than a part
  let isOver = false;
  const over = shown.areRead(limits).then(() => {
    isOver = true;
  });
  const expectWaiting = async () => {
    await new Promise((resolve) => setTimeout(resolve, 200));
    expect(isOver).toBe(false);
  };
  await expectWaiting();
  await shown.read({ file: "events.jsonl", ...known, reader: "one" }); // not to its end
  await rest("plan.json");
  await expectWaiting();
  await rest("events.jsonl", known);
  await expectWaiting(); // of the other
  const other = await shown.read({ file: "events.jsonl", fromByte: 600_003, version: known.version, reader: "other" });
  expect(other).toMatchObject({ fromByte: 600_003, data: "" });
  await over;
});

test("SF1: a reader that has left holds a runner no longer than it may be silent, one that never comes to an end no longer than the limit", async () => {
  const { folder, shown } = folderOfRun();
  writeFileSync(join(folder, "events.jsonl"), "{}\n".repeat(200_000));
  const ask = () => shown.read({ file: "events.jsonl", fromByte: 0, version: "", reader: "slow" });
  await ask();
  await shown.areRead({ silentMs: 100, waitMs: Number.POSITIVE_INFINITY });
  const asking = setInterval(() => void ask().catch(() => {}), 20);
  onTestFinished(() => clearInterval(asking));
  await shown.areRead({ silentMs: Number.POSITIVE_INFINITY, waitMs: 300 });
});

test("SF1: a file that its reader reads no longer, such as a trace that nobody looks at, is not waited for", async () => {
  const { folder, shown } = folderOfRun();
  for (const file of ["events.jsonl", "trace.jsonl"]) writeFileSync(join(folder, file), "{}\n".repeat(200_000));
  const ask = (file: ReadRunFile["file"], fromByte = 0, version = "") =>
    shown.read({ file, fromByte, version, reader: "one" });
  await ask("trace.jsonl");
  await new Promise((resolve) => setTimeout(resolve, 400));
  const { version, sizeBytes } = await ask("events.jsonl");
  const over = shown.areRead({ silentMs: 300, waitMs: Number.POSITIVE_INFINITY });
  const asking = setInterval(() => void ask("events.jsonl", sizeBytes, version).catch(() => {}), 20);
  onTestFinished(() => clearInterval(asking));
  await over;
});
