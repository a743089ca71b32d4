import { readFile } from "node:fs/promises";
import type { Episode, EpisodeGroup, Prompt } from "@treadle/contracts";
import { TransformerEngine } from "@treadle/engines";
import { checkEpisode, createCharacterTokenizer, type Reward, type ScoredTurn } from "@treadle/learning";
import type { Sink } from "@treadle/runtime";
import ts from "typescript";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { AgentRolloutConfig, AgentRolloutWorker } from "../src/rollout/agent-rollout-worker.ts";
import { ToolConfig } from "../src/tool/tool-config.ts";
import { ToolWorker } from "../src/tool/tool-worker.ts";
import { contextOf } from "./support/context.ts";
import { streamOf } from "./support/stream.ts";
import { toolGroup } from "./support/tool-group.ts";

// So few characters that a policy that knows nothing calls its tool often.
const alphabet = "12+<>|!";
const tokenizer = createCharacterTokenizer(alphabet);
const model = { vocabSize: 9, layers: 1, width: 16, heads: 2, contextLength: 32, seed: 4, slots: 32 };
const call = { open: "<", close: ">", end: "|", failure: "!", maxCalls: 2, maxAnswerTokens: 4 };
const config = AgentRolloutConfig.parse({
  model,
  alphabet,
  groupSize: 64,
  maxTokens: 14,
  reward: { name: "arithmetic" },
  call,
});

let tool: ToolWorker;
let rollout: AgentRolloutWorker;
beforeAll(async () => {
  const program = 'echo "$(($1))"';
  tool = new ToolWorker(contextOf(ToolConfig.parse({ program, actions: { drivers: ["process"] } }), "tool"));
  await tool.setup();
  rollout = new AgentRolloutWorker(contextOf(config, "rollout"));
  await rollout.setup();
});
afterAll(() => tool.teardown());

const group = toolGroup(() => tool);

const prompt = (text: string, answer: string): Prompt => ({ id: text, tokens: tokenizer.encode(text), answer });

async function generate(prompts: Prompt[]): Promise<{ episodes: EpisodeGroup["episodes"]; metrics: object }> {
  const { source, sink, groups } = streamOf(prompts.map((one) => [one]));
  const metrics = await rollout.generate(source, sink, group);
  return { episodes: groups.flatMap(({ episodes }) => episodes), metrics };
}

test("W1: an episode holds what the tool answered after each call, masked, and everything else as the policy chose it", async () => {
  const { episodes, metrics } = await generate([prompt("1+2", "3"), prompt("2+2", "4")]);
  expect(episodes).toHaveLength(128);
  const scorer = await TransformerEngine.create(model);
  let numCalls = 0;
  for (const episode of episodes) {
    checkEpisode(episode, model.vocabSize);
    const { tokens, mask, logprobs, policyVersions, promptLength } = episode;
    const scored = await scorer.logprobs({ rows: 1, columns: tokens.length, tokens });
    const text = tokenizer.decode(tokens.filter((token) => token > 1));
    for (let i = promptLength; i < tokens.length; ) {
      if (mask[i] === 1) {
        expect(logprobs[i]).toBeCloseTo(scored[i]!, 4);
        expect(policyVersions[i]).toBe(0);
        expect(episode.engine).toBe("embedded");
        i++;
        continue;
      }
      // A stretch of tool tokens: it follows a call, says what a shell answers, and ends as configured.
      let to = i;
      while (to < tokens.length && mask[to] === 0) {
        expect(policyVersions[to]).toBe(-1);
        to++;
      }
      const before = tokenizer.decode(tokens.slice(0, i).filter((token) => token > 1));
      const asked = /<([^<]*)>$/.exec(before)?.[1];
      expect(asked, `${text} at ${i}`).toBeDefined();
      const sum = /^[12+]*[12]$/.test(asked!) ? String(asked!.split("+").reduce((a, b) => a + Number(b), 0)) : "!";
      const readable = [...sum].filter((one) => "12+!".includes(one)).slice(0, 3);
      const answer = tokenizer.decode(tokens.slice(i, to));
      // A shell reads `!` as an operator of its own, which this test does not.
      if (asked!.includes("!")) expect(answer, `${asked}`).toMatch(/^[12!]{0,3}\|$/);
      else expect(answer, `${asked}`).toBe(`${readable.join("")}|`);
      numCalls++;
      i = to;
    }
  }
  expect(numCalls).toBeGreaterThan(3);
  expect(metrics).toMatchObject({ toolCalls: numCalls / 128 });
  await scorer.close();
}, 240_000);

