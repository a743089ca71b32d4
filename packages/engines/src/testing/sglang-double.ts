import { z } from "zod";
import { type Answered, type Memory, Refusal, type Route, ServerDouble } from "./server-double.ts";

const Generate = z.strictObject({
  rid: z.string(),
  input_ids: z.array(z.int().nonnegative()).min(1),
  sampling_params: z.strictObject({
    max_new_tokens: z.int().nonnegative(),
    temperature: z.number().nonnegative(),
    top_p: z.literal(1),
    top_k: z.literal(-1),
    min_p: z.literal(0),
    stop_token_ids: z.array(z.int()),
    ignore_eos: z.boolean(),
    sampling_seed: z.int().min(0).max(0x7fffffff),
  }),
  return_logprob: z.literal(true),
  top_logprobs_num: z.literal(1).optional(),
  stream: z.boolean(),
  extra_key: z.string().min(1),
  lora_path: z.string().min(1).optional(),
});
const AdapterName = z.strictObject({ lora_name: z.string().min(1) });
const AdapterLoad = AdapterName.extend({ lora_path: z.string().startsWith("/"), pinned: z.boolean().optional() });
const Update = z.strictObject({
  model_path: z.string(),
  load_format: z.enum(["auto", "safetensors"]).optional(),
  weight_version: z.string().optional(),
  flush_cache: z.boolean().default(true),
  abort_all_requests: z.boolean().default(false),
});
const Tags = z.strictObject({ tags: z.array(z.enum(["weights", "kv_cache", "cuda_graph"])).optional() });
const memoryOf = ({ tags }: z.infer<typeof Tags>): readonly Memory[] | undefined =>
  tags && [...new Set(tags.map((tag): Memory => (tag === "weights" ? "weights" : "cache")))];

/** SGLang's routes. Without stop tokens it ends at the model's own end, and with `ignore_eos` at no stop token at all. */
export class SglangDouble extends ServerDouble {
  protected readonly noSuchAdapter = 400;

  protected errorBody(message: string): unknown {
    return { object: "error", message };
  }

  protected routes(): Readonly<Record<string, Route>> {
    const guarded = true;
    return {
      "GET /health": { isGuarded: false, handle: () => ({}) },
      "GET /model_info": {
        isGuarded: guarded,
        handle: () => ({
          body: { model_path: this.options.model, weight_version: this.named(), architectures: [this.architecture] },
        }),
      },
      "GET /server_info": {
        isGuarded: guarded,
        handle: () => ({
          body: {
            enable_memory_saver: this.options.canRelease ?? true,
            enable_deterministic_inference: this.options.isDeterministic ?? true,
            enable_lora: this.options.adapters ? true : null,
            incremental_streaming_output: !this.options.isCumulative,
            ...(this.options.weightsGiB !== undefined && {
              internal_states: [{ memory_usage: { weight: this.options.weightsGiB, kvcache: 1, token_capacity: 1 } }],
            }),
          },
        }),
      },
      "GET /v1/models": {
        isGuarded: guarded,
        handle: () => ({ body: { data: [{ id: this.options.name ?? "tiny", max_model_len: this.contextLength }] } }),
      },
      "POST /generate": {
        isGuarded: guarded,
        body: Generate,
        handle: (body: z.infer<typeof Generate>, _, stream) => this.#generate(body, stream),
      },
      "POST /abort_request": {
        isGuarded: guarded,
        body: z.strictObject({ rid: z.string() }),
        handle: ({ rid }: { readonly rid: string }) => {
          // As the scheduler compares them.
          this.abortWhere((id) => id.startsWith(rid));
          return {};
        },
      },
      "POST /pause_generation": {
        isGuarded: guarded,
        body: z.strictObject({ mode: z.enum(["abort", "retract", "in_place"]) }),
        handle: async ({ mode }: { readonly mode: string }) => {
          if (mode !== "abort") throw new Refusal(501, `no test has asked for pausing by '${mode}'`);
          await this.pauseAll();
          return { body: { message: "Generation paused successfully.", status: "ok" } };
        },
      },
      "POST /continue_generation": {
        isGuarded: guarded,
        body: z.strictObject({ torch_empty_cache: z.boolean().optional() }),
        handle: () => {
          this.resumeAll();
          return { body: { message: "Generation continued successfully.", status: "ok" } };
        },
      },
      "POST /update_weights_from_disk": {
        isGuarded: guarded,
        body: Update,
        handle: (body: z.infer<typeof Update>) => this.#update(body),
      },
      "POST /flush_cache": {
        isGuarded: guarded,
        handle: () => {
          this.flush();
          return { body: "Cache flushed.\n" };
        },
      },
      "POST /weights_checker": {
        isGuarded: guarded,
        body: z.strictObject({ action: z.literal("checksum") }),
        handle: () => ({ body: { success: true, message: "Success", ranks: [{ checksum: this.checksum() }] } }),
      },
      "POST /load_lora_adapter": {
        isGuarded: guarded,
        body: AdapterLoad,
        handle: async ({ lora_name, lora_path }: z.infer<typeof AdapterLoad>) => {
          try {
            await this.loadAdapter(lora_name, lora_path);
          } catch (error) {
            return { status: 400, body: { success: false, error_message: (error as Error).message } };
          }
          return { body: { success: true, error_message: "", loaded_adapters: this.adapters } };
        },
      },
      "POST /unload_lora_adapter": {
        isGuarded: guarded,
        body: AdapterName,
        handle: ({ lora_name }: z.infer<typeof AdapterName>) => {
          this.unloadAdapter(lora_name);
          return { body: { success: true, error_message: "", loaded_adapters: this.adapters } };
        },
      },
      "POST /release_memory_occupation": {
        isGuarded: guarded,
        body: Tags,
        handle: (body: z.infer<typeof Tags>) => {
          if (this.options.canRelease === false) throw new Refusal(400, "memory saver is not enabled");
          this.fallAsleep(memoryOf(body));
          return {};
        },
      },
      "POST /resume_memory_occupation": {
        isGuarded: guarded,
        body: Tags,
        handle: (body: z.infer<typeof Tags>) => {
          const memory = memoryOf(body);
          const awake = memory?.find((each) => !this.asleep.has(each));
          if (awake !== undefined) throw new Refusal(500, `KeyError: '${awake}' was not released: the engine is dead`);
          this.wakeUp(memory);
          return {};
        },
      },
    };
  }

