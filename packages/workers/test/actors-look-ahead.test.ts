/** An actor looks at what it takes while others have its devices, and computes nothing before it has them. */
import type { EpisodeGroup } from "@treadle/contracts";
import { makeEpisode } from "@treadle/learning/testing";
import type { Source } from "@treadle/runtime";
import { expect, test } from "vitest";
import { ActorConfig, ActorWorker } from "../src/index.ts";
import { contextOf } from "./support/context.ts";

const model = { vocabSize: 12, layers: 1, width: 16, heads: 2, contextLength: 6, microBatchTokens: 24 };
const groupOf = (promptId: string): EpisodeGroup => ({
  promptId,
  episodes: [0, 1].map((reward) => makeEpisode({ promptId, policyTokens: 3, reward })),
});

class WatchedActor extends ActorWorker {
  readonly asked: string[] = [];
  protected override async createEngine() {
    const engine = await super.createEngine();
    const { asked } = this;
    return new Proxy(engine, {
      get(target, name) {
        const value = Reflect.get(target, name, target) as unknown;
        if (typeof value !== "function") return value;
        return (...given: unknown[]) => {
          if (["forwardBackward", "logprobs", "optimStep"].includes(String(name))) asked.push(String(name));
          return value.apply(target, given) as unknown;
        };
      },
    });
  }
}

/** Its devices are granted by hand; its stream ends once they are, as that of a producer on the same devices does. */
async function play(
  config: object,
  batches: readonly (readonly EpisodeGroup[])[],
  granularity: "all" | number = "all",
) {
  const parsed = ActorConfig.parse({ model, algorithm: { name: "grpo" }, learningRate: 0.01, ...config });
  const context = contextOf(parsed, "actor");
  const events: string[] = [];
  let grant = () => {};
  const granted = new Promise<void>((resolve) => {
    grant = resolve;
  });
  const lock = () => {
    events.push("lock");
    return granted.then(() => ({ [Symbol.asyncDispose]: async () => void events.push("release") }));
  };
  const worker = new WatchedActor({ ...context, devices: { ...context.devices, lock } } as never);
  await worker.setup();
  let numGiven = 0;
  let allLookedAt = () => {};
  const lookedAt = new Promise<void>((resolve) => {
    allLookedAt = resolve;
  });
  const source = {
    granularity,
    async *batches(options: object) {
      events.push(JSON.stringify(options));
      for (const batch of batches) {
        numGiven++;
        yield batch;
      }
      allLookedAt();
      await granted;
    },
  } as unknown as Source<EpisodeGroup>;
  return { worker, events, grant, lookedAt, source, given: () => numGiven };
}

const several = { minibatches: 2 };

test("what has come is taken before the devices are granted, and nothing is computed before", async () => {
  const { worker, events, grant, lookedAt, source, given } = await play(several, [[groupOf("a")], [groupOf("b")]]);
  const training = worker.train(source);
  await lookedAt;
  expect(given()).toBe(2);
  expect(worker.asked).toEqual([]);
  expect(events).toEqual([JSON.stringify({ acknowledge: "call", asTheyCome: true }), "lock"]);
  grant();
  expect(await training).toMatchObject({ policyVersion: 2 });
  expect(worker.asked).toEqual(["forwardBackward", "optimStep", "forwardBackward", "optimStep"]);
  expect(events.at(-1)).toBe("release");
});

test("it trains on what came piece by piece as on the whole", async () => {
  const groups = ["a", "b", "c"].map(groupOf);
  const reports = [];
  for (const batches of [[groups], groups.map((group) => [group])]) {
    const { worker, grant, source } = await play(several, batches);
    grant();
    reports.push({ ...(await worker.train(source)), weights: (await worker.weights())?.checksum });
  }
  expect(reports[1]).toEqual(reports[0]);
});

test("what is refused before the devices are granted fails the call at once, and they are left to its end", async () => {
  const broken = makeEpisode({ promptId: "broken", policyTokens: 3, logprobs: new Float32Array(99) });
  const { worker, events, source } = await play(several, [[{ promptId: "broken", episodes: [broken, broken] }]]);
  await expect(worker.train(source)).rejects.toMatchObject({ code: "learning.invalid-batch" });
  expect(worker.asked).toEqual([]);
  expect(events).not.toContain("release");
});

test("one that steps on each batch, or is told how many items to take, takes in its gang", async () => {
  for (const [config, granularity] of [
    [{}, "all"],
    [several, 2],
  ] as const) {
    const { worker, events, grant, source } = await play(config, [[groupOf("a")]], granularity);
    grant();
    await worker.train(source);
    expect(events[0]).toBe(JSON.stringify({ acknowledge: "call", gang: true }));
  }
});
