/** A rank whose engine on PyTorch dies in the middle of its episodes; another that is given its prompts goes on with what it had. */
import { mkdir, mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { EpisodeGroup, HostFiles, Prompt, Sampling } from "@treadle/contracts";
import {
  type GenerateOptions,
  type GenerationEngine,
  type JoiningCompletion,
  sealWeights,
  TorchEngine,
} from "@treadle/engines";
import { createCharacterTokenizer, createRandom } from "@treadle/learning";
import type { Sink } from "@treadle/runtime";
import { expect, onTestFinished, test } from "vitest";
import { lacksTorch } from "../../../test/support/torch.ts";
import { RolloutConfig } from "../src/rollout/generation-worker.ts";
import { RolloutWorker } from "../src/rollout/rollout-worker.ts";
import { contextOf } from "./support/context.ts";
import { streamOf } from "./support/stream.ts";

const reason = lacksTorch();
const alphabet = "0123456789+-*/=()<>abcdefghijklmnopqrstuvwxyz";
const tokenizer = createCharacterTokenizer(alphabet);
const config = RolloutConfig.parse({
  model: { vocabSize: alphabet.length + 2, layers: 1, width: 16, heads: 2, contextLength: 96, seed: 4, slots: 4 },
  engine: { kind: "torch", device: "cpu", streamMs: 0 },
  ...{ alphabet, groupSize: 2, maxTokens: 80, reward: { name: "arithmetic" } },
});
const prompts: Prompt[] = ["1+1=", "2+1=", "1+2=", "12+1=", "2="].map((text) => ({
  id: text,
  tokens: tokenizer.encode(text),
  answer: "2",
}));
const seed = Number(process.env["TREADLE_SEED"]);

/** A rank that counts the tokens which its engine has told of, and kills it once they are so many. */
async function rankOf(
  hostFiles: HostFiles | undefined,
  rank: number,
  killAfter = Number.POSITIVE_INFINITY,
  given: Partial<RolloutConfig> = {},
) {
  const counted = { chosen: 0, resumed: 0 };
  class Counted extends RolloutWorker {
    protected override async createEngine(): Promise<GenerationEngine> {
      const engine = (await super.createEngine()) as TorchEngine;
      const generate = engine.generate.bind(engine);
      const had: number[] = [];
      const chosen = (index: number, length: number) => {
        counted.chosen += length - (had[index] ?? 0);
        had[index] = length;
        if (counted.chosen >= killAfter) process.kill(engine.pid as number, "SIGKILL");
      };
      const override = (given: readonly Int32Array[], sampling: Sampling, options: GenerateOptions = {}) => {
        had.length = 0;
        return generate(given, sampling, {
          ...options,
          join: (add, cut) => {
            const noted = (joining: JoiningCompletion) => {
              const index = add(joining);
              if (index !== undefined) had[index] = joining.begun?.tokens.length ?? 0;
              counted.resumed += joining.begun?.tokens.length ?? 0;
              return index;
            };
            options.join?.(noted, cut);
          },
          onProgress:
            options.onProgress &&
            ((pieces) => {
              options.onProgress?.(pieces);
              for (const { index, from, tokens } of pieces) chosen(index, from + tokens.length);
            }),
          onCompletion: (index, completion) => {
            options.onCompletion?.(index, completion);
            chosen(index, completion.tokens.length);
          },
        });
      };
      onTestFinished(() => engine.close());
      return Object.assign(engine, { generate: override });
    }
  }
  const context = { ...contextOf({ ...config, ...given }, "rollout"), rank, hostFiles, failProcess: () => {} };
  const worker = new Counted(context);
  await worker.setup();
  await worker.load();
  return { worker, counted };
}

const tokensOf = (groups: readonly EpisodeGroup[]) =>
  new Map(groups.map(({ episodes }) => [episodes[0]?.promptId, episodes.map(({ tokens }) => [...tokens])]));

async function hostFilesOf(): Promise<HostFiles> {
  const folder = await mkdtemp(join(tmpdir(), "treadle-host-"));
  onTestFinished(() => rm(folder, { recursive: true }));
  await mkdir(join(folder, "treadle-a.left-completions-rollout-0-1-0")); // another's, which cannot be read
  return { folder, ownPrefix: "treadle-a.1-", leftPrefix: "treadle-a.left-", runPrefix: "treadle-a." };
}

test.skipIf(reason)(
  reason ?? `CJ1: no token that a rank was told of is chosen again, nor lost, whichever rank goes on (seed ${seed})`,
  async () => {
    const random = createRandom(seed).split("kills");
    const { worker: whole, counted: once } = await rankOf(undefined, 0);
    const all = streamOf(prompts.map((one) => [one]));
    await whole.generate(all.source, all.sink);
    expect(once.chosen).toBeGreaterThan(50);
    const hostFiles = await hostFilesOf();
    const made: EpisodeGroup[] = [];
    let left = prompts;
    let chosen = 0;
    let resumed = 0;
    for (const [at, rank] of [0, 1].entries()) {
      const killAfter = 1 + random.split(`${at}`).integer(Math.floor(once.chosen / 3));
      const { worker, counted } = await rankOf(hostFiles, rank, killAfter);
      const { source, sink, groups, committed } = streamOf(left.map((one) => [one]));
      await expect(worker.generate(source, sink), `killed after ${killAfter}`).rejects.toThrow("SIGKILL");
      made.push(...groups);
      left = left.filter((one) => !committed.has(one));
      chosen += counted.chosen;
      resumed += counted.resumed;
    }
    const { worker, counted } = await rankOf(hostFiles, 0);
    const { source, sink, groups } = streamOf(left.map((one) => [one]));
    await worker.generate(source, sink);
    expect(tokensOf([...made, ...groups])).toEqual(tokensOf(all.groups));
    expect(resumed + counted.resumed).toBeGreaterThan(0);
    expect(chosen + counted.chosen, "each token that was told of is chosen once").toBe(once.chosen);
    // That of the rank which is not there any more goes with the run.
    const names = await readdir(hostFiles.folder);
    expect(names.filter((name) => name.includes(`-rollout-0-${process.pid}`))).toEqual([]);
  },
  300_000,
);

test.skipIf(reason)(
  "CJ1: under other weights what was kept begins again",
  async () => {
    const hostFiles = await hostFilesOf();
    const killed = await rankOf(hostFiles, 0, 20);
    const first = streamOf([prompts]);
    await expect(killed.worker.generate(first.source, first.sink)).rejects.toThrow("SIGKILL");
    const other = await TorchEngine.create({ ...config.model, seed: 9 }, { kind: "torch", device: "cpu" });
    onTestFinished(() => other.close());
    const weights = sealWeights({ ...(await other.exportWeights()), policyVersion: 1 });
    const { worker, counted } = await rankOf(hostFiles, 0);
    const engine = (worker as unknown as { engine: GenerationEngine }).engine;
    await engine.loadWeights(weights);
    const again = streamOf([prompts]);
    await worker.generate(again.source, again.sink);
    expect(counted.resumed).toBe(0);
    expect(again.groups).toHaveLength(prompts.length);
  },
  300_000,
);

test.skipIf(reason)(
  "W1: an episode of an earlier step goes on on PyTorch, and each token keeps the version that chose it",
  async () => {
    const { worker, counted } = await rankOf(await hostFilesOf(), 0, Number.POSITIVE_INFINITY, { tail: "carry" });
    const tokens = tokenizer.encode("12+12=");
    const begun = { tokens, logprobs: new Float32Array(tokens.length).fill(-2), policyVersion: -7 };
    const prompt: Prompt = {
      ...(prompts[0] as Prompt),
      isLate: true,
      begun: [begun, { ...begun, finishReason: "length" }],
    };
    const { source, sink, groups } = streamOf([[prompt]]);
    const late = { name: "late", put: async () => {} } as unknown as Sink<Prompt>;
    await worker.generate(source, sink, late);
    const [carried, ended] = groups[0]?.episodes ?? [];
    const from = prompt.tokens.length;
    for (const episode of [carried, ended]) {
      expect([...(episode?.tokens.subarray(from, from + tokens.length) ?? [])]).toEqual([...tokens]);
      expect([...(episode?.policyVersions.subarray(from, from + tokens.length) ?? [])]).toEqual([...tokens].fill(-7));
    }
    const rest = (carried?.tokens.length ?? 0) - from - tokens.length;
    expect(rest).toBeGreaterThan(0);
    expect(counted).toEqual({ chosen: rest, resumed: tokens.length });
    expect([...(carried?.policyVersions.subarray(from + tokens.length) ?? [])]).toEqual(Array(rest).fill(0));
    expect(ended?.tokens.length).toBe(from + tokens.length);
  },
  300_000,
);