test.each(["pps", "time", "las"] as const)(
  "ordered by '%s', with far fewer places than episodes, they are the episodes that 'fcfs' makes",
  async (scheduler) => {
    const given = { ...config, groupSize: 16, model: { ...config.model, slots: 4 } };
    const asked = [prompt("1+2", "3"), prompt("2+2", "4"), prompt("1", "")];
    const play = async (order: typeof scheduler | "fcfs") => {
      const worker = new AgentRolloutWorker(contextOf({ ...given, scheduler: order }, "rollout"));
      await worker.setup();
      const groups: EpisodeGroup[][] = [];
      // The second time it has learned, and so orders by something.
      for (let step = 0; step < 2; step++) {
        const stream = streamOf([asked]);
        await worker.generate(stream.source, stream.sink, group);
        groups.push(stream.groups.sort((a, b) => (a.promptId < b.promptId ? -1 : 1)));
      }
      return groups;
    };
    expect(await play(scheduler)).toEqual(await play("fcfs"));
  },
  240_000,
);

test("the reward judges what follows the last answer, and an episode without a stop gets none", async () => {
  const { episodes } = await generate([prompt("1+1", "2"), prompt("2", "")]);
  for (const { tokens, mask, reward, promptLength } of episodes) {
    const from = Math.max(promptLength, mask.lastIndexOf(0) + 1);
    const isFinished = tokens.at(-1) === tokenizer.stopToken;
    const expected = promptLength === 3 ? "2" : "";
    expect(reward).toBe(isFinished && tokenizer.decode(tokens.slice(from)) === expected ? 1 : 0);
  }
  expect(episodes.some(({ reward }) => reward === 1)).toBe(true);
  expect(episodes.some(({ reward }) => reward === 0)).toBe(true);
}, 240_000);

test("TC1: a reward may judge each turn, told what its tool answered, and the prompt's metadata goes with the group", async () => {
  const seen: { readonly metadata: unknown; readonly text: string; readonly turns: readonly ScoredTurn[] }[] = [];
  class ByTurns extends AgentRolloutWorker {
    protected override rewards() {
      const score: Reward["score"] = ({ metadata }, { text, turns = [] }) => {
        seen.push({ metadata, text, turns });
        return { turns: turns.map((_, turn) => turn + 1) };
      };
      return super.rewards().with({ name: "by-turns", create: () => ({ name: "by-turns", score }) });
    }
  }
  const worker = new ByTurns(contextOf({ ...config, reward: { name: "by-turns" } }, "rollout"));
  await worker.setup();
  const metadata = { source: { of: ["sums", 1, null] } };
  const { source, sink, groups } = streamOf([[{ ...prompt("1+2", "3"), metadata }]]);
  await worker.generate(source, sink, group);
  expect(groups[0]?.metadata).toEqual(metadata);
  let numOfTurns = 0;
  for (const { tokens, mask, reward, turnRewards, promptLength } of groups[0]?.episodes ?? []) {
    if (tokens.at(-1) !== tokenizer.stopToken) {
      expect([reward, turnRewards]).toEqual([0, undefined]);
      continue;
    }
    // A turn ends where the policy's tokens do.
    const ends = [...mask.keys()].filter((at) => mask[at] === 1 && mask[at + 1] !== 1).map((at) => at + 1);
    expect(turnRewards).toEqual(ends.map((end, turn) => ({ end, reward: turn + 1 })));
    expect(reward).toBe((ends.length * (ends.length + 1)) / 2);
    const written = tokenizer.transcribe(tokens.subarray(promptLength));
    const told = ({ text, answer }: ScoredTurn) => (answer === undefined ? text : `${text}${answer}${call.end}`);
    const as = seen.find(({ turns }) => turns.map(told).join("") === written);
    expect(as).toMatchObject({ metadata, text: as?.turns.at(-1)?.text });
    expect(as?.turns.map(({ answer }) => answer === undefined)).toEqual(
      ends.map((_, turn) => turn === ends.length - 1),
    );
    if (ends.length > 1) numOfTurns++;
  }
  expect(numOfTurns).toBeGreaterThan(0);
}, 240_000);

