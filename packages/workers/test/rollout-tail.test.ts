import type { EpisodeGroup, FinishReason, Prompt } from "@treadle/contracts";
import { describe, expect, test } from "vitest";
import type { ToolAnswer } from "../src/rollout/episode-host.ts";
import { type CutAtTool, EpisodeStream, type StreamedEpisode } from "../src/rollout/episode-stream.ts";
import { RolloutConfig, sampleKey } from "../src/rollout/generation-worker.ts";
import { mostStaleness } from "../src/rollout/order-config.ts";
import { RolloutWorker } from "../src/rollout/rollout-worker.ts";
import { unfinishedPrompts } from "../src/rollout/step-prompts.ts";
import { StepTail } from "../src/rollout/step-tail.ts";
import { sandboxGone } from "../src/tool/items.ts";
import { completionOf, HandEngine, turns } from "./support/hand-engine.ts";
import { streamOf } from "./support/stream.ts";
import { type Given, idsOf, lateSink, model, prompts, rankOf, usual } from "./support/tail-rank.ts";

describe("a step that cuts its tail", () => {
  test("takes the first samples of each prompt, and frees the places of the others for the next prompt", async () => {
    const engine = new HandEngine();
    const worker = await rankOf({ tail: "cut", oversample: { samples: 2 } }, engine);
    const stream = streamOf([prompts.slice(0, 1), prompts.slice(1, 2)]);
    const generating = worker.generate(stream.source, stream.sink);
    await turns();
    expect(engine.joined.map(({ key }) => key)).toEqual(
      [0, 1, 2, 3].map((sample) => sampleKey(prompts[0] as Prompt, sample)),
    );
    engine.end(3, 5);
    await turns();
    expect(engine.cut).toEqual([]);
    engine.end(1, 7);
    await turns();
    expect(engine.cut).toEqual([0, 2]);
    expect(engine.joined).toHaveLength(8);
    engine.end(4);
    engine.end(5);
    const metrics = await generating;
    expect(idsOf(stream.groups)).toEqual(["1+1=", "2+1="]);
    const lengths = stream.groups[0]?.episodes.map(({ tokens, promptLength }) => tokens.length - promptLength);
    expect(lengths).toEqual([7, 5]);
    expect(stream.committed.size).toBe(2);
    expect(metrics).toMatchObject({
      cutWithGroup: 4,
      cutWithStep: 0,
      promptsCut: 0,
      cutTokens: 8,
      trainedLength: 18 / 4,
      generatedLength: 26 / 8,
    });
  });

  test("gives up the prompts that are beyond what the step wants, once none comes any more, and says how many", async () => {
    const engine = new HandEngine();
    const worker = await rankOf({ tail: "cut", oversample: { samples: 1, prompts: 2 } }, engine);
    const { late, sink } = lateSink();
    const stream = streamOf([prompts.slice(0, 4)]);
    const generating = worker.generate(stream.source, stream.sink, sink);
    await turns();
    for (const index of [6, 7, 0, 2]) engine.end(index);
    await turns();
    expect(engine.cut).toEqual([]);
    engine.end(3);
    const metrics = await generating;
    expect(engine.cut).toEqual([1, 4, 5]);
    expect(idsOf(stream.groups)).toEqual(["12+1=", "2+1="]);
    expect(stream.committed.size).toBe(4);
    expect(metrics).toMatchObject({ cutWithGroup: 0, cutWithStep: 3, promptsCut: 2 });
    const cut = [prompts[0], prompts[2]].map((prompt) => ({ id: prompt?.id, tokens: new Int32Array(), cut: "late" }));
    expect(late).toEqual(cut);
    expect(late.map((prompt) => unfinishedPrompts.cut?.(prompt))).toEqual(["late", "late"]);
  });

  test("queues them with 'batch', marked, and a prompt that lost before is played to its end", async () => {
    const engine = new HandEngine();
    const worker = await rankOf({ tail: "batch", oversample: { samples: 2, prompts: 3 } }, engine);
    const { late, sink } = lateSink();
    const first = { ...(prompts[0] as Prompt), isLate: true };
    const stream = streamOf([[first, ...prompts.slice(1, 4)]]);
    const generating = worker.generate(stream.source, stream.sink, sink);
    await turns();
    expect(engine.joined).toHaveLength(2 + 3 * 4);
    engine.end(2);
    engine.end(4);
    await turns();
    expect(engine.cut).toEqual([3, 5, 6, 7, 8, 9, 10, 11, 12, 13]);
    expect(late).toEqual(prompts.slice(2, 4).map((prompt) => ({ ...prompt, isLate: true })));
    engine.end(1);
    await turns();
    expect(idsOf(stream.groups)).toEqual(["2+1="]);
    engine.end(0);
    expect(await generating).toMatchObject({ cutWithGroup: 2, cutWithStep: 8, promptsDeferred: 2 });
    expect(idsOf(stream.groups)).toEqual(["2+1=", "1+1="]);
    expect(stream.committed.size).toBe(4);
  });

  test.each(["cut", "batch"] as const)(
    "'%s' makes episodes that are bit for bit those of a step that waits",
    async (tail) => {
      const oversample = { samples: 2, prompts: 1.5 };
      const { late, sink } = lateSink();
      const cutting = await rankOf({ tail, oversample, scheduler: "pps" });
      const waiting = await rankOf({ groupSize: 4 });
      const [made, whole] = [streamOf([prompts]), streamOf([prompts])];
      const metrics = await cutting.generate(made.source, made.sink, sink);
      await waiting.generate(whole.source, whole.sink);
      const all = new Map(whole.groups.map((group) => [group.promptId, group.episodes]));
      expect(made.groups.length).toBeGreaterThanOrEqual(4);
      expect(made.committed.size).toBe(prompts.length);
      if (tail === "batch") expect(idsOf([...made.groups, ...late]).sort()).toEqual(idsOf(prompts).sort());
      for (const { promptId, episodes } of made.groups) {
        expect(episodes).toHaveLength(2);
        for (const episode of episodes) expect(all.get(promptId)).toContainEqual(episode);
      }
      expect(metrics.generatedLength).toBeGreaterThan(0);
      expect((metrics.cutWithGroup ?? 0) + (metrics.cutWithStep ?? 0)).toBeGreaterThan(0);
    },
  );

  test.each([
    [2, 2],
    [1, 3],
  ])(
    "asks, with %s prompts for one, for %s while it has room for two: a race is not held up by what has not begun",
    async (share, expected) => {
      const engine = new HandEngine();
      const worker = await rankOf({ tail: "batch", oversample: { samples: 1, prompts: share } }, engine);
      const { sink } = lateSink();
      const stream = streamOf([prompts.slice(0, 2), prompts.slice(2, 3)]);
      const own = stream.source.itemBatches.bind(stream.source);
      let numGiven = 0;
      stream.source.itemBatches = async function* (options) {
        for await (const batch of own(options)) {
          numGiven += batch.length;
          yield batch;
        }
      };
      const generating = worker.generate(stream.source, stream.sink, sink);
      await turns();
      expect(numGiven).toBe(expected);
      for (let index = 0; index < 6; index++) {
        if (!engine.cut.includes(index) && index < engine.joined.length) engine.end(index);
        await turns();
      }
      await generating;
      expect(stream.committed.size).toBe(3);
    },
  );

  test("changes no group where no more is begun than wanted", async () => {
    const worker = await rankOf({ tail: "cut", oversample: { samples: 1 } });
    const waiting = await rankOf({});
    const [made, whole] = [streamOf([prompts]), streamOf([prompts])];
    const metrics = await worker.generate(made.source, made.sink);
    await waiting.generate(whole.source, whole.sink);
    const sorted = (groups: readonly EpisodeGroup[]) => groups.toSorted((a, b) => (a.promptId < b.promptId ? -1 : 1));
    expect(sorted(made.groups)).toEqual(sorted(whole.groups));
    expect(metrics).toMatchObject({ cutWithGroup: 0, cutWithStep: 0, promptsCut: 0, cutTokens: 0 });
    expect(metrics.trainedLength).toBe(metrics.generatedLength);
  });

  test("fails with the judge of an episode, whose group nobody gets", async () => {
    const engine = new HandEngine();
    const worker = await rankOf({ tail: "cut", oversample: { samples: 2 } }, engine);
    (worker as unknown as { reward: { score: () => never } }).reward.score = () => {
      throw new Error("no reward");
    };
    const stream = streamOf([prompts.slice(0, 1)]);
    const generating = worker.generate(stream.source, stream.sink);
    await turns();
    engine.end(0);
    engine.end(1);
    await expect(generating).rejects.toThrow("no reward");
    expect(stream.groups).toEqual([]);
    expect(stream.committed.size).toBe(0);
  });
});

