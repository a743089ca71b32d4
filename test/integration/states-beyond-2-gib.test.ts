/** No hash, buffer or write of Node takes 2 GiB at once, and a state of an engine may have many times that. */
import { mkdir, mkdtemp, open, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import type { StateManifest, Weights } from "@treadle/contracts";
import { type Pieces, sealWeights, type Trainable } from "@treadle/engines";

import { expect, onTestFinished, test } from "vitest";
import { PartWriter, withChecksum } from "../../packages/runtime/src/author/state/part-writer.ts";
import { fileOf } from "../../packages/runtime/src/author/state/saved-state.ts";
import { folderSource, viewState } from "../../packages/runtime/src/author/state/state-view.ts";
import { TrainerWorker } from "../../packages/workers/src/engine-worker.ts";
import { contextOf } from "../../packages/workers/test/support/context.ts";

const stateBytes = 2 ** 31 + 12_345;
const zeros = new Uint8Array(16 * 2 ** 20);

/** Saves zeros, and counts what it loads. */
class VastEngine {
  policyVersion = 0;
  weightsId = "initial";
  loadedBytes = 0;

  async *save(): AsyncGenerator<Uint8Array> {
    for (let left = stateBytes; left > 0; left -= zeros.length) yield zeros.subarray(0, left);
  }
  async load(pieces: Pieces): Promise<void> {
    for await (const piece of pieces) this.loadedBytes += piece.byteLength;
  }
  exportWeights(): Weights {
    return sealWeights({ policyVersion: 0, parameters: [] });
  }
}

class VastWorker extends TrainerWorker<object, Trainable> {
  static override readonly module: string = import.meta.url;
  readonly vast = new VastEngine();

  override async setup(): Promise<void> {
    this.engine = this.vast as unknown as Trainable;
  }
}

test("a trainer saves and restores more than 2 GiB, and holds a few pieces of it at most", async () => {
  const folder = await mkdtemp(join(tmpdir(), "treadle-vast-"));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  const worker = new VastWorker(contextOf({}, "actor"));
  await worker.setup();

  let mostBytes = 0;
  const look = () => {
    mostBytes = Math.max(mostBytes, process.memoryUsage().arrayBuffers);
  };
  // Where it is read it is a hole: neither a disk nor memory has 2 GiB for a test.
  const writer = new PartWriter(async () =>
    withChecksum({ write: async () => look(), end: async () => {}, abandon: async () => {} }),
  );
  await worker.checkpoint(writer);
  const files = await writer.finish();
  expect(files).toMatchObject([{ name: "engine", sizeBytes: stateBytes }]);

  const manifest: StateManifest = { format: 1, component: "actor", ranks: [files] };
  const path = fileOf(folder, 0, "engine");
  await mkdir(dirname(path), { recursive: true });
  await using file = await open(path, "w");
  await file.truncate(stateBytes);
  const restored = new VastWorker(contextOf({}, "actor"));
  await restored.setup();
  await restored.restore(viewState(folderSource(folder, manifest), { worker: "actor/0", rank: 0, numRanks: 1 }));
  look();
  expect(restored.vast.loadedBytes).toBe(stateBytes);
  expect(mostBytes).toBeLessThan(200 * 2 ** 20);
});
