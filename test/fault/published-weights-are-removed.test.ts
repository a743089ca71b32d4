/** Weights that a trainer on PyTorch has published reach another process of the run without Node, and outlive neither. */
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { ActorConfig, InferenceConfig } from "@treadle/workers";
import { afterEach, expect, onTestFinished, test } from "vitest";
import { childrenOf, isAlive, pidOf, segmentsOf, startCluster, type TestCluster, until } from "../support/cluster.ts";
import { lacksTorch } from "../support/torch.ts";
import { PublishingActor, PullingInference } from "../support/workers/publishing.ts";

const reason = lacksTorch();
const model = { vocabSize: 7, layers: 1, width: 8, heads: 2, contextLength: 6, seed: 5 };
const engine = { kind: "torch" } as const;
const training = { model, engine, algorithm: { name: "grpo" }, learningRate: 0.01 } as unknown as ActorConfig;

let world: TestCluster | undefined;
afterEach(async () => {
  await world?.close();
  world = undefined;
});

const storesOf = async (runId: string) => (await segmentsOf(runId)).filter((name) => name.includes("-weights-"));

test.skipIf(reason)(
  reason ?? "S4, W3: they come by a ticket; those of a trainer that is killed go with it, and the others with the run",
  async () => {
    world = await startCluster({ cluster: { devices: 1 } });
    const { cluster, runId, events } = world;
    const actor = cluster.launch(PublishingActor, training);
    const scorer = cluster.launch(PullingInference, { model, engine } as unknown as InferenceConfig);
    const move = async () => {
      const [trained] = await actor.stepOnce();
      await scorer.pullWeights(actor as never);
      const [scored] = await scorer.scores();
      expect(trained?.numExports).toBe(0);
      expect(scored?.logprobs).toEqual(trained?.logprobs);
      return scored?.policyVersion;
    };
    expect(await move()).toBe(1);
    expect(await move()).toBe(2);
    const [store, ...others] = await storesOf(runId);
    expect(others).toEqual([]);
    const folders = (await readdir(join("/dev/shm", store!))).filter((name) => name.startsWith("version-"));
    expect(folders).toEqual([expect.stringMatching(/^version-2-/)]);

    process.kill(pidOf(events, "publishing-actor/0"), "SIGKILL");
    await until(async () => !(await storesOf(runId)).includes(store!), "the killed trainer's files to go", 120_000);
    expect(await move()).toBeGreaterThan(0);
    expect(await storesOf(runId)).toHaveLength(1);
    await world.close();
    expect(await segmentsOf(runId)).toEqual([]);
    world = undefined;
  },
  900_000,
);

test.skipIf(reason)(
  "W3 they go over a process group where the scorer cannot open their file, and again once the trainer was killed",
  async () => {
    world = await startCluster({ cluster: { devices: 1 } });
    const { cluster, events } = world;
    const linked = { ...engine, collective: "gloo" } as const;
    const weightsFolder = await mkdtemp(join(tmpdir(), "treadle-sent-"));
    onTestFinished(() => rm(weightsFolder, { recursive: true, force: true }));
    const trainer = { ...linked, weightsFolder } as unknown as ActorConfig["engine"];
    const actor = cluster.launch(PublishingActor, { ...training, engine: trainer });
    const scorer = cluster.launch(PullingInference, { model, engine: linked } as unknown as InferenceConfig, {
      ranks: { fixed: 2 },
    });
    const move = async () => {
      const [trained] = await actor.stepOnce();
      await scorer.pullWeights(actor as never);
      for (const scored of await scorer.scores()) expect(scored.logprobs).toEqual(trained?.logprobs);
      expect([trained?.numExports, ...(await actor.numReads())]).toEqual([0, 0]);
      return trained;
    };
    await move();
    await move();
    process.kill(pidOf(events, "publishing-actor/0"), "SIGKILL");
    await move();
    const [python] = childrenOf(pidOf(events, "publishing-actor/0"), "treadle_torch");
    process.kill(python!, "SIGKILL");
    await move();
  },
  900_000,
);

test.skipIf(reason)(
  "a trainer over two processes starts again when one of them is killed, and leaves none",
  async () => {
    world = await startCluster({ cluster: { devices: 1 } });
    const { cluster, runId, events } = world;
    const sharded = { ...engine, shards: 2 } as unknown as ActorConfig["engine"];
    const actor = cluster.launch(PublishingActor, { ...training, engine: sharded });
    const scorer = cluster.launch(PullingInference, { model, engine } as unknown as InferenceConfig);
    const move = async () => {
      const [trained] = await actor.stepOnce();
      await scorer.pullWeights(actor as never);
      const [scored] = await scorer.scores();
      for (const [at, logprob] of trained!.logprobs.entries()) expect(scored?.logprobs[at]).toBeCloseTo(logprob, 4);
      return scored?.policyVersion;
    };
    expect(await move()).toBe(1);
    const worker = pidOf(events, "publishing-actor/0");
    const [first, ...none] = childrenOf(worker, "treadle_torch");
    expect(none).toEqual([]);
    const [second] = childrenOf(first!, "treadle_torch");
    process.kill(second!, "SIGKILL");
    await until(() => pidOf(events, "publishing-actor/0") !== worker, "the trainer to start again", 120_000);
    expect([first!, second!].filter(isAlive)).toEqual([]);
    expect(await move()).toBeGreaterThan(0);
    const [again] = childrenOf(pidOf(events, "publishing-actor/0"), "treadle_torch");
    const all = [again!, ...childrenOf(again!, "treadle_torch")];
    expect(all).toHaveLength(2);
    await world.close();
    await until(() => !all.some(isAlive), "its processes to end");
    expect(await segmentsOf(runId)).toEqual([]);
    world = undefined;
  },
  900_000,
);