describe("an episode that is cut while its tool works", () => {
  test("says that it is over when the tool has answered, and the call ends after that", async () => {
    const engine = new HandEngine();
    const over: string[] = [];
    let answer!: () => void;
    const stream = new EpisodeStream({
      engine: engine.asEngine,
      sampling: { maxTokens: 99, temperature: 1, stopTokens: [0], seed: 1 },
      cuts: true,
      over: (name) => over.push(name),
      tool: () =>
        new Promise((resolve) => {
          answer = () => resolve({ answer: Int32Array.of(1), toolSeconds: 0, hasToolFailed: false });
        }),
    });
    const ended: string[] = [];
    const [prompt] = prompts as [Prompt];
    const cut = stream.run({ prompt, key: 1, name: "a", ended: ({ finishReason }) => ended.push(finishReason) });
    const extended = engine.turn(0, 3);
    await turns();
    cut();
    cut();
    expect(ended).toEqual(["abort"]);
    let isOver = false;
    const finished = stream.finish().then(() => {
      isOver = true;
    });
    await turns();
    expect([isOver, over]).toEqual([false, []]);
    answer();
    await finished;
    expect(over).toEqual(["a"]);
    expect(await extended).toBeUndefined();
    expect([stream.numUnfinished, ended]).toEqual([0, ["abort"]]);
  });
});

