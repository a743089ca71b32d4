/** What a language model has by its configuration, without its weights. Pure. */
import { problemsOf, TreadleError } from "@treadle/contracts";
import { z } from "zod";

const size = z
  .int()
  .positive()
  .max(2 ** 24);

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
    /** what makes parameters other than these sizes say */
    quantization_config: z.null().optional(),
    mlp_bias: z.literal(false).optional(),
    mlp_only_layers: z.array(z.int()).max(0).optional(),
    decoder_sparse_step: z.literal(1).optional(),
  })
  .readonly();

/** Dense models and mixtures of equal experts, with gated products and grouped attention. */
const knownTypes = ["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral"] as const;

/** What `config.json` must say of a type, beside what all have: without it nobody knows the size. */
const needed: Readonly<Record<string, readonly string[]>> = {
  qwen3: ["head_dim"],
  qwen3_moe: ["head_dim", "num_experts", "num_experts_per_tok", "moe_intermediate_size"],
  mixtral: ["num_local_experts", "num_experts_per_tok"],
};

export type ModelShape = {
  readonly layers: number;
  readonly width: number;
  readonly vocabSize: number;
  /** of attention, together: heads × numbers of a head */
  readonly attentionWidth: number;
  readonly parameters: number;
  /** that are looked up, and neither multiplied nor read as a whole: an input embedding that is not the output's */
  readonly lookedUpParameters: number;
  /** of all experts, together; 0 of a dense model */
  readonly expertParameters: number;
  readonly experts: number;
  readonly expertsPerToken: number;
  /** of keys and values, of each of the key heads: numbers that the cache keeps of a token */
  readonly cachedPerHead: number;
  readonly keyHeads: number;
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
  const missing = (needed[type] ?? []).filter((key) => (parsed.data as Record<string, unknown>)[key] === undefined);
  if (missing.length > 0)
    throw new TreadleError(
      "config.invalid",
      `'${path}' does not say ${missing.join(", ")}, which models of type '${type}' have`,
    );
  const { num_attention_heads: heads, num_key_value_heads: keyHeads = heads } = parsed.data;
  const headWidth = parsed.data.head_dim ?? width / heads;
  if (!Number.isInteger(headWidth) || heads % keyHeads !== 0) {
    throw new TreadleError(
      "config.invalid",
      `'${path}' has hidden_size '${width}', num_attention_heads '${heads}' and num_key_value_heads '${keyHeads}', which no model has: each must divide the one before`,
    );
  }
  const [attentionWidth, keyWidth] = [heads * headWidth, keyHeads * headWidth];
  const projections = 2 * width * attentionWidth + 2 * width * keyWidth;
  const biases = biasesOf(type, parsed.data.attention_bias, { attentionWidth, keyWidth, width });
  const norms = 2 * width + (type.startsWith("qwen3") ? 2 * headWidth : 0);
  const experts = parsed.data.num_experts ?? parsed.data.num_local_experts ?? 0;
  const expertsPerToken = experts === 0 ? 0 : Math.min(experts, parsed.data.num_experts_per_tok ?? 2);
  const expertWidth = parsed.data.moe_intermediate_size ?? parsed.data.intermediate_size;
  const expertParameters = layers * experts * 3 * width * expertWidth;
  const dense = experts > 0 ? width * experts : 3 * width * parsed.data.intermediate_size; // a router, or one product
  const lookedUpParameters = parsed.data.tie_word_embeddings ? 0 : vocabSize * width;
  const embeddings = vocabSize * width + lookedUpParameters;
  return {
    layers,
    width,
    vocabSize,
    attentionWidth,
    parameters: layers * (projections + biases + norms + dense) + expertParameters + embeddings + width,
    lookedUpParameters,
    expertParameters,
    experts,
    expertsPerToken,
    cachedPerHead: 2 * layers * headWidth,
    keyHeads,
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

/** That one token is multiplied with. */
export const activeParameters = (shape: ModelShape): number => touchedParameters(shape, 1);

/** That a pass over `tokens` reads: of a mixture, the experts that any of them is expected to go to. */
export function touchedParameters(shape: ModelShape, tokens: number): number {
  const { parameters, lookedUpParameters, expertParameters, experts, expertsPerToken } = shape;
  const all = parameters - lookedUpParameters;
  return experts === 0 ? all : all - expertParameters * (1 - expertsPerToken / experts) ** tokens;
}
