/** What an episode has when its step ends goes on under the next weights as `onNewWeights` says. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { BegunEpisode, Completion, Episode, Prompt, Sampling, Weights } from "@treadle/contracts";
import { ManualClock } from "@treadle/contracts/testing";
import { EmulatedEngine, type GenerationEngine, OnNewWeights, sealWeights, TransformerEngine } from "@treadle/engines";
import { createRandom } from "@treadle/learning";
import { beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { CompletionJournal } from "../src/rollout/completion-journal.ts";
import { answered, goingOn } from "../src/rollout/episode-state.ts";
import { EpisodeStream } from "../src/rollout/episode-stream.ts";
import { RolloutConfig, sampleKey } from "../src/rollout/generation-worker.ts";
import { RolloutWorker } from "../src/rollout/rollout-worker.ts";
import { toEpisode } from "../src/rollout/to-episode.ts";
import { completionOf, HandEngine, turns } from "./support/hand-engine.ts";
import { streamOf } from "./support/stream.ts";
import { type Given, lateSink, model, prompts, rankOf, usual } from "./support/tail-rank.ts";

const random = createRandom(Number(process.env["TREADLE_SEED"])).split("episodes over new weights");
const carrying = { tail: "carry", oversample: { prompts: 2 }, model: { ...model, slots: 12 } } as const;
const emulated = {
  slots: 12,
  vocabSize: model.vocabSize,
  decode: { baseSeconds: 0.01, unitSeconds: 0 },
  response: { medianTokens: 8, spread: 0.6 },
};

let next: Weights;
beforeAll(async () => {
  const engine = await TransformerEngine.create({ ...model, seed: 1 + random.integer(1000) });
  next = sealWeights({ ...engine.exportWeights(), policyVersion: 3 });
  await engine.close();
});

const clock = new ManualClock();

async function loadedRank(given: Given): Promise<RolloutWorker> {
  if (!("emulated" in given)) return rankOf(given);
  // However slow this machine is, as much happens before each end.
  return rankOf(given, { asEngine: EmulatedEngine.create(emulated, { clock }) } as unknown as HandEngine);
}

async function driven<T>(call: Promise<T>): Promise<T> {
  let isOver = false;
  void call.finally(() => {
    isOver = true;
  });
  while (!isOver) await clock.advance(1);
  return call;
}

const engineOf = (worker: RolloutWorker) => (worker as unknown as { readonly engine: GenerationEngine }).engine;

async function renew(worker: RolloutWorker): Promise<void> {
  const engine = engineOf(worker);
  const { parameters } =
    engine.kind === "emulated" ? await (engine as unknown as { exportWeights(): Weights }).exportWeights() : next;
  await driven(engine.loadWeights(sealWeights({ policyVersion: 3, parameters })));
}

/** Each sample of each prompt that went on, with what it had, and what was made of it. */
async function carried(
  given: Given,
  between: (worker: RolloutWorker) => Promise<RolloutWorker> = async (worker) => worker,
) {
  const worker = await loadedRank({ ...carrying, ...given });
  const { late, sink } = lateSink();
  const first = streamOf([prompts]);
  await driven(worker.generate(first.source, first.sink, sink));
  const after = await between(worker);
  await renew(after);
  const second = streamOf([late]);
  const metrics = await driven(after.generate(second.source, second.sink, sink));
  const episodes = late.flatMap((prompt) => {
    const group = second.groups.find(({ promptId }) => promptId === prompt.id);
    return (prompt.begun ?? []).map((begun, sample) => {
      return { prompt, sample, begun, episode: group?.episodes[sample] as Episode };
    });
  });
  expect(episodes.length).toBeGreaterThan(0);
  return { episodes, metrics, worker: after };
}

const unfinished = ({ begun }: { readonly begun: BegunEpisode }) => !begun.finishReason && begun.tokens.length > 0;
const writtenIn = ({ tokens, logprobs, policyVersions, promptLength }: Episode) => ({
  tokens: tokens.subarray(promptLength),
  logprobs: logprobs.subarray(promptLength),
  versions: [...policyVersions.subarray(promptLength)],
});

