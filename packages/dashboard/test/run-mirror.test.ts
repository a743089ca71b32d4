import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { ReadRunFile } from "@treadle/contracts";
import { expect, onTestFinished, test } from "vitest";
import { type RemoteRuns, RunMirror } from "../src/data/run-mirror.ts";

/** However loaded the machine is. */
const eventually = (look: () => unknown) => expect.poll(look, { timeout: 150_000 });

type File = ReadRunFile["file"];

/** A runner's side, in memory: parts of few bytes, and another version of whatever is replaced. */
function remoteOf(partBytes: number) {
  const files = new Map<File, { version: string; bytes: Buffer }>();
  let numVersions = 0;
  const write = (file: File, text: string) =>
    files.set(file, { version: `v${++numVersions}`, bytes: Buffer.from(text) });
  const append = (file: File, text: string) => {
    const known = files.get(file);
    if (known === undefined) return write(file, text);
    known.bytes = Buffer.concat([known.bytes, Buffer.from(text)]);
    return files;
  };
  let state: "running" | "finished" = "running";
  const remote: RemoteRuns = {
    list: async () => [
      { runId: "silent", state: "running" },
      { runId: "here", state: "running" },
      { runId: "../outside", state: "running" },
      { runId: "theirs", state },
    ],
    read(runId, asked) {
      if (runId === "silent") return new Promise(() => {});
      const { version, bytes } = files.get(asked.file) ?? { version: "", bytes: Buffer.alloc(0) };
      const fromByte = asked.version === version ? asked.fromByte : 0;
      const data = bytes.subarray(fromByte, fromByte + partBytes).toString("base64");
      return Promise.resolve({ version, fromByte, sizeBytes: bytes.length, data });
    },
  };
  const end = () => {
    state = "finished";
  };
  return { remote, write, append, end };
}

test("RM1, RM2: files grow and are replaced as the runner's are, one run's silence delays no other, and what is here is not copied", async () => {
  const { remote, write, append, end } = remoteOf(7);
  write("config.json", JSON.stringify({ workflow: "workflows/über", config: { steps: 3 } }));
  append("metrics.jsonl", '{"step":1}\n{"st');
  const mirror = await RunMirror.open(remote, async (runId) => runId === "here");
  onTestFinished(async () => {
    // Whoever waits for the silent one waits for ever; its folder goes all the same.
    await Promise.race([mirror.close(), new Promise((resolve) => setTimeout(resolve, 100))]);
  });
  const textOf = (file: string, runId = "theirs") => {
    const path = join(mirror.root, runId, file);
    return existsSync(path) ? readFileSync(path, "utf8") : undefined;
  };
  await eventually(() => textOf("metrics.jsonl")).toBe('{"step":1}\n{"st');
  expect(JSON.parse(textOf("config.json") ?? "").workflow).toBe("workflows/über");
  append("metrics.jsonl", 'ep":2}\n');
  write("plan.json", '{"mode":"spatial"}');
  await eventually(() => textOf("metrics.jsonl")).toBe('{"step":1}\n{"step":2}\n');
  await eventually(() => textOf("plan.json")).toBe('{"mode":"spatial"}');
  write("plan.json", '{"mode":"temporal"}');
  write("metrics.jsonl", '{"step":9}\n');
  await eventually(() => textOf("plan.json")).toBe('{"mode":"temporal"}');
  await eventually(() => textOf("metrics.jsonl")).toBe('{"step":9}\n');
  // A trace is large: it comes while somebody looks.
  append("trace.jsonl", "{}\n");
  expect(textOf("trace.jsonl")).toBeUndefined();
  mirror.lookAt("theirs");
  await eventually(() => textOf("trace.jsonl")).toBe("{}\n");
  expect(existsSync(join(mirror.root, "theirs", "runner.lock"))).toBe(true);
  end();
  await eventually(() => textOf("journal.jsonl")).toContain('"type":"finished"');
  expect(existsSync(join(mirror.root, "theirs", "runner.lock"))).toBe(false);
  expect([existsSync(join(mirror.root, "here")), existsSync(join(mirror.root, "../outside"))]).toEqual([false, false]);
});

test("RM2: servers that never say which runs there are, are asked again", async () => {
  const { remote, write } = remoteOf(100);
  write("config.json", "{}");
  let numAsked = 0;
  const list: RemoteRuns["list"] = () => (++numAsked === 1 ? new Promise(() => {}) : remote.list());
  const mirror = await RunMirror.open({ ...remote, list }, async () => false, 200);
  onTestFinished(async () => {
    await Promise.race([mirror.close(), new Promise((resolve) => setTimeout(resolve, 100))]);
  });
  await eventually(() => existsSync(join(mirror.root, "theirs", "config.json"))).toBe(true);
});
