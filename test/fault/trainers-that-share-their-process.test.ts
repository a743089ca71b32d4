/** A scorer that computes in its trainer's process, whichever of the three processes is killed. */
import type { ActorConfig, InferenceConfig } from "@treadle/workers";
import { afterEach, expect, test } from "vitest";
import { childrenOf, isAlive, pidOf, segmentsOf, startCluster, type TestCluster, until } from "../support/cluster.ts";
import { lacksTorch } from "../support/torch.ts";
import { PublishingActor, PullingInference } from "../support/workers/publishing.ts";

const reason = lacksTorch();
const model = { vocabSize: 7, layers: 1, width: 8, heads: 2, contextLength: 6, seed: 5 };
const engine = { kind: "torch", process: "shared" } as const;
const training = { model, engine, algorithm: { name: "grpo" }, learningRate: 0.01 } as unknown as ActorConfig;

let world: TestCluster | undefined;
afterEach(async () => {
  await world?.close();
  world = undefined;
});

test.skipIf(reason)(
  reason ??
    "one Python process serves both, no weights leave it, and each that dies takes along what cannot do without it",
  async () => {
    world = await startCluster({ cluster: { devices: 1 } });
    const { cluster, runId, events } = world;
    const actor = cluster.launch(PublishingActor, training);
    const scorer = cluster.launch(PullingInference, { model, engine } as unknown as InferenceConfig);
    const [trainerName, scorerName] = ["publishing-actor/0", "pulling-inference/0"];
    const pids = () => [trainerName, scorerName].map((name) => pidOf(events, name));
    const pythonOf = (pid: number) => childrenOf(pid, "treadle_torch");
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
    const [actorPid, scorerPid] = pids() as [number, number];
    expect(pythonOf(actorPid)).toHaveLength(1);
    expect(pythonOf(scorerPid)).toEqual([]);
    const named = async (part: string) => (await segmentsOf(runId)).filter((name) => name.includes(part));
    expect(await named("-shared-")).toHaveLength(1);

    // The scorer dies: the trainer and its process go on.
    process.kill(scorerPid, "SIGKILL");
    await until(() => pidOf(events, scorerName) !== scorerPid, "the scorer to start again", 120_000);
    expect(await move()).toBe(3);
    expect(pidOf(events, trainerName)).toBe(actorPid);

    // The process dies: both start again, and meet in a new one.
    const [python] = pythonOf(actorPid);
    process.kill(python!, "SIGKILL");
    await until(() => pids().every((pid) => pid !== actorPid), "the trainer to start again", 120_000);
    expect(await move()).toBeGreaterThan(0);
    const [again] = pids() as [number, number];
    expect(pythonOf(again)).toHaveLength(1);

    // The trainer's worker dies, and its process with it.
    const [last] = pythonOf(again);
    process.kill(again, "SIGKILL");
    await until(() => pidOf(events, trainerName) !== again && !isAlive(last!), "the trainer to start again", 120_000);
    expect(await move()).toBeGreaterThan(0);
    expect(await named("-weights-")).toEqual([]);
    const all = [...pids(), ...pythonOf(pids()[0]!)];
    await world.close();
    await until(() => !all.some(isAlive), "its processes to end");
    expect(await segmentsOf(runId)).toEqual([]);
    world = undefined;
  },
  900_000,
);