test("TC1: the guide's reward of turns takes off for calls that failed, and for no others", async () => {
  const guide = await readFile(new URL("../../../docs/guides/tools-and-rewards.md", import.meta.url), "utf8");
  const shown = /```ts\n([^`]*export const careful[^`]*)```/.exec(guide)?.[1] as string;
  const { outputText } = ts.transpileModule(shown, { compilerOptions: { module: ts.ModuleKind.ESNext } });
  const { careful } = (await import(`data:text/javascript,${encodeURIComponent(outputText)}`)) as { careful: Reward };
  class Careful extends AgentRolloutWorker {
    protected override rewards() {
      return super.rewards().with({ name: "careful", create: () => careful });
    }
  }
  const worker = new Careful(contextOf({ ...config, groupSize: 512, reward: { name: "careful" } }, "rollout"));
  await worker.setup();
  const { source, sink, groups } = streamOf([[{ ...prompt("1+2", "3"), metadata: { failureCost: 0.25 } }]]);
  await worker.generate(source, sink, group);
  const earned = new Map([
    [true, new Set<number>()],
    [false, new Set<number>()],
  ]);
  for (const { tokens, mask, turnRewards = [] } of groups[0]?.episodes ?? []) {
    for (const { end, reward } of turnRewards.slice(0, -1)) {
      const rest = mask.indexOf(1, end);
      const answer = tokenizer.transcribe(tokens.subarray(end, rest < 0 ? undefined : rest));
      earned.get(answer === `${call.failure}${call.end}`)?.add(reward);
    }
  }
  expect([...(earned.get(true) ?? [])]).toEqual([-0.25]);
  expect([...(earned.get(false) ?? [])]).toEqual([0]);
}, 240_000);

test("TC1: an episode that is cut behind a tool's answer is not finished, though the answer ends with the stop token", async () => {
  const judged: Episode[] = [];
  class CutBehindAnswer extends AgentRolloutWorker {
    protected override rewards() {
      const score: Reward["score"] = (_, { turns = [] }) => ({ turns: turns.map(() => 1) });
      return super.rewards().with({ name: "by-turns", create: () => ({ name: "by-turns", score }) });
    }
    protected override async play(...[, , { judge }]: Parameters<AgentRolloutWorker["play"]>) {
      const tokens = Int32Array.of(5, 6, 2, tokenizer.stopToken);
      const written = { tokens, logprobs: new Float32Array(4), temperature: 1, policyVersion: 0 };
      judged.push(await judge(prompt("1+2", "3"), { ...written, finishReason: "length" }, [[2, 4]]));
      // The same tokens, the last of which is the policy's.
      judged.push(await judge(prompt("1+2", "3"), { ...written, finishReason: "stop" }, [[1, 2]]));
      return {} as Awaited<ReturnType<AgentRolloutWorker["play"]>>;
    }
  }
  const worker = new CutBehindAnswer(contextOf({ ...config, reward: { name: "by-turns" } }, "rollout"));
  await worker.setup();
  const { source, sink } = streamOf([]);
  await worker.generate(source, sink, group);
  for (const episode of judged) checkEpisode(episode, model.vocabSize);
  expect(judged.map(({ reward, turnRewards }) => [reward, turnRewards?.length])).toEqual([
    [0, undefined],
    [2, 2],
  ]);
});

