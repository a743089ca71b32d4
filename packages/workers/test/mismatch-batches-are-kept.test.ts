/** When sampler and trainer are too far apart, what a step has trained on is kept, and read again as it was. */
import { mkdir, mkdtemp, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import type { Episode, EpisodeGroup } from "@treadle/contracts";
import { createRandom } from "@treadle/learning";
import { makeEpisode } from "@treadle/learning/testing";
import type { Source } from "@treadle/runtime";
import { expect, onTestFinished, test } from "vitest";
import { ActorConfig, ActorWorker, compare, keptSteps, newestKept, readKept } from "../src/index.ts";
import { encodeKept } from "../src/mismatch/kept-batch.ts";
import { contextOf } from "./support/context.ts";
import { Group } from "./support/group.ts";

const model = { vocabSize: 12, layers: 1, width: 16, heads: 2, contextLength: 6, microBatchTokens: 24 };
const random = createRandom(`kept batches ${process.env["TREADLE_SEED"]}`);
const apart = 1.5;

/** Of several prompts; nobody has scored those of the last. The trainer finds one token of each other far more probable. */
function drawGroups(numGroups: number, version = 0): EpisodeGroup[] {
  return Array.from({ length: numGroups }, (_, prompt) => {
    const promptId = `prompt ${prompt} „x“`;
    const episodes = Array.from({ length: 3 }, (): Episode => {
      const policyTokens = 1 + random.integer(4);
      const length = 1 + policyTokens;
      const logprobs = Float32Array.from({ length }, (_, at) => (at === 0 ? 0 : -1 - 2 * random.float()));
      const made = makeEpisode({ promptId, policyTokens, reward: random.integer(3), logprobs });
      const episode = { ...made, policyVersions: made.policyVersions.map((own) => (own < 0 ? own : version)) };
      if (prompt === numGroups - 1) return { ...episode, engine: "embedded" };
      const oldLogprobs = logprobs.map((each, at) => each + (at === length - 1 ? apart : 0));
      return { ...episode, engine: "vllm", temperature: 0.75, oldLogprobs };
    });
    return { promptId, episodes };
  });
}

const sourceOf = (groups: readonly EpisodeGroup[]): Source<EpisodeGroup> =>
  ({
    async *batches() {
      yield groups;
    },
  }) as unknown as Source<EpisodeGroup>;

async function actorsIn(folder: string, rolloutCorrection: object, worldSize = 1) {
  const group = new Group(worldSize);
  const warnings: string[] = [];
  const config = { algorithm: { name: "grpo", dropEqualRewards: false }, rolloutCorrection };
  const parsed = ActorConfig.parse({ model, learningRate: 0.01, ...config });
  let step = 0;
  const workers = await Promise.all(
    Array.from({ length: worldSize }, async (_, rank) => {
      const context = contextOf(parsed, "actor", { rank, group });
      Object.assign(context.log, { warn: (text: string) => warnings.push(text) });
      const write = async (name: string, data: string | Uint8Array) => {
        await mkdir(dirname(join(folder, name)), { recursive: true });
        await writeFile(join(folder, name), data);
      };
      Object.assign(context, { artifacts: { write }, step: () => step });
      const worker = new ActorWorker(context);
      await worker.setup();
      return worker;
    }),
  );
  const train = async (...shares: readonly (readonly EpisodeGroup[])[]) => {
    step++;
    return Promise.all(workers.map((worker, rank) => worker.train(sourceOf(shares[rank] ?? []))));
  };
  return { train, warnings };
}

async function temporary(): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), "treadle-kept-"));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  return folder;
}

const plain = (episodes: readonly Episode[]) =>
  episodes.map(({ refLogprobs: _, values: __, ...episode }) => ({ ...episode, mask: [...episode.mask] }));

