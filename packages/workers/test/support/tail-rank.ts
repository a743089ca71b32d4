/** A rank that draws groups of sums, by an engine of its own or by hand, and what it gives up. */
import type { Prompt } from "@treadle/contracts";
import { createCharacterTokenizer } from "@treadle/learning";
import type { Sink } from "@treadle/runtime";
import { RolloutConfig } from "../../src/rollout/generation-worker.ts";
import { RolloutWorker } from "../../src/rollout/rollout-worker.ts";
import { contextOf } from "./context.ts";
import type { HandEngine } from "./hand-engine.ts";

const alphabet = "12+=";
const tokenizer = createCharacterTokenizer(alphabet);
export const model = { vocabSize: 6, layers: 1, width: 16, heads: 2, contextLength: 24, seed: 4, slots: 3 };
/** of a rank whose episodes are sums */
export const usual = {
  model,
  alphabet,
  groupSize: 2,
  maxTokens: 16,
  reward: { name: "arithmetic" },
  scheduler: "fcfs" as const,
};
export const prompts: Prompt[] = ["1+1=", "2+1=", "1+2=", "12+1=", "2=", "21+2="].map((text) => ({
  id: text,
  tokens: tokenizer.encode(text),
  answer: "2",
}));
export const idsOf = (items: readonly { readonly id?: string; readonly promptId?: string }[]) =>
  items.map(({ id, promptId }) => id ?? promptId);

export type Given = Partial<Parameters<typeof RolloutConfig.parse>[0] & object>;

export async function rankOf(given: Given, engine?: HandEngine) {
  class ByHand extends RolloutWorker {
    protected override async createEngine() {
      return engine ? engine.asEngine : super.createEngine();
    }
  }
  const worker = new ByHand(contextOf(RolloutConfig.parse({ ...usual, ...given }), "rollout"));
  await worker.setup();
  return worker;
}

export function lateSink() {
  const late: Prompt[] = [];
  const sink = { name: "late", put: async (...items: Prompt[]) => void late.push(...items) } as unknown as Sink<Prompt>;
  return { late, sink };
}
