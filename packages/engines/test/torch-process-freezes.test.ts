/** A process that is stopped is found while somebody waits for it, whatever it was asked; one that is slow is left alone. */
import type { Sampling } from "@treadle/contracts";
import { TorchEngine } from "@treadle/engines";
import { afterEach, describe, expect, test } from "vitest";
import { childrenOf, isAlive, until } from "../../../test/support/cluster.ts";
import { lacksTorch } from "../../../test/support/torch.ts";
import { smallConfig } from "./small-transformer.ts";

const reason = lacksTorch();
/** Two answers of half of it are late before anybody is ended, on a machine that tests share. */
const healthTimeoutMs = 6_000;
const sampling: Sampling = { maxTokens: 3, temperature: 1, stopTokens: [], seed: 9 };
const prompts = [Int32Array.of(1, 2), Int32Array.of(3)];

describe.skipIf(reason)(reason ?? "an engine whose process is stopped", () => {
  let engine: TorchEngine | undefined;
  afterEach(async () => {
    await engine?.close();
    engine = undefined;
  });
  const create = async (processes = 1) => {
    engine = await TorchEngine.create(smallConfig, { kind: "torch", healthTimeoutMs }, { processes });
    return engine;
  };
  const frozen = { code: "service.failed", message: expect.stringMatching(/stopped or frozen/) };

  test.each(["generate", "logprobs", "pause"] as const)(
    "TO3, HW1: it is ended while '%s' waits, and that is the cause which all are told",
    async (method) => {
      const stopped = await create();
      process.kill(stopped.pid!, "SIGSTOP");
      const calls = {
        generate: () => stopped.generate(prompts, sampling),
        logprobs: () => stopped.logprobs({ rows: 1, columns: 2, tokens: Int32Array.of(1, 2) }),
        pause: () => stopped.pause(),
      };
      await expect(calls[method]()).rejects.toMatchObject(frozen);
      expect(await stopped.ended).toMatchObject(frozen);
      expect(isAlive(stopped.pid!)).toBe(false);
    },
    300_000,
  );

  test("HW1: one that answers is not ended, however long its completions take", async () => {
    const slow = await create();
    await slow.pause();
    const running = slow.generate(prompts, sampling);
    await new Promise((resolve) => setTimeout(resolve, 2.5 * healthTimeoutMs));
    slow.resume();
    expect(await running).toHaveLength(prompts.length);
  }, 300_000);

  test("PF3: of several processes the one that is stopped is named, and all are ended", async () => {
    const sharded = await create(2);
    const [second] = childrenOf(sharded.pid!, "treadle_torch");
    process.kill(second!, "SIGSTOP");
    const named = { code: "service.failed", message: expect.stringMatching(/process '1' .*stopped or frozen/) };
    await expect(sharded.logprobs({ rows: 1, columns: 2, tokens: Int32Array.of(1, 2) })).rejects.toMatchObject(named);
    expect(await sharded.ended).toMatchObject(named);
    await until(() => ![sharded.pid!, second!].some(isAlive), "both processes to end");
  }, 600_000);
});
