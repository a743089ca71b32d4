import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TrainingEngine } from "@treadle/engines";
import type { WorkerContext } from "@treadle/runtime";
import { afterEach, beforeEach, expect, test } from "vitest";
import { ActorConfig, ActorWorker } from "../src/actor/actor-worker.ts";
import { RolloutConfig } from "../src/rollout/generation-worker.ts";
import { RolloutWorker } from "../src/rollout/rollout-worker.ts";
import { contextOf } from "./support/context.ts";
import { Group } from "./support/group.ts";

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "treadle-ranks-meet-"));
});
afterEach(() => rmSync(folder, { recursive: true }));

const engine = (collectives: object) => ({
  model: { vocabSize: 12, layers: 1, width: 16, heads: 2, contextLength: 8 },
  emulated: { collectives: { folder, deadlineMs: 200, ...collectives } },
});

class Stepping extends ActorWorker {
  static override readonly module: string = import.meta.url;
  get own(): TrainingEngine {
    return this.engine;
  }
  async takeStep(): Promise<number> {
    await this.engine.optimStep({ learningRate: 0.1 });
    return this.engine.policyVersion;
  }
}

async function ranksOf(worldSize: number, collectives: object = {}): Promise<Stepping[]> {
  const config = ActorConfig.parse({ ...engine(collectives), algorithm: { name: "grpo" }, learningRate: 0.1 });
  const group = new Group(worldSize);
  const context = (rank: number): WorkerContext<ActorConfig> => contextOf(config, "actor", { rank, group });
  const ranks = Array.from({ length: worldSize }, (_, rank) => new Stepping(context(rank)));
  await Promise.all(ranks.map((rank) => rank.setup()));
  for (const { own } of ranks) await own.restore();
  return ranks;
}

test("ranks of a trainer step together as its configuration says, and one that is never called is named at the deadline", async () => {
  const [a, b, c] = (await ranksOf(3)) as [Stepping, Stepping, Stepping];
  expect(await Promise.all([a.takeStep(), b.takeStep(), c.takeStep()])).toEqual([1, 1, 1]);
  for (const result of await Promise.allSettled([a.takeStep(), c.takeStep()]))
    expect(result).toMatchObject({ reason: { code: "engine.collective-timeout", details: { missing: [1] } } });
});

test("EG2: ranks that start again on the same folder meet each other, and none of an earlier start", async () => {
  const earlier = await ranksOf(2);
  await Promise.all(earlier.map((rank) => rank.takeStep()));
  const [a, b] = (await ranksOf(2)) as [Stepping, Stepping];
  await expect(a.takeStep()).rejects.toMatchObject({ details: { missing: [1] } });
  await expect(b.takeStep()).rejects.toMatchObject({ details: { missing: [0] } });
});

test("only the ranks that hold a model's tensors in parts wait for each other to compute", async () => {
  const ranks = await ranksOf(4, { tensorRanks: 2 });
  const rows = { rows: 1, columns: 2, tokens: Int32Array.of(2, 3), temperatures: Float32Array.of(1) };
  await Promise.all(ranks.slice(2).map(({ own }) => own.logprobs(rows)));
  await expect(ranks[1]?.own.logprobs(rows)).rejects.toMatchObject({ details: { missing: [0] } });
});

test("ranks that fit no groups, or that start one by one, are refused with the key", async () => {
  await expect(ranksOf(3, { tensorRanks: 2 })).rejects.toMatchObject({
    code: "config.invalid",
    message: expect.stringContaining("'tensorRanks' is '2', of which the component's '3' ranks are no multiple"),
  });
  const own = { alphabet: "0123456789", groupSize: 1, maxTokens: 4, reward: { name: "exact" } };
  const config = RolloutConfig.parse({ ...engine({}), ...own });
  await expect(new RolloutWorker(contextOf(config, "rollout")).setup()).rejects.toMatchObject({
    code: "config.invalid",
    message: expect.stringContaining("'emulated.collectives' of 'rollout': its ranks start one by one"),
  });
});