  /** An event of a request that is ended has the last token again, as a real server's has. */
  async #generate(body: z.infer<typeof Generate>, stream: (event: unknown) => void) {
    this.generations.push(body);
    const sent: { readonly tokens: number[]; readonly logprobs: number[] } = { tokens: [], logprobs: [] };
    const eventOf = (part: Pick<Answered, "tokens" | "logprobs">, finish_reason: object | null) => {
      sent.tokens.push(...part.tokens);
      sent.logprobs.push(...part.logprobs);
      const shown = this.options.isCumulative ? sent : part;
      return {
        text: "",
        output_ids: shown.tokens,
        meta_info: {
          id: rid,
          finish_reason,
          completion_tokens: sent.tokens.length,
          ...(!this.options.isUnlabelled && { weight_version: this.label }),
          output_token_logprobs: shown.tokens.map((token, at) => [shown.logprobs[at], token, null]),
          output_token_logprobs_length: sent.tokens.length,
        },
      };
    };
    const { rid, input_ids, sampling_params, extra_key, lora_path, top_logprobs_num } = body;
    const { max_new_tokens, temperature, stop_token_ids, ignore_eos, sampling_seed } = sampling_params;
    const { tokens, logprobs, reason, topLogprob } = await this.complete({
      id: rid,
      tokens: input_ids,
      maxTokens: max_new_tokens,
      temperature,
      seed: sampling_seed,
      drawsFrom: input_ids.length,
      salt: extra_key,
      adapter: lora_path,
      isStop: (token) => !ignore_eos && (stop_token_ids.includes(token) || token === this.endToken),
      ...(body.stream && { told: (part) => stream(eventOf(part, null)) }),
    });
    const numSent = sent.tokens.length;
    if (body.stream && reason === "abort") {
      const { meta_info } = eventOf({ tokens: [], logprobs: [] }, { type: reason, message: "Aborted" });
      stream({ text: "", output_ids: tokens.slice(-1), meta_info });
      return { isStream: true };
    }
    if (body.stream) {
      stream(eventOf({ tokens: tokens.slice(numSent), logprobs: logprobs.slice(numSent) }, { type: reason }));
      return { isStream: true };
    }
    return {
      body: {
        text: "",
        output_ids: tokens,
        meta_info: {
          id: rid,
          finish_reason: reason === "stop" ? { type: reason, matched: tokens.at(-1) } : { type: reason },
          prompt_tokens: input_ids.length,
          completion_tokens: tokens.length,
          ...(!this.options.isUnlabelled && { weight_version: this.label }),
          output_token_logprobs: tokens.map((token, at) => [logprobs[at], token, null]),
          ...(top_logprobs_num && {
            output_top_logprobs: tokens.map((token, at) => [[at === 0 ? topLogprob : 0, token, null]]),
          }),
        },
      },
    };
  }

  async #update({ model_path, weight_version, flush_cache }: z.infer<typeof Update>) {
    try {
      await this.load(model_path);
    } catch (error) {
      const message = `Failed to update weights: ${(error as Error).message}.`;
      return { status: 400, body: { success: false, message, num_paused_requests: 0 } };
    }
    if (flush_cache) this.flush();
    if (weight_version !== undefined) this.label = weight_version;
    return { body: { success: true, message: "Succeeded to update model weights.", num_paused_requests: 0 } };
  }
}
