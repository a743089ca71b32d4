import type { FinishReason } from "@treadle/contracts";
import { z } from "zod";
import type { CallOptions, HttpClient } from "../server/http-client.ts";
import { parseAnswer, parseEvent } from "../server/parse-answer.ts";
import type {
  RouteNeed,
  ServerFacts,
  ServerProtocol,
  TokenAnswer,
  TokenOptions,
  TokenPart,
  TokenRequest,
} from "../server/server-protocol.ts";

const devMode = "start it with VLLM_SERVER_DEV_MODE=1, or use a newer vLLM";

const adapterFlags = "--enable-lora and --max-lora-rank of engine.trainer.lora";
const adapterRemedy = `start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, ${adapterFlags}`;

const needs: readonly RouteNeed[] = [
  {
    path: "/inference/v1/generate",
    purpose: "generates from token ids",
    remedy: "start it with --enable-scale-out or --tokens-only",
  },
  { path: "/abort_requests", purpose: "ends requests", remedy: devMode },
  { path: "/pause", purpose: "keeps requests from half-loaded weights", remedy: devMode },
  { path: "/resume", purpose: "ends a pause", remedy: devMode },
  { path: "/collective_rpc", purpose: "loads weights", remedy: devMode },
  { path: "/update_weight_version", purpose: "names the weights", remedy: devMode },
  { path: "/weight_info", purpose: "tells which weights it has", remedy: devMode },
  { path: "/reset_prefix_cache", purpose: "drops what was computed with older weights", remedy: devMode },
  { path: "/sleep", purpose: "gives memory back", remedy: devMode, isForSharing: true },
  { path: "/wake_up", purpose: "takes memory again", remedy: devMode, isForSharing: true },
  { path: "/v1/load_lora_adapter", purpose: "loads adapters", remedy: adapterRemedy, isForAdapters: true },
  { path: "/v1/unload_lora_adapter", purpose: "drops adapters", remedy: adapterRemedy, isForAdapters: true },
  {
    path: "/weight_checker",
    purpose: "tells a checksum of the weights, which are verified by their label alone without it",
    remedy: devMode,
    isOptional: true,
  },
];

const Logprob = z.object({ logprob: z.number() });
const Choice = z.object({
  token_ids: z.array(z.int().nonnegative()),
  finish_reason: z.enum(["stop", "length", "abort"]),
  logprobs: z
    .object({ content: z.array(Logprob.extend({ top_logprobs: z.array(Logprob).default([]) })).nullable() })
    .nullable(),
  /** of all tokens; in a stream, with its last ones */
  weight_versions: z.array(z.object({ version: z.string() })).nullish(),
});
const Generated = z.object({ choices: z.array(Choice).length(1) });
/** Tokens behind those of the events before it. */
const Streamed = z.object({
  choices: z.array(Choice.extend({ finish_reason: Choice.shape.finish_reason.nullable() })).max(1),
});
const Models = z.object({ data: z.array(z.object({ max_model_len: z.int().positive().nullish() })) });
/** What is read of a configuration whose fields come and go. */
const ServerInfo = z.object({
  vllm_config: z
    .object({ model_config: z.looseObject({}).optional(), lora_config: z.unknown() })
    .catch({ lora_config: 0 }),
  vllm_env: z.record(z.string(), z.unknown()).default({}),
});
const ModelFields = z.object({
  enable_sleep_mode: z.boolean().optional().catch(undefined),
  architectures: z.array(z.string()).default([]).catch([]),
});
const WeightInfo = z.object({ weight_version: z.string().nullish() });
const Checked = z.object({ checksums: z.record(z.string(), z.string()) });

/** vLLM's token and development routes, as its `entrypoints/serve` has them. */
export class VllmProtocol implements ServerProtocol {
  readonly name = "vLLM";
  readonly needs = needs;
  readonly logprobRemedy = "start it with --logprobs-mode processed_logprobs";
  readonly determinismRemedy = "start it with VLLM_BATCH_INVARIANT=1";
  readonly drawsByPosition = false;
  readonly #client: HttpClient;

  constructor(client: HttpClient) {
    this.#client = client;
  }

  async describe(): Promise<ServerFacts> {
    const models = this.#parse(Models, await this.#client.json("GET", "/v1/models"), "/v1/models");
    const { status, text } = await this.#client.call("GET", "/server_info", { query: { config_format: "json" } });
    const info = this.#parse(ServerInfo, status === 200 ? JSON.parse(text) : {}, "/server_info");
    const model = ModelFields.parse(info.vllm_config.model_config ?? {});
    return {
      contextLength: models.data[0]?.max_model_len ?? undefined,
      architectures: model.architectures,
      isDeterministic: ["1", 1, true].includes(info.vllm_env["VLLM_BATCH_INVARIANT"] as string),
      weightsBytes: undefined,
      lacksAdapters: info.vllm_config.lora_config === null ? adapterFlags : undefined,
      lacksRelease: model.enable_sleep_mode === false ? "--enable-sleep-mode" : undefined,
      lacksStreams: undefined,
    };
  }