test("KB2 the whole batch of an alarm is kept by each rank, and read as it was trained, whatever nobody has rescored included", async () => {
  const folder = await temporary();
  const { train, warnings } = await actorsIn(folder, { alarm: 0.01 }, 2);
  const shares = [drawGroups(4), drawGroups(3)];
  const [metrics] = await train(...shares);
  expect(warnings).toEqual([
    expect.stringMatching(
      /rolloutCorrection\.alarm.*'0\.01'.*step '1' is kept in artifacts 'mismatch\/': 'treadle mismatch'/,
    ),
  ]);
  expect(await keptSteps(folder)).toEqual([1]);
  const { ranks: kept, missing, strayFiles } = await readKept(folder, 1);
  expect([missing, strayFiles]).toEqual([[], []]);
  for (const [rank, { facts, episodes }] of kept.entries()) {
    const given = shares[rank]!.flatMap(({ episodes: own }) => own);
    expect(plain(episodes)).toEqual(plain(given));
    expect(facts).toMatchObject({
      ...{ step: 1, worker: `actor/${rank}`, numRanks: 2, policyVersion: 0, engine: "embedded", alarm: 0.01 },
      ...{ numEpisodes: given.length, meanKl: metrics!["mismatchKl"], maxKl: metrics!["mismatchKlMax"] },
      ...{ effectiveSamples: metrics!["effectiveSamples"], cut: metrics!["cut"] },
    });
    expect(facts.weightsId).toBe(kept[0]!.facts.weightsId);
  }
  expect(kept).toHaveLength(2);
  expect(kept[0]!.facts.weightsId).toMatch(/./);
});

test("where policies are not too far apart, or no batch is to be kept, none is", async () => {
  const folder = await temporary();
  const quiet = await actorsIn(folder, { alarm: 10 });
  await quiet.train(drawGroups(3));
  expect(quiet.warnings).toEqual([]);
  const off = await actorsIn(folder, { alarm: 0.01, keptBatches: 0 });
  await off.train(drawGroups(3));
  expect(off.warnings).toEqual([
    expect.stringMatching(/batch is not kept.*'0' alarms.*rolloutCorrection\.keptBatches/),
  ]);
  expect(await readdir(folder)).toEqual([]);
  expect(await keptSteps(folder)).toEqual([]);
});

test("so many batches are kept, and of each so many bytes: those whose policies are furthest apart", async () => {
  const folder = await temporary();
  const numBytes = 3 * 400;
  const { train, warnings } = await actorsIn(folder, {
    alarm: 0.01,
    keptBatches: 2,
    keptMebibytes: numBytes / 2 ** 20,
  });
  const given = [0, 1, 2].map((version) => drawGroups(5, version));
  for (const groups of given) await train(groups);
  expect(await keptSteps(folder)).toEqual([1, 2]);
  expect(warnings.map((text) => text.includes("is kept in artifacts"))).toEqual([true, true, false]);
  for (const step of [1, 2]) {
    const [{ facts, episodes } = expect.fail("nothing was kept")] = (await readKept(folder, step)).ranks;
    expect(facts.numEpisodes).toBe(15);
    expect(episodes.length).toBeGreaterThan(1);
    expect(episodes.length).toBeLessThan(5);
    // One token counts for more in a shorter episode; what has no score counts for nothing.
    const lengths = (some: readonly Episode[]) => some.map(({ tokens }) => tokens.length).sort((x, y) => x - y);
    const scored = given[step - 1]!.slice(0, -1).flatMap(({ episodes: own }) => own);
    expect(lengths(episodes)).toEqual(lengths(scored).slice(0, episodes.length));
  }
});

