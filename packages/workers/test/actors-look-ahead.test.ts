/** An actor looks at what it takes while others have its devices, and computes nothing before it has them. */
import { type EpisodeGroup, TreadleError } from "@treadle/contracts";
import type { TokenRows } from "@treadle/engines";
import { makeEpisode } from "@treadle/learning/testing";
import type { Source } from "@treadle/runtime";
import fc from "fast-check";
import { expect, test } from "vitest";
import { ActorConfig } from "../src/index.ts";
import { contextOf } from "./support/context.ts";
import { CountedActor } from "./support/counted-actor.ts";

const model = { vocabSize: 12, layers: 1, width: 16, heads: 2, contextLength: 6, microBatchTokens: 24 };
const groupOf = (promptId: string): EpisodeGroup => ({
  promptId,
  episodes: [0, 1].map((reward) => makeEpisode({ promptId, policyTokens: 3, reward })),
});

/** What an engine computes differs a little with the shape of the micro-batch that a row is in. */
class WatchedActor extends CountedActor {
  protected override async scored(logprobs: Promise<Float32Array>, { rows, columns }: TokenRows) {
    return (await logprobs).map((value) => value + (rows + 10 * columns) / 1000);
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
  let refuse = (_: Error) => {};
  const granted = new Promise<void>((resolve, reject) => {
    grant = resolve;
    refuse = reject;
  });
  granted.catch(() => {}); // a call may have ended
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
  return { worker, events, grant, refuse, lookedAt, source, given: () => numGiven };
}

/** Until nothing goes on any more before somebody acts. */
async function turns(): Promise<void> {
  for (let turn = 0; turn < 4; turn++) await new Promise((resolve) => setImmediate(resolve));
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

test("what was sampled before is scored in the same micro-batches however it came", async () => {
  const reward = { name: "rloo", kl: { placement: "reward", coefficient: 0.1 } };
  const groups = ["a", "b", "c", "d", "e"].map(
    (promptId, at): EpisodeGroup => ({
      promptId,
      episodes: [0, 1, 0.5].map((reward, i) => {
        const episode = makeEpisode({ promptId, policyTokens: 1 + ((2 * at + i) % 5), reward });
        return { ...episode, refLogprobs: episode.logprobs.map((value) => value / 2) };
      }),
    }),
  );
  const trained = async (
    algorithm: object,
    batches: readonly (readonly EpisodeGroup[])[],
    granularity?: number,
  ): Promise<object> => {
    const config = { ...several, algorithm, maxStaleness: 1 };
    const { worker, grant, source } = await play(config, batches, granularity);
    grant();
    await worker.train({ ...source, batches: async function* () {} } as never); // the next step's weights
    const report = await worker.train(source);
    expect(worker.asked).toContain("logprobs");
    return { ...report, weights: (await worker.weights())?.checksum };
  };
  for (const algorithm of [{ name: "grpo" }, reward]) {
    const whole = await trained(algorithm, [groups], groups.length);
    const cuts = fc.uniqueArray(fc.integer({ min: 1, max: groups.length - 1 }), { minLength: 1 });
    await fc.assert(
      fc.asyncProperty(cuts, async (cuts) => {
        const ends = [...cuts.toSorted((a, b) => a - b), groups.length];
        const pieces = ends.map((end, at) => groups.slice(ends[at - 1] ?? 0, end));
        expect(await trained(algorithm, pieces)).toEqual(whole);
      }),
      { numRuns: 8 },
    );
  }
});

test("a lock that is refused ends the call at once, also while it waits for a batch that never comes", async () => {
  const refusals = [
    new TreadleError("lock.timeout", "device lock on 'cpu:0' not granted: held by 'rollout/0'"),
    new Error("it cannot be loaded"),
  ];
  for (const refusal of refusals)
    for (const config of [several, {}])
      for (const batches of [[], [[groupOf("a")]]]) {
        const { worker, refuse, source } = await play(config, batches);
        const endless = async function* () {
          yield* batches;
          await new Promise(() => {});
        };
        const training = worker.train({ ...source, batches: endless } as never).then(
          () => "trained",
          (error: unknown) => error,
        );
        await turns();
        refuse(refusal);
        expect(await Promise.race([training, turns().then(() => "still waits")])).toBe(refusal);
        expect(worker.asked).toEqual([]);
      }
});

test("what is refused before the devices are granted fails the call at once, and they are given back if they come later", async () => {
  const broken = makeEpisode({ promptId: "broken", policyTokens: 3, logprobs: new Float32Array(99) });
  const { worker, events, grant, source } = await play(several, [[{ promptId: "broken", episodes: [broken, broken] }]]);
  await expect(worker.train(source)).rejects.toMatchObject({ code: "learning.invalid-batch" });
  expect(worker.asked).toEqual([]);
  expect(events).not.toContain("release");
  grant();
  await turns();
  expect(events.filter((event) => event === "release")).toHaveLength(1);
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
