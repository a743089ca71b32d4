import { z } from "zod";
import { type Answered, Refusal, type Route, ServerDouble } from "./server-double.ts";

const prefix = "generate-tokens-";

const Generate = z.strictObject({
  request_id: z.string(),
  token_ids: z.array(z.int().nonnegative()).min(1),
  sampling_params: z.strictObject({
    n: z.literal(1),
    max_tokens: z.int().positive(),
    temperature: z.number().min(0).max(2),
    top_p: z.literal(1),
    top_k: z.literal(-1),
    min_p: z.literal(0),
    stop_token_ids: z.array(z.int()),
    ignore_eos: z.boolean(),
    seed: z.int(),
    logprobs: z.int().min(0).max(20),
    detokenize: z.literal(false),
  }),
  stream: z.boolean(),
  cache_salt: z
    .string()
    .min(1)
    .max(128)
    .regex(/^[^@/\\\0]*$/),
  model: z.string().min(1).optional(),
});
const AdapterName = z.strictObject({ lora_name: z.string().min(1) });
const AdapterLoad = AdapterName.extend({ lora_path: z.string().startsWith("/"), load_inplace: z.boolean().optional() });
const Rpc = z.strictObject({
  method: z.literal("reload_weights"),
  args: z.array(z.string()).optional(),
  kwargs: z.strictObject({ weights_path: z.string().startsWith("/") }),
  timeout: z.number().positive().optional(),
});

/** vLLM's token and development routes. Its key guards `/v1` and `/inference` alone, as vLLM's does. */
export class VllmDouble extends ServerDouble {
  protected readonly noSuchAdapter = 404;

  protected errorBody(message: string): unknown {
    return { error: { message, type: "BadRequestError" } };
  }

  protected routes(): Readonly<Record<string, Route>> {
    const open = { isGuarded: false };
    return {
      "GET /health": { ...open, handle: () => ({}) },
      "GET /v1/models": {
        isGuarded: true,
        handle: () => ({
          body: {
            data: [{ id: this.options.name ?? "tiny", root: this.options.model, max_model_len: this.contextLength }],
          },
        }),
      },
      "GET /server_info": {
        ...open,
        handle: (_, query) => {
          if (query.get("config_format") !== "json") return { body: { vllm_config: "VllmConfig(…)", vllm_env: {} } };
          const model_config = {
            enable_sleep_mode: this.options.canRelease ?? true,
            architectures: [this.architecture],
          };
          const vllm_env = { VLLM_BATCH_INVARIANT: this.options.isDeterministic ?? true };
          return {
            body: {
              vllm_config: { model_config, lora_config: this.options.adapters ? {} : null },
              vllm_env,
              system_env: {},
            },
          };
        },
      },
      "POST /inference/v1/generate": {
        isGuarded: true,
        body: Generate,
        handle: (body: z.infer<typeof Generate>, _, stream) => this.#generate(body, stream),
      },
      "POST /v1/load_lora_adapter": {
        isGuarded: true,
        body: AdapterLoad,
        handle: async ({ lora_name, lora_path, load_inplace }: z.infer<typeof AdapterLoad>) => {
          if (load_inplace) throw new Refusal(501, "no test has asked for loading in place");
          await this.loadAdapter(lora_name, lora_path);
          return { body: `Success: LoRA adapter '${lora_name}' added successfully.` };
        },
      },
      "POST /v1/unload_lora_adapter": {
        isGuarded: true,
        body: AdapterName,
        handle: ({ lora_name }: z.infer<typeof AdapterName>) => {
          this.unloadAdapter(lora_name);
          return { body: `Success: LoRA adapter '${lora_name}' removed successfully.` };
        },
      },
      "POST /abort_requests": {
        ...open,
        body: z.strictObject({ request_ids: z.array(z.string()).min(1, "an empty list would abort everything") }),
        handle: ({ request_ids }: { readonly request_ids: readonly string[] }) => {
          this.abortWhere((id) => request_ids.includes(id));
          return { body: { status: "aborted", aborted: request_ids.length } };
        },
      },
      "POST /pause": {
        ...open,
        handle: async (_, query) => {
          if (query.get("mode") !== "abort")
            throw new Refusal(501, `no test has asked for pausing by '${query.get("mode")}'`);
          await this.pauseAll();
          return { body: { status: "paused" } };
        },
      },
      "POST /resume": {
        ...open,
        handle: () => {
          this.resumeAll();
          return { body: { status: "resumed" } };
        },
      },
      "POST /collective_rpc": {
        ...open,
        body: Rpc,
        handle: async ({ kwargs }: z.infer<typeof Rpc>) => {
          if (!this.isPaused) throw new Refusal(500, "weights are reloaded while the scheduler runs");
          await this.load(kwargs.weights_path);
          return { body: { results: [null] } };
        },
      },
      "POST /update_weight_version": {
        ...open,
        body: z.strictObject({ new_version: z.string() }),
        handle: ({ new_version }: { readonly new_version: string }) => {
          this.label = new_version;
          return { body: { success: true, new_version } };
        },
      },
      "GET /weight_info": { ...open, handle: () => ({ body: { weight_version: this.named() } }) },
      "POST /reset_prefix_cache": {
        ...open,
        handle: () => {
          this.flush();
          return {};
        },
      },
      "POST /weight_checker": {
        ...open,
        body: z.strictObject({ action: z.literal("checksum") }),
        handle: () => {
          if (this.isPaused || this.asleep.size > 0)
            throw new Refusal(409, "weight_checker requires an awake, unpaused engine");
          return { body: { checksums: { all: this.checksum() } } };
        },
      },
      "POST /sleep": {
        ...open,
        handle: (_, query) => {
          if (this.options.canRelease === false) throw new Refusal(500, "sleep mode is not enabled");
          if (query.get("level") !== "1") throw new Refusal(501, `no test has asked for level '${query.get("level")}'`);
          this.fallAsleep();
          return {};
        },
      },
      "POST /wake_up": {
        ...open,
        handle: () => {
          this.wakeUp();
          return {};
        },
      },
    };
  }