test("a large batch is in several files, and what is missing, cut, altered or no batch is named (KB1)", async () => {
  const folder = await temporary();
  const length = 100_000;
  const long = makeEpisode({
    promptId: "long",
    policyTokens: length - 1,
    reward: 1,
    logprobs: new Float32Array(length).fill(-1),
  });
  const facts = {
    ...{ step: 7, worker: "actor/0", numRanks: 1, policyVersion: 3, engine: "torch", alarm: 0.1, meanKl: 1, maxKl: 2 },
    ...{ effectiveSamples: 0.5, cut: 0.1, numEpisodes: 9 },
  };
  const files = encodeKept(0, facts, Array(9).fill(long) as Episode[]);
  expect(files.map(({ name }) => name)).toEqual([
    ...[1, 2, 3].map((at) => `mismatch/step-000007/rank-0-${at}.safetensors`),
    "mismatch/step-000007/rank-0.json",
  ]);
  for (const { data } of files) expect(data.length).toBeLessThan(8 * 2 ** 20);
  const own = join(folder, "mismatch/step-000007");
  await mkdir(own, { recursive: true });
  const write = async () => {
    for (const { name, data } of files) await writeFile(join(folder, name), data);
  };
  await write();
  const [kept] = (await readKept(folder, 7)).ranks;
  expect(kept!.episodes).toHaveLength(9);
  expect(plain(kept!.episodes)[8]).toEqual(plain([long])[0]);
  const path = join(own, "rank-0-2.safetensors");
  const whole = await readFile(path);
  const at = random.integer(whole.length);
  const altered = Buffer.from(whole);
  altered[at]! ^= 1 << random.integer(8);
  for (const damaged of [altered, whole.subarray(0, at), Buffer.alloc(0)]) {
    await writeFile(path, damaged);
    const refused = {
      code: "recording.invalid",
      message: expect.stringMatching(/rank-0-2\.safetensors' has checksum '.*' where '/),
    };
    await expect(readKept(folder, 7), `at ${at}`).rejects.toMatchObject(refused);
  }
  await rm(path);
  await expect(readKept(folder, 7)).rejects.toThrow(
    /rank-0-2\.safetensors' cannot be read.*; the batch cannot be used/,
  );
  await write();
  await writeFile(join(own, "rank-0.json"), '{"format":1}');
  await expect(readKept(folder, 7)).rejects.toThrow(/rank-0\.json' does not say what was kept/);
  await rm(join(own, "rank-0.json"));
  await expect(readKept(folder, 7)).rejects.toMatchObject({
    code: "recording.invalid",
    message: expect.stringMatching(/step-000007' holds no batch of this step that was written to its end/),
  });
});

/** One that has parts of the policy in it is a weight, and no flag. */
test("KB2 a mask that is neither 0 nor 1 is read as it was", async () => {
  const folder = await temporary();
  const [group] = drawGroups(1);
  const episodes = group!.episodes.map((each) => ({
    ...each,
    mask: each.mask.map((own) => own * Math.fround(random.float())),
  }));
  await keep(folder, 0, { numRanks: 1 }, episodes);
  const [kept] = (await readKept(folder, 3)).ranks;
  expect(plain(kept!.episodes)).toEqual(plain(episodes));
});

const [shortGroup] = drawGroups(1);

/** As a rank writes it; what is not said is the same of each. */
async function keep(folder: string, rank: number, told: object, episodes = shortGroup!.episodes) {
  const facts = {
    ...{ step: 3, worker: `actor/${rank}`, numRanks: 1, policyVersion: 2, engine: "embedded", alarm: 0.1, meanKl: 1 },
    ...{ maxKl: 2, effectiveSamples: 0.5, cut: 0.1, numEpisodes: episodes.length, weightsId: `of ${rank}`, ...told },
  };
  for (const { name, data } of encodeKept(rank, facts, episodes)) {
    await mkdir(dirname(join(folder, name)), { recursive: true });
    await writeFile(join(folder, name), data);
  }
}

test("KB3 what a resumed run with fewer ranks leaves of the batch before is named, and not read", async () => {
  const folder = await temporary();
  const [numNow, numBefore] = [1 + random.integer(3), 4 + random.integer(5)];
  for (let rank = 0; rank < numBefore; rank++) await keep(folder, rank, { numRanks: numBefore });
  for (let rank = 0; rank < numNow; rank++) await keep(folder, rank, { numRanks: numNow });
  const stray = Array.from({ length: numBefore - numNow }, (_, at) => `rank-${numNow + at}.json`);
  await writeFile(join(folder, `mismatch/step-000003/rank-${numNow}-1.safetensors`), "damaged");
  const { ranks, missing, strayFiles } = await readKept(folder, 3);
  expect(ranks.map(({ facts: { worker, numRanks } }) => [worker, numRanks])).toEqual(
    Array.from({ length: numNow }, (_, rank) => [`actor/${rank}`, numNow]),
  );
  expect([missing, strayFiles]).toEqual([[], stray]);
});

test.for([
  { what: "step", told: { step: 4 } },
  { what: "version of the policy", told: { policyVersion: 9 } },
  { what: "number of ranks", told: { numRanks: 2 } },
  { what: "metric", told: { meanKl: 1.5 } },
  { what: "worker", told: { worker: "actor/0" } },
  { what: "component", told: { worker: "critic/1" } },
])("KB3 a rank of another $what is no part of the batch, and its own is missing", async ({ told }) => {
  const folder = await temporary();
  for (const rank of [0, 2]) await keep(folder, rank, { numRanks: 3 });
  await keep(folder, 1, { numRanks: 3, ...told });
  if ("step" in told)
    await rename(join(folder, "mismatch/step-000004/rank-1.json"), join(folder, "mismatch/step-000003/rank-1.json"));
  const { ranks, missing, strayFiles } = await readKept(folder, 3);
  expect(ranks.map(({ facts }) => facts.worker)).toEqual(["actor/0", "actor/2"]);
  expect([missing, strayFiles]).toEqual([[1], ["rank-1.json"]]);
});

test("the newest whole batch is preferred to newer ones that are empty or lack ranks, and those to nothing", async () => {
  const folder = await temporary();
  expect(await newestKept(folder)).toBeUndefined();
  const empty = async (name: string) => mkdir(join(folder, "mismatch", name), { recursive: true });
  await empty("step-000009");
  await empty("step-12");
  expect([await keptSteps(folder), await newestKept(folder)]).toEqual([[9], undefined]);
  await keep(folder, 0, { step: 5, numRanks: 2 });
  expect(await newestKept(folder)).toEqual({ step: 5, passedOver: [9] });
  await keep(folder, 0, { step: 4, numRanks: 1 });
  await keep(folder, 0, { step: 3, numRanks: 1 });
  expect(await newestKept(folder)).toEqual({ step: 4, passedOver: [5, 9] });
  await writeFile(join(folder, "mismatch/step-000010"), "no folder");
  await expect(readKept(folder, 10)).rejects.toMatchObject({ code: "recording.invalid" });
  expect(await newestKept(folder)).toEqual({ step: 4, passedOver: [5, 9] });
});

test("the tokens on which policies differ are found, by position, with what each policy thought of them", () => {
  const episodes = drawGroups(4).flatMap(({ episodes: own }) => own);
  const scored = episodes.filter(({ oldLogprobs }) => oldLogprobs !== undefined);
  const [which, far] = [random.integer(scored.length), 3];
  const target = scored[which]!;
  const at = target.tokens.length - 1;
  target.oldLogprobs![at] = target.logprobs[at]! - far;
  const again = episodes.map(({ oldLogprobs, logprobs }) => Float32Array.from(oldLogprobs ?? logprobs));
  const k3 = (logRatio: number) => Math.expm1(logRatio) - logRatio;
  const { worst, samplerAndTrainer, samplerAndRescored, trainerAndRescored, tokens } = compare(episodes, again, 4);
  const expected = [...(k3(-far) > k3(apart) ? [] : [k3(apart)]), k3(-far)];
  expect(worst).toHaveLength(4);
  expect(samplerAndTrainer.maxKl).toBeCloseTo(Math.max(k3(-far), k3(apart)), 4);
  const found = compare(episodes, again, 1000).worst.find(
    ({ sampler, trainer }) => trainer !== undefined && trainer < sampler - 1,
  );
  expect(found).toMatchObject({ episode: episodes.indexOf(target), position: at, token: target.tokens[at] });
  expect(found).toMatchObject({ sampler: target.logprobs[at], trainer: target.oldLogprobs![at] });
  expect(found!.divergence).toBeCloseTo(expected.at(-1)!, 4);
  expect(trainerAndRescored).toMatchObject({ meanKl: 0, maxKl: 0 });
  expect(samplerAndRescored!.tokens).toBe(tokens);
  expect(samplerAndTrainer.tokens).toBeLessThan(tokens);
  // Without a score, what was scored again is compared with the sampler.
  const unscored = episodes.map(({ oldLogprobs: _, ...episode }) => episode);
  expect(compare(unscored, undefined, 3)).toMatchObject({ samplerAndTrainer: { tokens: 0, meanKl: 0 } });
  expect(compare(unscored, again, 1).worst[0]!.divergence).toBeCloseTo(Math.max(k3(-far), k3(apart)), 4);
});
