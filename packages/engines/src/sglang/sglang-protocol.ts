import { TreadleError } from "@treadle/contracts";
import { z } from "zod";
import type { CallOptions, HttpClient } from "../server/http-client.ts";
import { parseAnswer, parseEvent, unusableAnswer } from "../server/parse-answer.ts";
import type {
  RouteNeed,
  ServerFacts,
  ServerProtocol,
  ServerTag,
  TokenAnswer,
  TokenOptions,
  TokenPart,
  TokenRequest,
} from "../server/server-protocol.ts";

const newer = "use a newer SGLang";
const adapterFlags = "--enable-lora, --max-lora-rank and --lora-target-modules of engine.trainer.lora";

const needs: readonly RouteNeed[] = [
  { path: "/generate", purpose: "generates", remedy: newer },
  { path: "/abort_request", purpose: "ends requests", remedy: newer },
  { path: "/pause_generation", purpose: "keeps requests from half-loaded weights", remedy: newer },
  { path: "/continue_generation", purpose: "ends a pause", remedy: newer },
  { path: "/update_weights_from_disk", purpose: "loads weights", remedy: newer },
  { path: "/flush_cache", purpose: "drops what was computed with older weights", remedy: newer },
  { path: "/release_memory_occupation", purpose: "gives memory back", remedy: newer, isForSharing: true },
  { path: "/resume_memory_occupation", purpose: "takes memory again", remedy: newer, isForSharing: true },
  { path: "/load_lora_adapter", purpose: "loads adapters", remedy: newer, isForAdapters: true },
  { path: "/unload_lora_adapter", purpose: "drops adapters", remedy: newer, isForAdapters: true },
  {
    path: "/weights_checker",
    purpose: "tells a checksum of the weights, which are verified by their label alone without it",
    remedy: newer,
    isOptional: true,
  },
];

/** `[log-probability, token, its text]` */
const TokenLogprob = z.tuple([z.number(), z.int().nonnegative()]).rest(z.unknown());

const FinishReason = z.object({ type: z.enum(["stop", "length", "abort"]) });
const MetaInfo = z.object({
  finish_reason: FinishReason,
  weight_version: z.string().optional(),
  output_token_logprobs: z.array(TokenLogprob).default([]),
  output_top_logprobs: z.array(z.array(TokenLogprob).nullable()).optional(),
});
const Generated = z.object({ output_ids: z.array(z.int().nonnegative()), meta_info: MetaInfo });
/** Tokens behind those of the events before it; that of an end unasked for may have the last of them again. */
const Streamed = z.object({
  output_ids: z.array(z.int().nonnegative()).default([]),
  meta_info: MetaInfo.extend({
    finish_reason: FinishReason.nullish(),
    /** of all so far */
    completion_tokens: z.int().nonnegative().default(0),
  }),
});
const ModelInfo = z.object({ weight_version: z.string().optional(), architectures: z.array(z.string()).nullish() });
const ServerInfo = z.object({
  enable_memory_saver: z.boolean().default(false),
  enable_deterministic_inference: z.boolean().default(false),
  /** null unless it was asked for */
  enable_lora: z.boolean().nullish(),
  /** else each event of a stream has all tokens so far; older versions call it `stream_output` */
  incremental_streaming_output: z.boolean().default(false),
  stream_output: z.boolean().default(false),
  /** of each data-parallel rank; older versions do not say what weights take */
  internal_states: z
    .array(z.object({ memory_usage: z.object({ weight: z.number().nonnegative().optional() }).optional() }))
    .optional(),
});
/** as the server counts */
const gib = 2 ** 30;
const memoryTypes = { weights: ["weights"], cache: ["kv_cache", "cuda_graph"] } as const;
const Models = z.object({ data: z.array(z.object({ max_model_len: z.int().positive().nullish() })) });
const Checked = z.object({ ranks: z.unknown() });
const AdapterLoaded = z.object({ success: z.boolean(), error_message: z.string().nullish() });