  /** The last event of a stream has what was not told before; of one that is ended, there is none without another token. */
  async #generate(body: z.infer<typeof Generate>, stream: (event: unknown) => void) {
    this.generations.push(body);
    let numTold = 0;
    const contentOf = ({ tokens, logprobs }: Pick<Answered, "tokens" | "logprobs">) =>
      tokens.map((token, at) => ({ token: `token_id:${token}`, logprob: logprobs[at], top_logprobs: [] as unknown[] }));
    const { request_id, token_ids, sampling_params, cache_salt, model } = body;
    const { max_tokens, temperature, stop_token_ids, ignore_eos, seed } = sampling_params;
    const { tokens, logprobs, reason, topLogprob } = await this.complete({
      id: `${prefix}${request_id}`,
      tokens: token_ids,
      maxTokens: max_tokens,
      temperature,
      seed,
      drawsFrom: 0,
      salt: cache_salt,
      adapter: model,
      isStop: (token) => stop_token_ids.includes(token) || (!ignore_eos && token === this.endToken),
      ...(body.stream && {
        told: (part) => {
          numTold += part.tokens.length;
          stream({
            request_id: `${prefix}${request_id}`,
            choices: [
              { index: 0, token_ids: part.tokens, finish_reason: null, logprobs: { content: contentOf(part) } },
            ],
          });
        },
      }),
    });
    const content = contentOf({ tokens, logprobs });
    if (sampling_params.logprobs > 0)
      for (const [at, one] of content.entries()) one.top_logprobs = [{ token: "", logprob: at === 0 ? topLogprob : 0 }];
    const weight_versions = this.options.isUnlabelled
      ? undefined
      : [{ version: this.label, start: 0, end: tokens.length }];
    if (body.stream) {
      const last = { index: 0, token_ids: tokens.slice(numTold), finish_reason: reason, weight_versions };
      if (last.token_ids.length === 0) return { isStream: true };
      stream({ choices: [{ ...last, logprobs: { content: content.slice(numTold) } }] });
      return { isStream: true };
    }
    return {
      body: {
        request_id: `${prefix}${request_id}`,
        choices: [
          {
            index: 0,
            token_ids: tokens,
            finish_reason: reason,
            logprobs: { content },
            weight_versions,
          },
        ],
      },
    };
  }
}
