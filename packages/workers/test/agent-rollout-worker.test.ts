import type { EpisodeGroup, Prompt } from "@treadle/contracts";
import { TransformerEngine } from "@treadle/engines";
import { checkEpisode, createCharacterTokenizer } from "@treadle/learning";
import type { WorkerGroup } from "@treadle/runtime";
import { afterAll, beforeAll, expect, test } from "vitest";
import { AgentRolloutConfig, AgentRolloutWorker } from "../src/rollout/agent-rollout-worker.ts";
import { ToolConfig } from "../src/tool/tool-config.ts";
import { ToolWorker } from "../src/tool/tool-worker.ts";
import { contextOf } from "./support/context.ts";
import { streamOf } from "./support/stream.ts";

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

/** The worker as a group of one rank. */
const group = {
  size: 1,
  onRanks: () => group,
  ...Object.fromEntries(
    (["open", "submit", "collect", "report", "close"] as const).map((method) => [
      method,
      (...args: never[]) => {
        const value = (tool[method] as (...args: never[]) => Promise<unknown>)(...args);
        // biome-ignore lint/suspicious/noThenProperty: handles of calls are awaitable
        return { first: () => value, then: value.then.bind(value) };
      },
    ]),
  ),
} as unknown as WorkerGroup<ToolWorker>;

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

test("call characters without tokens are refused", () => {
  const wrong = { ...config, call: { ...call, open: "[" } };
  expect(() => new AgentRolloutWorker(contextOf(wrong, "rollout"))).toThrow(/'\[' is not one token of the alphabet/);
});
