/** What a language model has by its configuration, without its weights. Pure. */
import { problemsOf, TreadleError } from "@treadle/contracts";
import { z } from "zod";

const size = z.int().positive();

/** Keys of `config.json`, as transformers names them. */
const ModelConfig = z
  .looseObject({
    model_type: z.string(),
    hidden_size: size,
    num_hidden_layers: size,
    num_attention_heads: size,
    num_key_value_heads: size.optional(),
    head_dim: size.nullish(),
    intermediate_size: size,
    vocab_size: size,
    tie_word_embeddings: z.boolean().default(false),
    attention_bias: z.boolean().default(false),
    num_experts_per_tok: size.optional(),
    /** of Qwen's mixtures */
    num_experts: size.optional(),
    moe_intermediate_size: size.optional(),
    /** of Mixtral's */
    num_local_experts: size.optional(),
  })
  .readonly();

/** Dense models and mixtures of equal experts, with gated products and grouped attention. */
const knownTypes = ["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral"] as const;

export type ModelShape = {
  readonly type: string;
  readonly layers: number;
  readonly width: number;
  readonly vocabSize: number;
  /** of attention, together: heads × numbers of a head */
  readonly attentionWidth: number;
  readonly parameters: number;
  /** of all experts, together; 0 of a dense model */
  readonly expertParameters: number;
  readonly experts: number;
  readonly expertsPerToken: number;
  /** numbers that the cache keeps of a token */
  readonly cachedNumbers: number;
};

/** Throws `config.invalid` for a configuration without sizes, and for a kind of model whose sizes mean something else. */
export function modelShapeOf(config: unknown, path: string): ModelShape {
  const parsed = ModelConfig.safeParse(config);
  if (!parsed.success) {
    throw new TreadleError(
      "config.invalid",
      `'${path}' cannot be rehearsed: ${problemsOf(parsed.error)}; give the config.json of a Hugging Face language model`,
    );
  }
  const { model_type: type, hidden_size: width, num_hidden_layers: layers, vocab_size: vocabSize } = parsed.data;
  if (!(knownTypes as readonly string[]).includes(type)) {
    throw new TreadleError(
      "config.invalid",
      `'${path}' is of a model of type '${type}', whose sizes are not known here; known are ${knownTypes.join(", ")}`,
    );
  }
  const { num_attention_heads: heads, num_key_value_heads: keyHeads = heads } = parsed.data;
  const headWidth = parsed.data.head_dim ?? width / heads;
  const [attentionWidth, keyWidth] = [heads * headWidth, keyHeads * headWidth];
  const projections = 2 * width * attentionWidth + 2 * width * keyWidth;
  const biases = biasesOf(type, parsed.data.attention_bias, { attentionWidth, keyWidth, width });
  const norms = 2 * width + (type.startsWith("qwen3") ? 2 * headWidth : 0);
  const experts = parsed.data.num_experts ?? parsed.data.num_local_experts ?? 0;
  const expertsPerToken = experts === 0 ? 0 : Math.min(experts, parsed.data.num_experts_per_tok ?? 2);
  const expertWidth = parsed.data.moe_intermediate_size ?? parsed.data.intermediate_size;
  const expertParameters = layers * experts * 3 * width * expertWidth;
  const dense = experts > 0 ? width * experts : 3 * width * parsed.data.intermediate_size; // a router, or one product
  const embeddings = vocabSize * width * (parsed.data.tie_word_embeddings ? 1 : 2);
  return {
    type,
    layers,
    width,
    vocabSize,
    attentionWidth,
    parameters: layers * (projections + biases + norms + dense) + expertParameters + embeddings + width,
    expertParameters,
    experts,
    expertsPerToken,
    cachedNumbers: 2 * layers * keyWidth,
  };
}

function biasesOf(
  type: string,
  isAsked: boolean,
  { attentionWidth, keyWidth, width }: Record<"attentionWidth" | "keyWidth" | "width", number>,
): number {
  if (type === "qwen2") return attentionWidth + 2 * keyWidth;
  return isAsked && type !== "mistral" && type !== "mixtral" ? attentionWidth + 2 * keyWidth + width : 0;
}

/** That one token goes through. */
export const activeParameters = ({ parameters, expertParameters, experts, expertsPerToken }: ModelShape): number =>
  experts === 0 ? parameters : parameters - expertParameters * (1 - expertsPerToken / experts);

/** That a pass over `tokens` reads: of a mixture, the experts that any of them is expected to go to. */
export function touchedParameters(shape: ModelShape, tokens: number): number {
  const { parameters, expertParameters, experts, expertsPerToken } = shape;
  if (experts === 0) return parameters;
  return parameters - expertParameters * (1 - expertsPerToken / experts) ** tokens;
}
