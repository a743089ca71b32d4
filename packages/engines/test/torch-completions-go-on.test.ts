/** A process on PyTorch dies in the middle of completions; another goes on with what was told of them. */
import type { Completion, Sampling } from "@treadle/contracts";
import { type BegunCompletion, type CompletionPiece, TorchEngine } from "@treadle/engines";
import { expect, onTestFinished, test } from "vitest";
import { lacksTorch } from "../../../test/support/torch.ts";
import { mix } from "../src/random.ts";

const reason = lacksTorch();
const model = { vocabSize: 64, layers: 2, width: 32, heads: 2, contextLength: 256, seed: 5, slots: 4 };
const torch = { kind: "torch", device: "cpu", streamMs: 0 } as const;
const sampling: Sampling = { maxTokens: 200, temperature: 1, stopTokens: [3], seed: 9 };
const seed = Number(process.env["TREADLE_SEED"]);

/** What is known of each completion, and how much of it the engine chose. */
class Told {
  readonly begun: (BegunCompletion | undefined)[] = [];
  readonly ended: (Completion | undefined)[] = [];
  numChosen = 0;

  piece({ index, attempt, from, tokens, logprobs }: CompletionPiece): void {
    const { tokens: had, logprobs: hadLogprobs } = this.begun[index] ?? { tokens: [], logprobs: [] };
    expect({ attempt, from }).toEqual({ attempt: 0, from: had.length });
    this.numChosen += tokens.length;
    this.begun[index] = {
      tokens: Int32Array.of(...had, ...tokens),
      logprobs: Float32Array.of(...hadLogprobs, ...logprobs),
      ...{ numAppended: 0, turnFrom: 0 },
    };
  }

  end(index: number, completion: Completion): void {
    expect(this.ended[index]).toBeUndefined();
    this.numChosen += completion.tokens.length - (this.begun[index]?.tokens.length ?? 0);
    this.ended[index] = completion;
  }
}

/** Completions of an engine until it dies, once so many tokens were told; those that have not ended go on where they were. */
async function generate(engine: TorchEngine, prompts: readonly Int32Array[], told: Told, killAfter: number) {
  const left = prompts.map((_, index) => index).filter((index) => !told.ended[index]);
  const most = told.numChosen + killAfter;
  await engine.generate([], sampling, {
    join: (add) => {
      for (const index of left) add({ prompt: prompts[index]!, key: 100 + index, begun: told.begun[index] });
    },
    onProgress: (pieces) => {
      for (const piece of pieces) told.piece({ ...piece, index: left[piece.index]! });
      if (told.numChosen >= most) process.kill(engine.pid!, "SIGKILL");
    },
    onCompletion: (index, completion) => told.end(left[index]!, completion),
  });
}

test.skipIf(reason)(
  reason ??
    `TG4, TG5: no token that was told is chosen again, and completions are as if nothing had died (seed ${seed})`,
  async () => {
    const prompts = Array.from({ length: 7 }, (_, at) =>
      Int32Array.from({ length: 1 + (at % 5) }, (_, i) => 4 + ((7 * at + i) % 60)),
    );
    const open = async () => {
      const engine = await TorchEngine.create(model, torch);
      onTestFinished(() => engine.close());
      return engine;
    };
    const whole = await (await open()).generate(prompts, sampling, { keys: prompts.map((_, index) => 100 + index) });
    const numTokens = whole.reduce((sum, { tokens }) => sum + tokens.length, 0);
    expect(numTokens).toBeGreaterThan(100);
    const told = new Told();
    const numKills = 2;
    for (let kill = 0; kill < numKills; kill++) {
      const killAfter = 1 + (mix(seed, kill) % Math.floor(numTokens / (numKills + 2)));
      await expect(
        generate(await open(), prompts, told, killAfter),
        `kill ${kill} after ${killAfter}`,
      ).rejects.toMatchObject({
        code: "service.failed",
        message: expect.stringContaining("SIGKILL"),
      });
    }
    expect(told.begun.some((begun) => begun !== undefined)).toBe(true);
    await generate(await open(), prompts, told, Number.POSITIVE_INFINITY);
    expect(told.ended.map((completion) => [...completion!.tokens])).toEqual(whole.map(({ tokens }) => [...tokens]));
    for (const [index, { logprobs }] of told.ended.entries() as IterableIterator<[number, Completion]>)
      for (const [at, logprob] of logprobs.entries()) expect(logprob).toBeCloseTo(whole[index]!.logprobs[at]!, 4);
    expect(told.numChosen, "each token was chosen and told once").toBe(numTokens);
  },
  300_000,
);