/** SGLang's own routes, as its `http_server.py` and `io_struct.py` have them. */
export class SglangProtocol implements ServerProtocol {
  readonly name = "SGLang";
  readonly needs = needs;
  readonly logprobRemedy = "start it without SGLANG_RETURN_ORIGINAL_LOGPROB";
  readonly determinismRemedy = "start it with --enable-deterministic-inference, without which it ignores seeds";
  readonly drawsByPosition = true;
  readonly #client: HttpClient;

  constructor(client: HttpClient) {
    this.#client = client;
  }

  async describe(): Promise<ServerFacts> {
    const model = this.#parse(ModelInfo, await this.#info("model_info"), "/model_info");
    const server = this.#parse(ServerInfo, await this.#info("server_info"), "/server_info");
    const weight = server.internal_states?.[0]?.memory_usage?.weight;
    const models = this.#parse(Models, await this.#client.json("GET", "/v1/models"), "/v1/models");
    return {
      contextLength: models.data[0]?.max_model_len ?? undefined,
      architectures: model.architectures ?? [],
      isDeterministic: server.enable_deterministic_inference,
      lacksRelease: server.enable_memory_saver ? undefined : "--enable-memory-saver",
      weightsBytes: weight === undefined ? undefined : weight * gib,
      lacksAdapters: server.enable_lora === true || server.enable_lora === undefined ? undefined : adapterFlags,
      lacksStreams:
        server.incremental_streaming_output || server.stream_output ? undefined : "--incremental-streaming-output",
    };
  }

  async generate(request: TokenRequest, { withTop = false, onPart, ...options }: TokenOptions): Promise<TokenAnswer> {
    const { id, tokens, maxTokens, temperature, stopTokens, seed, salt, adapter } = request;
    const body = {
      rid: id,
      input_ids: tokens,
      sampling_params: {
        max_new_tokens: maxTokens,
        temperature,
        top_p: 1,
        top_k: -1,
        min_p: 0,
        stop_token_ids: stopTokens,
        // It would ignore `stop_token_ids`, too.
        ignore_eos: stopTokens.length === 0,
        sampling_seed: seed,
      },
      return_logprob: true,
      ...(withTop && { top_logprobs_num: 1 }),
      stream: onPart !== undefined,
      extra_key: salt,
      ...(adapter !== undefined && { lora_path: adapter }),
    };
    const call = { ...options, body };
    if (onPart) return this.#stream(call, onPart);
    const reply = this.#parse(Generated, await this.#client.json("POST", "/generate", call), "/generate");
    const { finish_reason, weight_version, output_token_logprobs, output_top_logprobs } = reply.meta_info;
    return {
      ...this.#partOf(reply.output_ids, output_token_logprobs),
      reason: finish_reason.type,
      labels: weight_version === undefined ? [] : [weight_version],
      topLogprob: output_top_logprobs?.[0]?.[0]?.[0],
    };
  }