describe("an episode that is carried on with its tool", () => {
  /** Answers with how many calls its sandbox has had. */
  const program = 'n=$(cat n 2>/dev/null || echo 0); n=$((n + 1)); echo "$n" > n; echo "$n"';
  let counting: ToolWorker;
  beforeEach(async () => {
    const actions = { drivers: ["process"], sandboxes: "trajectory", scheduling: "trajectory", cores: 1 };
    counting = new ToolWorker(contextOf(ToolConfig.parse({ program, actions }), "tool"));
    await counting.setup();
  });
  afterEach(() => counting.teardown());

  const asked = ["1+2", "2+2", "1", "2", "1+1", "21"].map((text) => prompt(text, "3"));
  const few = { ...config, groupSize: 16, maxTokens: 20 };

  async function play(given: readonly Prompt[], tail: "wait" | "carry", component = "rollout") {
    const own = { ...few, ...(tail === "carry" && { tail, oversample: { prompts: 4 } }) };
    const worker = new AgentRolloutWorker(contextOf(own, component));
    await worker.setup();
    const late: Prompt[] = [];
    const put = async (...items: Prompt[]) => void late.push(...items);
    const sink = tail === "carry" ? ({ name: "late", put } as unknown as Sink<Prompt>) : undefined;
    const stream = streamOf([given]);
    const { toolCalls } = await worker.generate(
      stream.source,
      stream.sink,
      toolGroup(() => counting),
      sink,
    );
    const numEpisodes = stream.groups.flatMap(({ episodes }) => episodes).length;
    return { groups: stream.groups, late, numCalls: Math.round(toolCalls * numEpisodes) };
  }

  /** Each answer ends with one token. */
  const numAnswers = ({ tokens, mask, promptLength }: Episode): number => {
    const read = tokens.filter((_, at) => at >= promptLength && mask[at] === 0);
    return tokenizer.transcribe(read).split(call.end).length - 1;
  };

  /** Of each sample of the prompts, what a step that waits makes of it. */
  async function whole(): Promise<Map<string, readonly Episode[]>> {
    const worker = new AgentRolloutWorker(contextOf(few, "waiting"));
    await worker.setup();
    const stream = streamOf([asked]);
    await worker.generate(
      stream.source,
      stream.sink,
      toolGroup(() => counting),
    );
    return new Map(stream.groups.map(({ promptId, episodes }) => [promptId, episodes]));
  }

  test("TW4, TW5, W1: is, bit for bit, that of a step that waits, in the sandbox that it had, and so again after a death", async () => {
    const all = await whole();
    const { groups, late } = await play(asked, "carry");
    expect(late.length).toBe(4);
    const begun = late.flatMap(({ begun = [] }) => begun);
    expect(begun.some(({ tool, finishReason }) => tool?.trajectory !== undefined && !finishReason)).toBe(true);
    // The second time as to a rank whose predecessor has died: what that had called meanwhile is in no sandbox any more.
    for (const component of ["rollout", "another"]) {
      const second = await play(late, "carry", component);
      expect(second.late).toEqual([]);
      const numAnswered = second.groups
        .flatMap(({ episodes }) => episodes)
        .reduce((sum, one) => sum + numAnswers(one), 0);
      const numBefore = begun.reduce((sum, { tool }) => sum + (tool?.answers.length ?? 0), 0);
      const numMade = second.numCalls;
      expect(numBefore).toBeGreaterThan(0);
      if (component === "rollout") expect(numMade).toBe(numAnswered - numBefore);
      else expect(numMade).toBeGreaterThan(numAnswered - numBefore);
      const made = [...groups, ...second.groups];
      expect(made.map(({ promptId }) => promptId).toSorted()).toEqual(asked.map(({ id }) => id).toSorted());
      for (const { promptId, episodes } of made) {
        expect(episodes).toHaveLength(16);
        for (const episode of episodes) expect(all.get(promptId)).toContainEqual(episode);
      }
    }
  }, 240_000);
});

test("call characters without tokens are refused", () => {
  const wrong = { ...config, call: { ...call, open: "[" } };
  expect(() => new AgentRolloutWorker(contextOf(wrong, "rollout"))).toThrow(/'\[' is not one token of the alphabet/);
});