describe("an episode that is cut while its tool works, and is carried on", () => {
  type Said = ToolAnswer | typeof sandboxGone | Error;
  const failure = { toolSeconds: 3, hasToolFailed: true };
  const said = (...tokens: number[]): ToolAnswer => ({
    ...{ answer: Int32Array.of(...tokens), ...failure },
  });

  function cutAtTool(begun?: StreamedEpisode["begun"]) {
    const engine = new HandEngine();
    const over: string[] = [];
    const asked: string[] = [];
    let answer!: (said: Said) => void;
    const stream = new EpisodeStream({
      engine: engine.asEngine,
      sampling: { maxTokens: 99, temperature: 1, stopTokens: [0], seed: 1 },
      cuts: true,
      carries: { contextLength: 10 },
      over: (name) => over.push(name),
      tool: (name) => {
        asked.push(name);
        return new Promise((resolve, reject) => {
          answer = (what) => (what instanceof Error ? reject(what) : resolve(what));
        });
      },
    });
    const ended: unknown[] = [];
    const cut = stream.run({
      ...{ prompt: prompts[0] as Prompt, begun, key: 1, name: "a~1~0" },
      ended: ({ tokens, logprobs, finishReason }, answers, goesOn) =>
        ended.push({ tokens: [...tokens], numLogprobs: logprobs.length, finishReason, answers, goesOn }),
    });
    return { engine, stream, over, asked, ended, cut, answer: (what: Said) => answer(what) };
  }

  test.each<[string, ToolAnswer | typeof sandboxGone, object, readonly string[]]>([
    [
      "behind its answer",
      said(7, 8),
      {
        ...{ tokens: [0, 0, 7, 8], numLogprobs: 4, finishReason: "abort", answers: [[2, 4]] },
        goesOn: { trajectory: "a~1~0", outcomes: [failure] },
      },
      [],
    ],
    [
      "not where the answer has no room: it has ended, as in the engine",
      said(1, 2, 3, 4),
      { tokens: [0, 0], numLogprobs: 2, finishReason: "length", answers: [], goesOn: undefined },
      ["a~1~0"],
    ],
    [
      "from its prompt where its sandbox is gone",
      sandboxGone,
      { tokens: [], numLogprobs: 0, finishReason: "abort", answers: [], goesOn: undefined },
      ["a~1~0"],
    ],
  ])("goes on %s", async (_, what, expected, ends) => {
    const { engine, stream, over, ended, cut, answer } = cutAtTool();
    const turn = engine.turn(0, 2);
    await turns();
    cut();
    const finished = stream.finish();
    await turns();
    expect([ended, stream.numUnfinished]).toEqual([[], 1]);
    answer(what);
    await finished;
    expect(await turn).toBeUndefined();
    expect([ended, over, stream.numUnfinished]).toEqual([[expected], ends, 0]);
  });

  test("fails with its tool, of which the engine hears no more", async () => {
    const { engine, stream, ended, cut, answer } = cutAtTool();
    const turn = engine.turn(0, 2).catch((error: Error) => error.message);
    await turns();
    cut();
    answer(new Error("no cores"));
    await expect(stream.finish()).rejects.toThrow("no cores");
    expect([await turn, ended]).toEqual(["no cores", []]);
  });

  test("begins again under another name where its sandbox is gone by then, and is cut as itself", async () => {
    const tool = { trajectory: "a~1~0", answers: [[1, 2]] as const };
    const written = { tokens: Int32Array.of(5, 6, 5), logprobs: new Float32Array(3) };
    const begun = { ...written, policyVersion: 0, tool: { ...tool, answers: [...tool.answers] } };
    const { engine, over, asked, ended, cut, answer } = cutAtTool(begun);
    expect(engine.joined[0]).toMatchObject({ begun: { ...written, numAppended: 1, turnFrom: 2 } });
    const turn = engine.turn(0, 4);
    await turns();
    answer(sandboxGone);
    await turn;
    expect(engine.joined[1]).toEqual({ prompt: prompts[0]?.tokens, key: 1 });
    expect([asked, over, ended]).toEqual([["a~1~0"], ["a~1~0"], []]);
    void engine.turn(1, 2);
    await turns();
    expect(asked).toEqual(["a~1~0", "a~1~1"]);
    answer(said(7));
    await turns();
    cut();
    expect(engine.cut).toEqual([1]);
    expect(ended).toMatchObject([{ finishReason: "abort", goesOn: { trajectory: "a~1~1" } }]);
  });
});

