/** The Qwen3 that `treadle_torch` draws where no folder is given, as its files describe it. */
import type { TransformerConfig } from "../embedded/transformer-config.ts";
import type { ParameterShape } from "../parameters.ts";

/** What transformers saves of it. */
export function qwen3Config({ vocabSize, contextLength, layers, width, heads }: TransformerConfig) {
  return {
    architectures: ["Qwen3ForCausalLM"],
    attention_bias: false,
    attention_dropout: 0,
    bos_token_id: null,
    eos_token_id: null,
    head_dim: Math.floor(width / heads),
    hidden_act: "silu",
    hidden_size: width,
    initializer_range: width ** -0.5,
    intermediate_size: 4 * width,
    layer_types: Array.from({ length: layers }, () => "full_attention"),
    max_position_embeddings: contextLength,
    max_window_layers: 28,
    model_type: "qwen3",
    num_attention_heads: heads,
    num_hidden_layers: layers,
    num_key_value_heads: heads,
    pad_token_id: null,
    rms_norm_eps: 1e-6,
    rope_parameters: { rope_theta: 10_000, rope_type: "default" },
    sliding_window: null,
    tie_word_embeddings: false,
    use_cache: true,
    use_sliding_window: false,
    vocab_size: vocabSize,
  };
}

/** Its parameters, in their order. */
export function qwen3Shapes({ vocabSize, layers, width, heads }: TransformerConfig): ParameterShape[] {
  const head = Math.floor(width / heads);
  const block: [string, number[]][] = [
    ...["q_proj", "k_proj", "v_proj"].map((name): [string, number[]] => [`self_attn.${name}`, [heads * head, width]]),
    ["self_attn.o_proj", [width, heads * head]],
    ["self_attn.q_norm", [head]],
    ["self_attn.k_norm", [head]],
    ["mlp.gate_proj", [4 * width, width]],
    ["mlp.up_proj", [4 * width, width]],
    ["mlp.down_proj", [width, 4 * width]],
    ["input_layernorm", [width]],
    ["post_attention_layernorm", [width]],
  ];
  return [
    { name: "model.embed_tokens.weight", shape: [vocabSize, width] },
    ...Array.from({ length: layers }, (_, layer) =>
      block.map(([name, shape]) => ({ name: `model.layers.${layer}.${name}.weight`, shape })),
    ).flat(),
    { name: "model.norm.weight", shape: [width] },
    { name: "lm_head.weight", shape: [vocabSize, width] },
  ];
}
