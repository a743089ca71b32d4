import { mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { ArtifactFolder } from "../../../src/runner/cluster/artifact-folder.ts";

let root: string;
beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), "treadle-artifacts-"));
});
afterEach(() => rm(root, { recursive: true, force: true }));

const bytes = (text: string) => Buffer.from(text);

test("an artefact is written below the folder, and the last of a name stays", async () => {
  const folder = new ArtifactFolder(join(root, "artifacts"));
  await folder.write("simulator/0", "episodes/step-1.json", bytes("first"));
  await folder.write("simulator/0", "episodes/step-1.json", bytes("second"));
  expect(await readFile(join(root, "artifacts/episodes/step-1.json"), "utf8")).toBe("second");
});

test("of the episodes that a rank leaves the first is told, and what is none of them is only kept", async () => {
  const told: unknown[] = [];
  const folder = new ArtifactFolder(join(root, "artifacts"), ({ atMs: _, ...sample }) => told.push(sample));
  const record = (reward: number, text: string) =>
    JSON.stringify({
      ...{ step: 3, worker: "rollout/0", promptId: "p", reward, length: 2, finishReason: "stop" },
      turns: [
        { by: "prompt", text: "1+1=" },
        { by: "policy", text },
        { by: "tool", text: "9" },
      ],
    });
  const long = "x".repeat(5000);
  await folder.write("rollout/0", "completions/step-3.jsonl", bytes(`${record(1, long)}\n${record(0, "3")}\n`));
  await folder.write("rollout/0", "completions/odd.jsonl", bytes("no JSON"));
  await folder.write("rollout/0", "episodes/step-3.jsonl", bytes(`${record(1, "2")}\n`));
  const sample = { type: "sample", step: 3, worker: "rollout/0", reward: 1, prompt: "1+1=", text: long.slice(0, 400) };
  expect(told).toEqual([sample]);
});

test.each([
  "../out",
  "/etc/out",
  "a/../../out",
  "a//b",
  ".hidden",
  "a/.hidden",
  "",
  "a\0b",
  "a b",
  "x".repeat(201),
  "a/",
])("the name '%s' is refused, and nothing is written", async (name) => {
  const folder = new ArtifactFolder(join(root, "artifacts"));
  await expect(folder.write("simulator/0", name, bytes("x"))).rejects.toMatchObject({ code: "artifact.refused" });
  expect(await readdir(root)).toEqual([]);
});

test("a file that is too large is refused, and so is one too many, but not a replaced one", async () => {
  const folder = new ArtifactFolder(join(root, "artifacts"));
  const limit = new Uint8Array(8 * 2 ** 20);
  await expect(folder.write("w/0", "large", new Uint8Array(limit.length + 1))).rejects.toThrow("8388609");
  for (let index = 0; index < 32; index++) await folder.write("w/0", `${index % 2 === 0 ? "same" : index}`, limit);
  for (let index = 0; index < 15; index++) await folder.write("w/0", `more-${index}`, limit);
  await expect(folder.write("w/0", "last", bytes("x"))).rejects.toMatchObject({ code: "artifact.refused" });
  await folder.write("w/0", "same", bytes("x"));
});
