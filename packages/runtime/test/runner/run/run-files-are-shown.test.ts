import { appendFileSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { ReadRunFile } from "@treadle/contracts";
import { expect, onTestFinished, test } from "vitest";
import { readRunFile } from "../../../src/runner/run/run-files.ts";

function folderOfRun() {
  const folder = mkdtempSync(join(tmpdir(), "treadle-shown-"));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  /** All that comes after what is known, part by part. */
  const rest = async (file: ReadRunFile["file"], known = { version: "", fromByte: 0 }) => {
    const parts: Buffer[] = [];
    for (;;) {
      const part = await readRunFile(folder, { file, ...known });
      const data = Buffer.from(part.data, "base64");
      parts.push(data);
      known = { version: part.version, fromByte: part.fromByte + data.length };
      if (data.length === 0 || known.fromByte >= part.sizeBytes)
        return { text: Buffer.concat(parts).toString(), known };
    }
  };
  return { folder, rest };
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
