/** An export whose disk is full, or that is killed, leaves nothing that looks whole (XP1). */
import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { mkdtemp, open, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type ExportOptions, exportModel, TorchConfig, TransformerConfig } from "@treadle/engines";
import { qwen3Shapes } from "@treadle/engines/testing";
import { afterAll, beforeAll, expect, test } from "vitest";
import { MountNamespace } from "../support/mount-namespace.ts";
import { until } from "../support/treadle.ts";

const model = TransformerConfig.parse({ vocabSize: 4096, layers: 2, width: 512, heads: 4, contextLength: 16 });
const engine = TorchConfig.parse({ kind: "torch" });
const exporter = `
import { exportModel } from "@treadle/engines";
await exportModel(JSON.parse(process.argv[1]));
`;

let folder: string;
let options: Omit<ExportOptions, "to">;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-exports-"));
  const checkpoint = join(folder, "engine");
  await writeCheckpoint(checkpoint);
  options = { checkpoint, model, engine };
}, 120_000);
afterAll(() => rm(folder, { recursive: true, force: true }));

/** Of zeros, as `checkpoint.py` writes it. */
async function writeCheckpoint(path: string): Promise<void> {
  const layout = qwen3Shapes(model);
  const json = Buffer.from(JSON.stringify({ format: 1, policyVersion: 1, steps: 1, layout }));
  const head = Buffer.alloc(8);
  head.write("TRDL");
  head.writeUInt32LE(json.length, 4);
  const numbers = layout.reduce((sum, { shape }) => sum + shape.reduce((product, each) => product * each, 1), 0);
  const zeros = Buffer.alloc(4 * 3 * numbers);
  await using file = await open(path, "wx");
  for (const part of [head, json, zeros]) await file.writeFile(part);
  await file.writeFile(createHash("sha256").update(head).update(json).update(zeros).digest());
}

test("without space it says so, leaves nothing, and the next one is whole", async ({ skip }) => {
  const namespace = await MountNamespace.open();
  if (typeof namespace === "string") return skip(namespace);
  try {
    await namespace.shell("mkdir /mnt/small && mount -t tmpfs -o size=8m none /mnt/small");
    const small = namespace.outside("/mnt/small");
    const full = { code: "disk.full", message: expect.stringMatching(/no space left to write .*; free some/) };
    await expect(exportModel({ ...options, to: join(small, "model") })).rejects.toMatchObject(full);
    expect(await readdir(small)).toEqual([]);
    await namespace.shell("mount -o remount,size=128m /mnt/small");
    await exportModel({ ...options, to: join(small, "model") });
    expect(await readdir(join(small, "model"))).toEqual(["config.json", "model.safetensors"]);
  } finally {
    await namespace.close();
  }
}, 120_000);

test("killed while it writes, it leaves no folder of that name, and another one is not in its way", async () => {
  const to = join(folder, "model");
  const isPartial = async () => (await readdir(folder)).some((name) => name.endsWith(".partial"));
  const words = ["--conditions=source", "--import", "tsx", "--input-type=module", "-e", exporter];
  const child = spawn(process.execPath, [...words, JSON.stringify({ ...options, to })], {
    cwd: import.meta.dirname,
    stdio: "inherit",
  });
  const ended = once(child, "exit");
  await until(async () => child.exitCode !== null || (await isPartial()));
  child.kill("SIGKILL");
  expect(await ended).toEqual([null, "SIGKILL"]);
  expect(await readdir(folder)).not.toContain("model");
  expect(await isPartial()).toBe(true);
  await exportModel({ ...options, to });
  expect(await readdir(to)).toEqual(["config.json", "model.safetensors"]);
}, 120_000);