describe.each([
  ["embedded", {}],
  ["emulated", { emulated }],
] as const)("on the %s engine, an episode that is carried on", (_, engine) => {
  test("is, with 'restart', bit for bit what the new weights make of its prompt", async () => {
    const { episodes, metrics } = await carried({ ...engine, onNewWeights: "restart" });
    const waiting = await loadedRank({ ...engine, model: carrying.model });
    await renew(waiting);
    const whole = streamOf([prompts]);
    await driven(waiting.generate(whole.source, whole.sink));
    expect(episodes.some(unfinished)).toBe(true);
    for (const { prompt, sample, begun, episode } of episodes) {
      if (begun.finishReason) expect(writtenIn(episode).versions.every((version) => version === 0)).toBe(true);
      else expect(episode).toEqual(whole.groups.find(({ promptId }) => promptId === prompt.id)?.episodes[sample]);
    }
    const thrown = episodes.reduce((sum, { begun }) => sum + (begun.finishReason ? 0 : begun.tokens.length), 0);
    expect(metrics["carriedTokens"]).toBe(episodes.reduce((sum, { begun }) => sum + begun.tokens.length, 0) - thrown);
    expect(metrics["cutTokens"]).toBe(thrown);
  });

  test("keeps its tokens with 'recompute', and by default, and goes on as an engine that was given them, bit for bit", async () => {
    const own = await loadedRank({ ...engine, model: carrying.model });
    await renew(own);
    for (const onNewWeights of ["recompute", undefined] as const) {
      const { episodes } = await carried({ ...engine, ...(onNewWeights && { onNewWeights }) });
      for (const { prompt, sample, begun, episode } of episodes.filter(unfinished)) {
        const { tokens, logprobs } = begun;
        const { length } = tokens;
        const [alone] = await driven(
          engineOf(own).generate([], samplingOf(own), {
            join: (add) =>
              void add({
                ...{ prompt: prompt.tokens, key: sampleKey(prompt, sample) },
                begun: { tokens, logprobs, numAppended: 0, turnFrom: 0 },
              }),
          }),
        );
        const { versions, ...written } = writtenIn(episode);
        expect(written).toEqual({ tokens: alone?.tokens, logprobs: alone?.logprobs });
        expect(written.tokens.subarray(0, length)).toEqual(tokens);
        expect(versions).toEqual(versions.map((__, at) => (at < length ? 0 : 3)));
      }
    }
  });

  test("says with 'keep' which weights chose each token", async () => {
    const { episodes } = await carried({ ...engine, onNewWeights: "keep" });
    for (const { begun, episode } of episodes.filter(unfinished)) {
      const { tokens, versions } = writtenIn(episode);
      expect(tokens.subarray(0, begun.tokens.length)).toEqual(begun.tokens);
      expect(versions).toEqual(versions.map((__, at) => (at < begun.tokens.length ? 0 : 3)));
    }
  });
});

test("with 'keep' goes on with its keys and values where its rank lives, and as with 'recompute' in another process", async () => {
  const made = (of: Awaited<ReturnType<typeof carried>>) =>
    of.episodes.filter(unfinished).map(({ episode }) => episode);
  const recomputed = made(await carried({ onNewWeights: "recompute" }));
  const another = await carried({ onNewWeights: "keep" }, () => loadedRank({ ...carrying, onNewWeights: "keep" }));
  expect(made(another)).toEqual(recomputed);
  const kept = made(await carried({ onNewWeights: "keep" }));
  expect(kept.map(({ promptId }) => promptId)).toEqual(recomputed.map(({ promptId }) => promptId));
  expect(kept.map(({ logprobs }) => [...logprobs])).not.toEqual(recomputed.map(({ logprobs }) => [...logprobs]));
});

const samplingOf = (worker: RolloutWorker) =>
  (worker as unknown as { sampling(temperature: number): Sampling }).sampling(1);

test("W1: what is carried on with several versions has each of them, also behind an engine that tells none", async () => {
  const begun: BegunEpisode = {
    ...{ tokens: Int32Array.of(1, 2, 3, 4), logprobs: new Float32Array(4), policyVersion: 2 },
    versions: [
      [1, 3],
      [2, 1],
    ],
  };
  const engine = new HandEngine();
  engine.policyVersion = 3;
  const ended: Completion[] = [];
  const stream = new EpisodeStream({
    engine: engine.asEngine,
    sampling: { maxTokens: 9, temperature: 1, stopTokens: [0], seed: 1 },
  });
  stream.run({
    prompt: prompts[0] as Prompt,
    key: 1,
    name: "a",
    begun,
    ended: (completion) => void ended.push(completion),
  });
  engine.end(0, 6, "stop", 3);
  await stream.finish();
  expect(engine.joined[0]?.begun?.versions).toEqual(begun.versions);
  const episode = toEpisode("embedded", prompts[0] as Prompt, ended[0] as Completion, 0);
  expect(writtenIn(episode).versions).toEqual([1, 1, 1, 2, 3, 3]);
});

test("W1: what goes on after a death has the versions of what an earlier step had, and this one's behind them", async () => {
  const folder = await mkdtemp(join(tmpdir(), "treadle-host-"));
  onTestFinished(() => rm(folder, { recursive: true, force: true }));
  const openJournal = (): CompletionJournal =>
    new CompletionJournal({
      hostFiles: { folder, ownPrefix: "treadle-a.1-", leftPrefix: "treadle-a.left-", runPrefix: "treadle-a." },
      ...{
        component: "rollout",
        rank: 0,
        sampledBy: 1,
        isCurrent: () => true,
        log: { info: () => {}, warn: () => {} },
      },
    });
  const begun: BegunEpisode = {
    ...{ tokens: Int32Array.of(1, 2, 1), logprobs: new Float32Array(3), policyVersion: 2 },
    versions: [
      [1, 2],
      [2, 1],
    ],
  };
  const [prompt, key] = [prompts[0] as Prompt, 1];
  const id = CompletionJournal.idOf(prompt.tokens, key, begun.tokens);
  openJournal().keep([{ id, from: 0, tokens: Int32Array.of(1, 2, 1, 2), logprobs: new Float32Array(4) }]);
  const engine = new HandEngine();
  engine.policyVersion = 3;
  const stream = new EpisodeStream({
    ...{ engine: engine.asEngine, journal: openJournal(), onNewWeights: "recompute" },
    sampling: { maxTokens: 9, temperature: 1, stopTokens: [0], seed: 1 },
  });
  stream.run({ ...{ prompt, key, begun, name: "a" }, ended: () => {} });
  engine.end(0, 6, "stop", 3);
  await stream.finish();
  expect(engine.joined[0]?.begun).toMatchObject({
    tokens: Int32Array.of(1, 2, 1, 2),
    versions: [...begun.versions!, [3, 1]],
  });
});