  async #stream(call: CallOptions, onPart: (part: TokenPart) => void): Promise<TokenAnswer> {
    const tokens: number[] = [];
    const logprobs: number[] = [];
    let reason: TokenAnswer["reason"] | undefined;
    const labels: string[] = [];
    await this.#client.events("POST", "/generate", call, (data) => {
      const { output_ids, meta_info } = parseEvent(this.name, Streamed, data, "/generate");
      const { finish_reason, completion_tokens, weight_version, output_token_logprobs } = meta_info;
      reason = finish_reason?.type;
      if (weight_version !== undefined && !labels.includes(weight_version)) labels.push(weight_version);
      if (reason === "abort") return;
      // Of some versions, these alone are of all tokens so far.
      const part = this.#partOf(
        output_ids,
        output_ids.length === 0 ? [] : output_token_logprobs.slice(-output_ids.length),
      );
      if (tokens.length + part.tokens.length !== completion_tokens)
        throw unusableAnswer(
          this.name,
          "/generate",
          `after '${tokens.length}' tokens an event has '${part.tokens.length}', and says that there are '${completion_tokens}'`,
        );
      onPart(part);
      tokens.push(...part.tokens);
      logprobs.push(...part.logprobs);
    });
    if (reason === undefined) throw unusableAnswer(this.name, "/generate", "its stream does not say why it ended");
    return { tokens, logprobs, reason, labels };
  }

  #partOf(tokens: readonly number[], logprobs: readonly z.infer<typeof TokenLogprob>[]): TokenPart {
    if (logprobs.some(([, token], at) => token !== tokens[at]))
      throw unusableAnswer(this.name, "/generate", "its log-probabilities are of other tokens than it gives");
    return { tokens, logprobs: logprobs.map(([logprob]) => logprob) };
  }

  async abort(ids: readonly string[]): Promise<void> {
    await Promise.all(ids.map((rid) => this.#client.json("POST", "/abort_request", { body: { rid } })));
  }

  async pause(): Promise<void> {
    await this.#client.json("POST", "/pause_generation", { body: { mode: "abort" } });
  }

  async resume(): Promise<void> {
    await this.#client.json("POST", "/continue_generation", { body: {} });
  }

  async load(folder: string, label: string, timeoutMs: number): Promise<void> {
    const body = { model_path: folder, load_format: "safetensors", weight_version: label, flush_cache: true };
    await this.#client.json("POST", "/update_weights_from_disk", { body, timeoutMs });
    await this.#client.json("POST", "/flush_cache");
  }

  async loadAdapter(folder: string, name: string, timeoutMs: number): Promise<void> {
    const body = { lora_name: name, lora_path: folder };
    const reply = await this.#client.json("POST", "/load_lora_adapter", { body, timeoutMs });
    const { success, error_message } = this.#parse(AdapterLoaded, reply, "/load_lora_adapter");
    if (!success) throw unusableAnswer(this.name, "/load_lora_adapter", error_message ?? "it says no reason");
    await this.#client.json("POST", "/flush_cache");
  }

  async unloadAdapter(name: string): Promise<void> {
    await this.#client.json("POST", "/unload_lora_adapter", { body: { lora_name: name } });
  }

  async label(): Promise<string> {
    const { weight_version } = this.#parse(ModelInfo, await this.#info("model_info"), "/model_info");
    if (weight_version === undefined)
      throw new TreadleError("config.invalid", `SGLang does not say the version of its weights; ${newer}`);
    return weight_version;
  }

  async checksum(): Promise<string | undefined> {
    const body = { action: "checksum" };
    const { status, text } = await this.#client.call("POST", "/weights_checker", { body });
    if (status !== 200) return undefined;
    const { ranks } = this.#parse(Checked, JSON.parse(text), "/weights_checker");
    return ranks === undefined ? undefined : JSON.stringify(ranks);
  }

  async release(tags: readonly ServerTag[] | undefined): Promise<void> {
    await this.#client.json("POST", "/release_memory_occupation", { body: memoryOf(tags) });
  }

  /** It ends where it is asked for what it has not released. */
  async restore(tags: readonly ServerTag[] | undefined): Promise<void> {
    await this.#client.json("POST", "/resume_memory_occupation", { body: memoryOf(tags) });
  }

  async alive(): Promise<void> {
    await this.#info("model_info");
  }

  /** Under its name, or under the one that older servers have. */
  async #info(name: "model_info" | "server_info"): Promise<unknown> {
    const { status } = await this.#client.call("DELETE", `/${name}`);
    return this.#client.json("GET", status === 404 ? `/get_${name}` : `/${name}`);
  }

  #parse<T>(schema: z.ZodType<T>, value: unknown, path: string): T {
    return parseAnswer(this.name, schema, value, path);
  }
}

const memoryOf = (tags: readonly ServerTag[] | undefined): object =>
  tags === undefined ? {} : { tags: tags.flatMap((tag) => memoryTypes[tag]) };