describe("a tail is refused", () => {
  const refused = (given: Given, message: RegExp) =>
    expect(() => RolloutWorker.checkConfig(RolloutConfig.parse({ ...usual, ...given }))).toThrow(message);

  test("on engines that end no single completion, with what to do", () => {
    refused(
      { tail: "cut", engine: { kind: "sglang", url: "http://a", model: "b" } },
      /'tail' is 'cut', but an engine of kind 'sglang' cannot end one completion and leave the others; set it to 'wait', or use the embedded engine, the emulated one, PyTorch, or one of a module/,
    );
    const able = [
      { kind: "torch", path: "model" },
      { kind: "module", module: "engines/own.ts" },
    ] as const;
    for (const tail of ["batch", "carry"] as const)
      for (const engine of able)
        expect(() => RolloutWorker.checkConfig(RolloutConfig.parse({ ...usual, tail, engine }))).not.toThrow();
    const engine = {
      kind: "own",
      generate: (_: unknown, __: unknown, { join }: { join: (add: () => number) => void }) => join(() => 0),
    };
    return expect(
      (async () => {
        const worker = await rankOf({ tail: "cut" }, { asEngine: engine } as unknown as HandEngine);
        const stream = streamOf([prompts]);
        await worker.generate(stream.source, stream.sink);
      })(),
    ).rejects.toThrow(/the engine of kind 'own' cannot end one completion and leave the others/);
  });

  test("where ranks share episodes, where nothing would be cut, and where a number is none", () => {
    refused({ tail: "cut", placement: "least-load" }, /'tail' is 'cut' where ranks share episodes/);
    refused({ oversample: { samples: 2 } }, /'oversample' is set where 'tail' is 'wait'/);
    for (const samples of [0.5, 5, Number.NaN])
      expect(() => RolloutConfig.parse({ ...usual, tail: "cut", oversample: { samples } })).toThrow();
    expect(() => RolloutConfig.parse({ ...usual, tail: "shorten" })).toThrow(/wait.*cut.*batch/);
  });

  test("where prompts that lose would go nowhere, or nothing loses", async () => {
    const { sink } = lateSink();
    const stream = streamOf([prompts]);
    const batching = await rankOf({ tail: "batch" });
    await expect(batching.generate(stream.source, stream.sink)).rejects.toThrow(
      /no channel for prompts that its step leaves, as 'tail' 'batch' and 'resample' '0' do/,
    );
    const cutting = await rankOf({ tail: "cut" });
    await expect(cutting.generate(stream.source, stream.sink, sink)).rejects.toThrow(
      /'generate' was given 'late' for prompts that its step leaves, but with 'tail' 'cut' and 'resample' '0' it leaves none/,
    );
    expect(stream.committed.size).toBe(0);
  });
});

