/** A real file system without space for the weights of a server: nothing reaches the server, and the next load is whole. */
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ServerEngine } from "@treadle/engines";
import { tinyWeights, VllmDouble, writeTinyModel } from "@treadle/engines/testing";
import { afterAll, beforeAll, expect, test } from "vitest";
import { MountNamespace } from "../support/mount-namespace.ts";

/** of 4 bytes a number, more than the file system has */
const sizes = { vocabSize: 4096, contextLength: 8 };
const model = { ...sizes, layers: 1, width: 8, heads: 1 };
const sampling = { maxTokens: 3, temperature: 1, stopTokens: [], seed: 1 };

let folder: string;
let namespace: MountNamespace | string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-full-weights-"));
  namespace = await MountNamespace.open();
});
afterAll(async () => {
  if (typeof namespace !== "string") await namespace.close();
  await rm(folder, { recursive: true, force: true });
});

test("weights without space are told as such; the engine goes on with those that it has, and takes others once there is space", async ({
  skip,
}) => {
  if (typeof namespace === "string") return skip(namespace);
  await namespace.shell("mkdir /mnt/small && mount -t tmpfs -o size=128k none /mnt/small");
  const weightsFolder = namespace.outside("/mnt/small");
  const path = join(folder, "tiny");
  await writeTinyModel(path, sizes, tinyWeights(sizes, 1));
  const double = await new VllmDouble({ model: path }).start();
  const engine = await ServerEngine.create(model, { kind: "vllm", url: double.url, model: path, weightsFolder });
  const before = await engine.generate([Int32Array.of(1)], sampling);

  const full = { code: "disk.full", message: expect.stringMatching(/no space is left.*weightsFolder/) };
  await expect(engine.loadWeights(tinyWeights(sizes, 2, 1))).rejects.toMatchObject(full);
  const [own] = await readdir(weightsFolder);
  expect(await readdir(join(weightsFolder, own!))).toEqual([]);
  expect(await engine.generate([Int32Array.of(1)], sampling)).toEqual(before);

  await namespace.shell("mount -o remount,size=2m /mnt/small");
  await engine.loadWeights(tinyWeights(sizes, 2, 1));
  expect(engine.policyVersion).toBe(1);
  expect(await engine.generate([Int32Array.of(1)], sampling)).not.toEqual(before);
  await engine.close();
  await double.kill();
});
