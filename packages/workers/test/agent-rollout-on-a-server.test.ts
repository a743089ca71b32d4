/** The tool agent whose model a server runs: what the tool answers goes to the server with the tokens before it, and is masked. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Prompt } from "@treadle/contracts";
import { SglangDouble, TinyModel, tinyWeights, VllmDouble, writeTinyModel } from "@treadle/engines/testing";
import { checkEpisode, createCharacterTokenizer } from "@treadle/learning";
import { afterAll, beforeAll, expect, test } from "vitest";
import { AgentRolloutConfig, AgentRolloutWorker, ToolConfig, ToolWorker } from "../src/index.ts";
import { contextOf } from "./support/context.ts";
import { streamOf } from "./support/stream.ts";
import { toolGroup } from "./support/tool-group.ts";

const alphabet = "12+<>|!";
const tokenizer = createCharacterTokenizer(alphabet);
const sizes = { vocabSize: tokenizer.vocabularySize, contextLength: 32 };
const model = { ...sizes, layers: 1, width: 8, heads: 1 };
const call = { open: "<", close: ">", end: "|", failure: "!", maxCalls: 2, maxAnswerTokens: 4 };

let folder: string;
let tool: ToolWorker;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-agent-"));
  await writeTinyModel(join(folder, "tiny"), sizes, tinyWeights(sizes, 1));
  const settings = { program: 'echo "$(($1))"', actions: { drivers: ["process"] } };
  tool = new ToolWorker(contextOf(ToolConfig.parse(settings), "tool"));
  await tool.setup();
});
afterAll(async () => {
  await tool.teardown();
  await rm(folder, { recursive: true, force: true });
});

const prompt = (text: string): Prompt => ({ id: text, tokens: tokenizer.encode(text), answer: "2" });

test.each([
  ["sglang", SglangDouble],
  ["vllm", VllmDouble],
] as const)(
  "W1: on %s, an episode is what the server chose, and behind each call what the tool answered",
  async (kind, Double) => {
    const path = join(folder, "tiny");
    const double = await new Double({ model: path }).start();
    const engine = { kind, url: [double.url], model: path, weightsFolder: join(folder, "weights") };
    const reward = { name: "arithmetic" };
    const config = AgentRolloutConfig.parse({ model, engine, alphabet, groupSize: 64, maxTokens: 14, reward, call });
    const worker = new AgentRolloutWorker(contextOf(config, "rollout"));
    await worker.setup();
    await worker.load();
    const { source, sink, groups } = streamOf([[prompt("1+2"), prompt("2+2")]]);
    const { toolCalls } = await worker.generate(
      source,
      sink,
      toolGroup(() => tool),
    );
    const episodes = groups.flatMap((each) => each.episodes);
    expect(episodes).toHaveLength(128);
    const exact = new TinyModel(tinyWeights(sizes, 1).parameters);
    let numAnswers = 0;
    for (const episode of episodes) {
      checkEpisode(episode, model.vocabSize);
      expect(episode.engine).toBe(kind);
      const { tokens, mask, logprobs, promptLength } = episode;
      const scored = exact.score([...tokens], 1);
      for (let at = promptLength; at < tokens.length; at++) {
        if (mask[at] === 1) expect(logprobs[at]).toBeCloseTo(scored[at]!, 4);
        else if (mask[at - 1] === 1 || at === promptLength) {
          expect(tokenizer.decode(tokens.slice(at - 1, at))).toBe(">");
          numAnswers++;
        }
      }
    }
    expect(numAnswers).toBeGreaterThan(3);
    expect(Math.round(toolCalls * episodes.length)).toBe(numAnswers);
    await worker.offload();
    await double.kill();
  },
  240_000,
);