describe("a prompt that is carried on", () => {
  const carrying = { tail: "carry", oversample: { prompts: 2 } } as const;

  test("goes on where it was, each token of the version that chose it, and what had ended is judged then", async () => {
    const engine = new HandEngine();
    const worker = await rankOf(carrying, engine);
    const { late, sink } = lateSink();
    const first = streamOf([prompts.slice(0, 2)]);
    const generating = worker.generate(first.source, first.sink, sink);
    await turns();
    engine.end(2, 9);
    engine.end(0, 4);
    engine.end(1, 4);
    expect(await generating).toMatchObject({ promptsDeferred: 1, cutWithStep: 1, cutTokens: 0, trainedLength: 4 });
    expect(engine.cut).toEqual([3]);
    expect(late).toMatchObject([
      {
        id: "2+1=",
        isLate: true,
        begun: [{ tokens: { length: 9 }, finishReason: "stop" }, { tokens: { length: 2 } }],
      },
    ]);
    expect(late[0]?.begun?.[1]).not.toHaveProperty("finishReason");

    engine.policyVersion = 1;
    const second = streamOf([[...late, ...prompts.slice(2, 4)]]);
    const next = worker.generate(second.source, second.sink, sink);
    await turns();
    expect(engine.joined).toHaveLength(4 + 1 + 4);
    expect(engine.joined[4]).toMatchObject({ begun: { tokens: { length: 2 }, numAppended: 0 } });
    expect(engine.joined[4]?.key).toBe(engine.joined[3]?.key);
    engine.end(5, 3, "stop", 1);
    engine.end(6, 3, "stop", 1);
    engine.end(4, 5, "stop", 1);
    expect(await next).toMatchObject({ promptsDeferred: 1, carriedTokens: 11 });
    const made = second.groups.find(({ promptId }) => promptId === "2+1=");
    expect(made?.episodes.map(({ policyVersions }) => [...policyVersions])).toEqual([
      [-1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0],
      [-1, -1, -1, -1, 0, 0, 1, 1, 1],
    ]);
  });

  test("keeps what ended with the last token of the race, of which it is told later", async () => {
    const worker = await rankOf({ ...carrying, maxTokens: 1, groupSize: 2, model: { ...model, slots: 64 } });
    const { late, sink } = lateSink();
    const stream = streamOf([prompts]);
    const metrics = await worker.generate(stream.source, stream.sink, sink);
    expect(late.length).toBeGreaterThan(0);
    // All end with their first token.
    for (const { begun = [] } of late) expect(begun.map(({ tokens }) => tokens.length)).toEqual([1, 1]);
    for (const { begun = [] } of late) for (const { finishReason } of begun) expect(finishReason).toBeDefined();
    expect(metrics).toMatchObject({ cutTokens: 0, generatedLength: 1, trainedLength: 1 });
  });

  test("has nothing of an earlier version when its completion has begun again with other weights", async () => {
    const engine = new HandEngine();
    const worker = await rankOf(carrying, engine);
    const { sink } = lateSink();
    const begun = [0, 1].map(() => ({ tokens: new Int32Array(2), logprobs: new Float32Array(2), policyVersion: 0 }));
    engine.policyVersion = 1;
    const stream = streamOf([[{ ...(prompts[0] as Prompt), isLate: true, begun }]]);
    const generating = worker.generate(stream.source, stream.sink, sink);
    await turns();
    engine.end(0, 5, "stop", 1);
    engine.end(1, 5, "stop", 2);
    await generating;
    expect(stream.groups[0]?.episodes.map(({ policyVersions }) => [...policyVersions.slice(4)])).toEqual([
      [0, 0, 1, 1, 1],
      [2, 2, 2, 2, 2],
    ]);
  });

  test("has, under weights that are the same, bit for bit the episodes of a step that waits", async () => {
    const worker = await rankOf(carrying);
    const waiting = await rankOf({});
    const { late, sink } = lateSink();
    const [first, whole] = [streamOf([prompts]), streamOf([prompts])];
    await waiting.generate(whole.source, whole.sink);
    await worker.generate(first.source, first.sink, sink);
    expect(
      late.some(({ begun = [] }) => begun.some(({ tokens, finishReason }) => tokens.length > 0 && !finishReason)),
    ).toBe(true);
    // As it comes to a rank whose predecessor has died: again, and whole.
    for (let time = 0; time < 2; time++) {
      const second = streamOf([late]);
      const again = await rankOf(carrying);
      await again.generate(second.source, second.sink, sink);
      const made = [...first.groups, ...second.groups].toSorted((a, b) => (a.promptId < b.promptId ? -1 : 1));
      expect(made).toEqual(whole.groups.toSorted((a, b) => (a.promptId < b.promptId ? -1 : 1)));
    }
  });

  test("begins again where a resume knows nothing of what it had", () => {
    const begun = [{ tokens: new Int32Array(2), logprobs: new Float32Array(2), policyVersion: 0 }];
    const late = { ...(prompts[0] as Prompt), isLate: true };
    expect(unfinishedPrompts.kept?.({ ...late, begun })).toEqual(late);
  });

  test("W2: is as old as it may come to be, wherever its steps stand when it is given on", () => {
    for (const most of [0, 1, 2, 5]) {
      let oldest = 0;
      // Weights of a step are so many versions behind, and a step may begin before so many have ended.
      for (let behind = 0; behind <= most; behind++)
        for (let later = 1; later <= most + 1; later++) oldest = Math.max(oldest, behind + later);
      expect(mostStaleness({ tail: "carry" }, most)).toBe(oldest);
      expect([mostStaleness({ tail: "batch" }, most), mostStaleness({}, most)]).toEqual([most, most]);
    }
  });
});

