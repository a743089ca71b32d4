import type { Episode, FinishReason, Prompt } from "@treadle/contracts";
import { describe, expect, test } from "vitest";
import { RolloutConfig } from "../src/rollout/generation-worker.ts";
import { RolloutWorker } from "../src/rollout/rollout-worker.ts";
import { StepTail } from "../src/rollout/step-tail.ts";
import { completionOf, HandEngine, turns } from "./support/hand-engine.ts";
import { streamOf } from "./support/stream.ts";
import { idsOf, lateSink, prompts, rankOf, usual } from "./support/tail-rank.ts";

describe("a group whose rewards are all alike", () => {
  /** Rewards in the order in which episodes end. */
  const rewarded = (worker: RolloutWorker, rewards: readonly number[]) => {
    let at = 0;
    (worker as unknown as { reward: { score: () => number } }).reward.score = () => rewards[at++] ?? 0;
  };
  const spare = (at: number): Prompt => ({ ...(prompts[at] as Prompt), spare: { round: 1, index: at } });
  const [first, second] = prompts as [Prompt, Prompt];

  test("gives its place to another prompt, as often as is allowed, which is put as it is then", async () => {
    const engine = new HandEngine();
    const worker = await rankOf({ resample: 2 }, engine);
    rewarded(worker, [1, 1, 0, 0, 0.5, 0.5]);
    const { late, sink } = lateSink();
    const stream = streamOf([[first, spare(1), spare(2), spare(3)]]);
    const generating = worker.generate(stream.source, stream.sink, sink);
    for (let draw = 0; draw < 3; draw++) {
      await turns();
      expect(engine.joined.slice(2 * draw).map(({ prompt }) => prompt)).toEqual(
        [0, 1].map(() => prompts[draw]?.tokens),
      );
      // One that is replaced is not done before what takes its place is.
      expect([stream.groups, late]).toEqual([[], []]);
      engine.end(2 * draw);
      engine.end(2 * draw + 1);
    }
    expect(await generating).toMatchObject({ groupsReplaced: 2, groupsAlike: 1 });
    expect(stream.groups).toMatchObject([{ promptId: prompts[2]?.id, episodes: [{ reward: 0.5 }, { reward: 0.5 }] }]);
    const nothing = new Int32Array();
    expect(late).toEqual([
      { id: second.id, tokens: nothing, cut: "alike" },
      { id: first.id, tokens: nothing, cut: "alike" },
      spare(3),
    ]);
    expect(stream.committed.size).toBe(4);
  });

  test("is put as soon as its rewards differ, or where no prompt is spare; by default it is drawn once", async () => {
    for (const [given, spares, expected] of [
      [{ resample: 5 }, [spare(1)], [0, 1]],
      [{ resample: 5 }, [], [1, 1]],
      [{}, [], [1, 1]],
    ] as const) {
      const engine = new HandEngine();
      const worker = await rankOf(given, engine);
      rewarded(worker, [1, 1, 0, 1]);
      const { sink } = lateSink();
      const stream = streamOf([[first, ...spares]]);
      const generating = worker.generate(stream.source, stream.sink, ...("resample" in given ? [sink] : []));
      for (let index = 0; index < 4; index++) {
        await turns();
        if (index < engine.joined.length) engine.end(index);
      }
      await generating;
      expect(stream.groups.map(({ episodes }) => episodes.map(({ reward }) => reward))).toEqual([expected]);
    }
  });

  test("TL5: is cut, and no other takes its place, where enough others are whole by then", async () => {
    const { late, sink } = lateSink();
    const { source, sink: groupSink, groups } = streamOf([[...prompts.slice(0, 3), spare(3)]]);
    const begun: number[] = [];
    const config = { tail: "carry", groupSize: 2, oversample: { prompts: 3 }, resample: 1 } as const;
    const ports = { groups: groupSink, late: sink, opened: () => {}, tool: undefined };
    const tail = new StepTail(config, { ...ports, begin: (number) => begun.push(number) });
    for await (const batch of source.itemBatches()) for (const item of batch) tail.take(item);
    let judge!: () => void;
    const judging = new Promise<void>((resolve) => {
      judge = resolve;
    });
    const end = (number: number, sample: number, reward: number, finishReason: FinishReason = "stop") =>
      tail.ended(number, sample, { completion: completionOf(2, finishReason), answers: [] }, async () => {
        if (number === 0) await judging;
        return { reward, finishReason } as Episode;
      });
    for (const sample of [0, 1]) {
      tail.began(2, sample, () => end(2, sample, 0, "abort"));
      end(0, sample, 1);
      end(1, sample, sample);
    }
    tail.seal();
    await turns();
    judge();
    await turns();
    await tail.leaveSpares();
    expect([begun, idsOf(groups)]).toEqual([[], [second.id]]);
    expect(late).toMatchObject([{ id: prompts[2]?.id, isLate: true }, { id: first.id, cut: "alike" }, spare(3)]);
    expect(tail.metrics).toMatchObject({ promptsDeferred: 1, groupsReplaced: 1, groupsAlike: 0 });
  });

  test("is replaced where ranks share episodes, too, and bounds are checked", async () => {
    for (const resample of [-1, 0.5, 17]) expect(() => RolloutConfig.parse({ ...usual, resample })).toThrow();
    const config = RolloutConfig.parse({ ...usual, resample: 1, placement: "least-load" });
    expect(() => RolloutWorker.checkConfig(config)).not.toThrow();
  });
});