  async generate(request: TokenRequest, { withTop = false, onPart, ...options }: TokenOptions): Promise<TokenAnswer> {
    const path = "/inference/v1/generate";
    const { id, tokens, maxTokens, temperature, stopTokens, seed, salt, adapter } = request;
    const body = {
      request_id: id,
      token_ids: tokens,
      sampling_params: {
        n: 1,
        max_tokens: maxTokens,
        temperature,
        top_p: 1,
        top_k: -1,
        min_p: 0,
        stop_token_ids: stopTokens,
        // The model's own; those in `stop_token_ids` count.
        ignore_eos: true,
        seed,
        logprobs: withTop ? 1 : 0,
        detokenize: false,
      },
      stream: onPart !== undefined,
      cache_salt: salt,
      // Adapters are served as models of their names.
      ...(adapter !== undefined && { model: adapter }),
    };
    if (onPart) return this.#stream(path, { ...options, body }, onPart);
    const reply = this.#parse(Generated, await this.#client.json("POST", path, { ...options, body }), path);
    const choice = reply.choices[0]!;
    const first = choice.logprobs?.content?.[0]?.top_logprobs ?? [];
    return {
      ...partOf(choice),
      reason: choice.finish_reason,
      labels: (choice.weight_versions ?? []).map(({ version }) => version),
      topLogprob: withTop ? Math.max(...first.map(({ logprob }) => logprob)) : undefined,
    };
  }

  /** One that is ended without another token sends no event of it. */
  async #stream(path: string, options: CallOptions, onPart: (part: TokenPart) => void): Promise<TokenAnswer> {
    const tokens: number[] = [];
    const logprobs: number[] = [];
    let reason: FinishReason = "abort";
    let labels: string[] = [];
    await this.#client.events("POST", path, options, (data) => {
      for (const choice of parseEvent(this.name, Streamed, data, path).choices) {
        const part = partOf(choice);
        onPart(part);
        tokens.push(...part.tokens);
        logprobs.push(...part.logprobs);
        reason = choice.finish_reason ?? reason;
        labels = choice.weight_versions?.map(({ version }) => version) ?? labels;
      }
    });
    return { tokens, logprobs, reason, labels };
  }

  async abort(ids: readonly string[]): Promise<void> {
    // None would be all. The route gives its requests a prefix; one that gives none knows the bare id.
    if (ids.length === 0) return;
    const request_ids = ids.flatMap((id) => [`generate-tokens-${id}`, id]);
    await this.#client.json("POST", "/abort_requests", { body: { request_ids } });
  }

  async pause(): Promise<void> {
    await this.#client.json("POST", "/pause", { query: { mode: "abort" } });
  }

  async resume(): Promise<void> {
    await this.#client.json("POST", "/resume");
  }

  async load(folder: string, label: string, timeoutMs: number): Promise<void> {
    const body = { method: "reload_weights", kwargs: { weights_path: folder }, timeout: Math.ceil(timeoutMs / 1000) };
    await this.#client.json("POST", "/collective_rpc", { body, timeoutMs });
    await this.#client.json("POST", "/reset_prefix_cache");
    await this.#client.json("POST", "/update_weight_version", { body: { new_version: label } });
  }

  /** Under a new name each time: one that is loaded in place stays so, and is read again by every request. */
  async loadAdapter(folder: string, name: string, timeoutMs: number): Promise<void> {
    const body = { lora_name: name, lora_path: folder };
    await this.#client.json("POST", "/v1/load_lora_adapter", { body, timeoutMs });
    await this.#client.json("POST", "/reset_prefix_cache");
  }

  async unloadAdapter(name: string): Promise<void> {
    await this.#client.json("POST", "/v1/unload_lora_adapter", { body: { lora_name: name } });
  }

  async label(): Promise<string> {
    const info = this.#parse(WeightInfo, await this.#client.json("GET", "/weight_info"), "/weight_info");
    return info.weight_version ?? "unnamed";
  }

  async checksum(): Promise<string | undefined> {
    const { status, text } = await this.#client.call("POST", "/weight_checker", { body: { action: "checksum" } });
    if (status !== 200) return undefined;
    const { checksums } = this.#parse(Checked, JSON.parse(text), "/weight_checker");
    return JSON.stringify(Object.entries(checksums).sort(([a], [b]) => (a < b ? -1 : 1)));
  }

  /** All of it: a server of which only a part has woken up does not sleep again. Level 2 would drop buffers that are in no checkpoint. */
  async release(): Promise<void> {
    await this.#client.json("POST", "/sleep", { query: { level: "1" } });
  }

  async restore(): Promise<void> {
    await this.#client.json("POST", "/wake_up");
  }

  async alive(): Promise<void> {
    await this.#client.json("GET", "/health");
  }

  #parse<T>(schema: z.ZodType<T>, value: unknown, path: string): T {
    return parseAnswer(this.name, schema, value, path);
  }
}

const partOf = ({ token_ids, logprobs }: Pick<z.infer<typeof Choice>, "token_ids" | "logprobs">): TokenPart => ({
  tokens: token_ids,
  logprobs: (logprobs?.content ?? []).map(({ logprob }) => logprob),
});
