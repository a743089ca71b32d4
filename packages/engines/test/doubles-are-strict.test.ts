/**
 * What the doubles of SGLang and vLLM refuse, as the servers do: a double that became lenient would let the adapters ask for what no
 * server takes.
 */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { SglangDouble, tinyWeights, VllmDouble, writeTinyModel } from "@treadle/engines/testing";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";

const sizes = { vocabSize: 7, contextLength: 6 };
const key = "of-the-server";

let folder: string;
let model: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-doubles-"));
  model = join(folder, "tiny");
  await writeTinyModel(model, sizes, tinyWeights(sizes, 1));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

type Body = Record<string, unknown> & { sampling_params: Record<string, unknown> };

const kinds = {
  sglang: {
    Double: SglangDouble,
    generate: "/generate",
    tokens: "input_ids",
    body: (id: string): Body => ({
      rid: id,
      input_ids: [1, 2],
      sampling_params: {
        ...{ max_new_tokens: 3, temperature: 1, top_p: 1, top_k: -1, min_p: 0 },
        ...{ stop_token_ids: [], ignore_eos: true, sampling_seed: 5 },
      },
      return_logprob: true,
      stream: false,
      extra_key: "a",
    }),
    pause: ["/pause_generation", { mode: "abort" }],
    resume: ["/continue_generation", {}],
    load: ["/update_weights_from_disk", () => ({ model_path: model })],
    flush: ["/flush_cache", undefined],
    sleep: ["/release_memory_occupation", {}],
    wake: ["/resume_memory_occupation", {}],
  },
  vllm: {
    Double: VllmDouble,
    generate: "/inference/v1/generate",
    tokens: "token_ids",
    body: (id: string): Body => ({
      request_id: id,
      token_ids: [1, 2],
      sampling_params: {
        ...{ n: 1, max_tokens: 3, temperature: 1, top_p: 1, top_k: -1, min_p: 0 },
        ...{ stop_token_ids: [], ignore_eos: true, seed: 5, logprobs: 0, detokenize: false },
      },
      stream: false,
      cache_salt: "a",
    }),
    pause: ["/pause?mode=abort", undefined],
    resume: ["/resume", undefined],
    load: ["/collective_rpc", () => ({ method: "reload_weights", kwargs: { weights_path: model } })],
    flush: ["/reset_prefix_cache", undefined],
    sleep: ["/sleep?level=1", undefined],
    wake: ["/wake_up", undefined],
  },
} as const;

describe.each(Object.entries(kinds))("a double of %s", (kind, server) => {
  let double: SglangDouble | VllmDouble;
  beforeEach(async () => {
    double = await new server.Double({ model, apiKey: key }).start();
    return () => double.kill();
  });

  const post = async (path: string, body?: unknown, given: string | undefined = key): Promise<number> => {
    const answer = await fetch(double.url + path, {
      method: "POST",
      headers: { "content-type": "application/json", ...(given && { authorization: `Bearer ${given}` }) },
      ...(body !== undefined && { body: JSON.stringify(body) }),
    });
    await answer.arrayBuffer();
    return answer.status;
  };
  const ask = ([path, body]: readonly [string, unknown]) => post(path, typeof body === "function" ? body() : body);
  const generate = (changes: Record<string, unknown> = {}, sampling: Record<string, unknown> = {}, id = "r") => {
    const body = server.body(id);
    return post(server.generate, { ...body, ...changes, sampling_params: { ...body.sampling_params, ...sampling } });
  };

  test("takes what the adapter asks for, and refuses one field more, less or of another kind", async () => {
    expect(await generate()).toBe(200);
    const wrong: [Record<string, unknown>, Record<string, unknown>][] = [
      [{ priority: 1 }, {}],
      [{ stream: 1 }, {}],
      [{ [server.tokens]: [] }, {}],
      [{ [server.tokens]: ["1"] }, {}],
      [{ [server.tokens]: undefined }, {}],
      [{}, { top_p: 0.9 }],
      [{}, { top_k: 5 }],
      [{}, { temperature: -1 }],
      [{}, { presence_penalty: 0 }],
      [{}, { ignore_eos: undefined }],
    ];
    for (const [changes, sampling] of wrong) {
      const status = await generate(changes, sampling);
      expect([changes, sampling, status >= 400 && status < 500]).toEqual([changes, sampling, true]);
    }
    expect(await post("/nowhere", {})).toBe(404);
  });

  test("refuses tokens beyond vocabulary and context", async () => {
    expect(await generate({ [server.tokens]: [sizes.vocabSize] })).toBe(400);
    expect(await generate({ [server.tokens]: [1, 2, 3, 4] })).toBe(400); // with three to come
    expect(await generate({ [server.tokens]: [1, 2, 3] })).toBe(200);
  });

  test("asks for its key where the server does", async () => {
    for (const given of [undefined, "guessed"])
      expect(await post(server.generate, server.body("r"), given ?? "")).toBe(401);
    // vLLM's key leaves control routes open.
    expect(await post(server.pause[0], server.pause[1], "")).toBe(kind === "vllm" ? 200 : 401);
  });

  test("has phases: what is out of turn breaks", async () => {
    double.hold();
    const running = generate({}, {}, "busy");
    await double.running(1);
    expect(await generate({}, {}, "busy")).toBe(400); // one of that name runs
    expect(await ask(server.flush)).toBe(400);
    expect(await ask(server.sleep)).toBeGreaterThanOrEqual(400);
    if (kind === "vllm") expect(await ask(server.load)).toBe(500); // the scheduler runs
    expect(await ask(server.pause)).toBe(200); // ends what runs
    expect(await running).toBe(200);
    if (kind === "vllm") expect(await post("/weight_checker", { action: "checksum" })).toBe(409);
    expect(await ask(server.load)).toBe(200);
    expect(await ask(server.flush)).toBe(200);
    double.letGo();
    expect(await ask(server.resume)).toBe(200);
    expect(await ask(server.sleep)).toBe(200);
    expect(await generate()).toBe(500); // no weights, no cache
    expect(await ask(server.wake)).toBe(200);
    expect(await generate()).toBe(500); // what it had is gone
    for (const each of [server.pause, server.load, server.flush, server.resume]) expect(await ask(each)).toBe(200);
    expect(await generate()).toBe(200);
    if (kind === "sglang") expect(await post(server.wake[0], { tags: ["weights"] })).toBe(500); // they were not released
  });

  test("serves nothing by weights that its memory lost, until it has loaded them again", async () => {
    expect(await ask(server.sleep)).toBe(200);
    expect(await ask(server.load)).toBeGreaterThanOrEqual(400); // into memory that is released
  });
});
