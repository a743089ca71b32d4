/** What a configuration says of a model's sizes, against what its authors publish and what transformers builds. */
import { execFileSync } from "node:child_process";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { lacksTorch, python } from "../../../../test/support/torch.ts";
import { activeParameters, modelShapeOf, touchedParameters } from "../../src/rehearsal/model-shape.ts";

const qwen3 = {
  model_type: "qwen3",
  hidden_size: 4096,
  num_hidden_layers: 36,
  num_attention_heads: 32,
  num_key_value_heads: 8,
  head_dim: 128,
  intermediate_size: 12288,
  vocab_size: 151936,
  tie_word_embeddings: false,
};
const llama = { ...qwen3, model_type: "llama", num_hidden_layers: 32, intermediate_size: 14336, vocab_size: 128256 };
const mixtral = {
  ...llama,
  model_type: "mixtral",
  vocab_size: 32000,
  num_local_experts: 8,
  num_experts_per_tok: 2,
};
const mixture = {
  ...qwen3,
  model_type: "qwen3_moe",
  hidden_size: 2048,
  num_hidden_layers: 48,
  num_key_value_heads: 4,
  intermediate_size: 6144,
  moe_intermediate_size: 768,
  num_experts: 128,
  num_experts_per_tok: 8,
};
const small = {
  ...qwen3,
  model_type: "qwen2",
  hidden_size: 896,
  num_hidden_layers: 24,
  num_attention_heads: 14,
  num_key_value_heads: 2,
  head_dim: null,
  intermediate_size: 4864,
  tie_word_embeddings: true,
};

test.each([
  ["Qwen3-8B", qwen3, 8_190_735_360],
  ["Llama-3.1-8B", llama, 8_030_261_248],
  ["Mixtral-8x7B", mixtral, 46_702_792_704],
  ["Qwen3-30B-A3B", mixture, 30_532_122_624],
  ["Qwen2.5-0.5B", small, 494_032_768],
])("%s has the parameters that are published of it", (_, config, parameters) => {
  expect(modelShapeOf(config, "config.json").parameters).toBe(parameters);
});

test("of a mixture, a token goes through its experts, and many tokens through nearly all", () => {
  const shape = modelShapeOf(mixture, "config.json");
  const { lookedUpParameters } = shape;
  expect(Math.floor((activeParameters(shape) + lookedUpParameters) / 1e8)).toBe(33); // as is published
  expect(touchedParameters(shape, 1)).toBeCloseTo(activeParameters(shape), 0);
  expect(touchedParameters(shape, 1000)).toBeCloseTo(shape.parameters - lookedUpParameters, 0);
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 500 }), (tokens) => {
      expect(touchedParameters(shape, tokens + 1)).toBeGreaterThan(touchedParameters(shape, tokens) - 1);
    }),
  );
});

test("a configuration that says nothing of a model, or of one that is built otherwise, is refused by name", () => {
  const refused = (config: unknown, said: RegExp) =>
    expect(() => modelShapeOf(config, "a/config.json")).toThrow(
      expect.objectContaining({ code: "config.invalid", message: expect.stringMatching(said) }),
    );
  refused({}, /'a\/config.json' .*hidden_size/s);
  refused({ ...qwen3, num_hidden_layers: 0 }, /num_hidden_layers/);
  refused({ ...qwen3, vocab_size: 2 ** 40 }, /vocab_size/);
  refused({ ...qwen3, quantization_config: { bits: 4 } }, /quantization_config/);
  refused({ ...mixture, mlp_only_layers: [0] }, /mlp_only_layers/);
  refused({ ...llama, head_dim: null, hidden_size: 4095 }, /hidden_size '4095'/);
  refused({ ...qwen3, num_key_value_heads: 320 }, /num_key_value_heads '320'/);
  const { num_experts: _, ...unsaid } = mixture;
  refused(unsaid, /does not say num_experts, which models of type 'qwen3_moe' have/);
  refused({ ...qwen3, model_type: "deepseek_v3" }, /of type 'deepseek_v3'.* known are llama/);
  refused("text", /a\/config.json/);
});

const count = `
import json, sys, torch
from transformers import AutoConfig, AutoModelForCausalLM
for given in json.load(sys.stdin):
    config = AutoConfig.for_model(given.pop("model_type"), **given)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    print(sum(each.numel() for each in model.parameters()))
`;
const power = (min: number, max: number) => fc.integer({ min, max }).map((exponent) => 2 ** exponent);
const drawn = fc
  .record({
    model_type: fc.constantFrom("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral"),
    hidden_size: power(5, 7),
    num_hidden_layers: fc.integer({ min: 1, max: 3 }),
    num_attention_heads: power(1, 3),
    head_dim: power(2, 4),
    intermediate_size: fc.integer({ min: 8, max: 64 }),
    moe_intermediate_size: fc.integer({ min: 4, max: 32 }),
    vocab_size: fc.integer({ min: 16, max: 200 }),
    tie_word_embeddings: fc.boolean(),
    attention_bias: fc.boolean(),
    num_experts: fc.integer({ min: 2, max: 6 }),
    num_key_value_heads: fc.constantFrom(1, 2),
  })
  .map(({ num_experts, ...each }) => {
    const experts = { num_experts, num_local_experts: num_experts, num_experts_per_tok: 2 };
    return each.model_type === "qwen3_moe" || each.model_type === "mixtral" ? { ...each, ...experts } : each;
  })
  // Where configurations have no such key.
  .filter((each) => each.model_type === "llama" || each.model_type.startsWith("qwen3") || !each.attention_bias)
  .map((each) => (each.model_type === "mixtral" ? withoutExpertWidth(each) : each));
const withoutExpertWidth = <T extends { moe_intermediate_size: number }>({ moe_intermediate_size: _, ...each }: T) =>
  each;

const reason = lacksTorch();
describe.skipIf(reason)(reason ?? "models that transformers builds", () => {
  test("have as many parameters as their configurations are counted to have", () => {
    const configs = fc.sample(drawn, 40);
    const input = JSON.stringify(configs);
    const printed = execFileSync(python, ["-c", count], { input, stdio: ["pipe", "pipe", "inherit"] }).toString();
    const built = printed.trim().split("\n").map(Number);
    configs.forEach((config, at) => {
      expect(modelShapeOf(config, "config.json").parameters, JSON.stringify(config)).toBe(built[at]);
    });
  }, 300_000);
});