test("an answer of a tool to what has gone on since counts, as nothing begins again", async () => {
  for (const onNewWeights of [undefined, "recompute"] as const) {
    const engine = new HandEngine();
    const ended: number[] = [];
    const stream = new EpisodeStream({
      engine: engine.asEngine,
      sampling: { maxTokens: 99, temperature: 1, stopTokens: [0], seed: 1 },
      onNewWeights,
      tool: (_, __, answers) =>
        answers.length > 0
          ? undefined
          : Promise.resolve({ answer: Int32Array.of(1), toolSeconds: 0, hasToolFailed: false }),
    });
    stream.run({
      prompt: prompts[0] as Prompt,
      key: 1,
      name: "a",
      ended: (_, answers) => void ended.push(answers.length),
    });
    await engine.turn(0, 3);
    engine.end(0, 6, "stop", 1);
    await turns();
    expect(ended).toEqual([onNewWeights ? 1 : 0]);
  }
});

test("of what goes on, 'restart' leaves what its tools have answered", () => {
  const written = answered(completionOf(4), [[1, 2]], Int32Array.of(7, 8));
  const begun: BegunEpisode = {
    ...{ tokens: Int32Array.of(...written.tokens, 5, 5), logprobs: new Float32Array(8), policyVersion: 2 },
    versions: [
      [1, 5],
      [2, 3],
    ],
    tool: {
      trajectory: "a",
      answers: [
        [1, 2],
        [4, 6],
      ],
    },
  };
  expect(goingOn(begun, "restart")).toEqual({
    ...begun,
    tokens: written.tokens,
    logprobs: new Float32Array(6),
    versions: [
      [1, 5],
      [2, 1],
    ],
  });
  for (const mode of ["recompute", "keep", undefined] as const) expect(goingOn(begun, mode)?.tokens).toHaveLength(8);
  const { tool: _, ...alone } = begun;
  expect(goingOn(alone, "restart")).toBeUndefined();
  expect(goingOn({ ...alone, finishReason: "stop" }, "restart")).toEqual({ ...alone, finishReason: "stop" });
});

test.each([
  [{ engine: { kind: "torch" }, onNewWeights: "keep" }, /'keep', but an engine of kind 'torch' keeps no keys/],
  [{ engine: { kind: "torch", process: "shared" }, onNewWeights: "recompute" }, /set 'engine.process' to 'own'/],
  [{ placement: "least-load", onNewWeights: "recompute" }, /'recompute', but ranks share episodes/],
  [
    { engine: { kind: "vllm", url: "http://127.0.0.1:1", model: "/m" }, onNewWeights: "recompute" },
    /an engine of kind 'vllm' begins completions again/,
  ],
  [{ onNewWeights: "keep" }, /'keep', but 'tail' is 'wait', .*; remove it, or set 'tail' to 'carry'/],
  [{ onNewWeights: "restart", tail: "cut" }, /'restart', but 'tail' is 'cut'/],
  [{ onNewWeights: "recompute", tail: "batch" }, /'recompute', but 'tail' is 'batch'/],
  [{ onNewWeights: "restart", engine: { kind: "torch", process: "shared" } }, /set 'tail' to 'carry'/],
] as const)("%j is refused", (given, message) => {
  const config = { ...usual, ...given } as unknown as RolloutConfig;
  expect(() => RolloutWorker.checkConfig(config)).toThrow(message);
});

test.each([
  { engine: { kind: "torch" }, onNewWeights: "recompute" },
  { engine: { kind: "torch", process: "shared" }, onNewWeights: "restart" },
  ...OnNewWeights.options.map((onNewWeights) => ({ onNewWeights })),
])("%j is allowed where 'tail' is 'carry'", (given) => {
  const config = RolloutConfig.parse({ ...usual, ...given, tail: "carry" });
  expect(() => RolloutWorker.checkConfig(config)).not.toThrow();
});

test.each(OnNewWeights.options)("an engine that does not say that it heeds it: '%s' is not ignored", async (mode) => {
  const made = rankOf({ ...carrying, onNewWeights: mode }, new HandEngine());
  if (mode === "restart") await expect(made).resolves.toBeDefined();
  else
    await expect(made).rejects.toThrow(`'onNewWeights' is '${mode}', but the engine of kind 'embedded' does not say`);
});