test("what a tool has of an episode that is cut ends with a group that is whole, and is kept where the prompt goes on", async () => {
  const { late, sink } = lateSink();
  const said: string[] = [];
  const config = { tail: "carry", groupSize: 1, oversample: { samples: 2, prompts: 2 } } as const;
  const { source, sink: groups } = streamOf([prompts.slice(0, 2)]);
  const tail = new StepTail(config, {
    ...{ groups, late: sink, begin: () => {}, opened: () => {} },
    tool: {
      over: (name) => said.push(`${name} is over`),
      keep: (name) => said.push(`${name} is kept`),
    },
  });
  for await (const batch of source.itemBatches()) for (const item of batch) tail.take(item);
  const outcomes = [{ toolSeconds: 4, hasToolFailed: true }];
  const end = (number: number, sample: number, finishReason: FinishReason, goesOn?: CutAtTool) =>
    tail.ended(number, sample, { completion: completionOf(2, finishReason), answers: [[0, 1]], goesOn }, async () =>
      Promise.reject(new Error("nothing is judged in this test")),
    );
  for (const number of [0, 1])
    for (const sample of [0, 1])
      tail.began(number, sample, () => end(number, sample, "abort", { trajectory: `${number}/${sample}`, outcomes }));
  tail.seal();
  end(0, 1, "stop");
  await turns();
  expect(said.toSorted()).toEqual(["0/0 is over", "1/0 is kept", "1/1 is kept"]);
  expect(late).toMatchObject([
    {
      id: prompts[1]?.id,
      begun: [0, 1].map((sample) => ({ tool: { trajectory: `1/${sample}`, answers: [[0, 1]], outcomes } })),
    },
  ]);
});
