/** Servers, folders and configurations that cannot be used are refused at start, with what would help. */
import { mkdir, mkdtemp, readdir, readFile, rm, stat, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ServerEngine, type SglangConfig, type VllmConfig } from "@treadle/engines";
import {
  type DoubleOptions,
  type ServerDouble,
  SglangDouble,
  tinyWeights,
  VllmDouble,
  writeTinyModel,
} from "@treadle/engines/testing";
import fc from "fast-check";
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from "vitest";
import type { z } from "zod";
import { judgeLogprobs } from "../src/server/probe.ts";
import { readTensorInfos, readTensors, writeTensors } from "../src/server/safetensors.ts";
import { conformingModel } from "../src/testing/conformance.ts";

const model = { ...conformingModel, layers: 1, width: 8, heads: 1 };
let folder: string;
let tiny: string;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-refusals-"));
  tiny = join(folder, "tiny");
  await writeTinyModel(tiny, conformingModel, tinyWeights(conformingModel, 1));
});
afterAll(() => rm(folder, { recursive: true, force: true }));

type Kind = "sglang" | "vllm";
type Changes = Partial<Omit<z.input<typeof SglangConfig> | z.input<typeof VllmConfig>, "kind">>;
const doubles: ServerDouble[] = [];
afterEach(async () => {
  for (const double of doubles.splice(0)) await double.kill();
});

async function serve(kind: Kind, options: Partial<DoubleOptions> = {}): Promise<ServerDouble> {
  const double = await new { sglang: SglangDouble, vllm: VllmDouble }[kind]({ model: tiny, ...options }).start();
  doubles.push(double);
  return double;
}

async function attach(
  kind: Kind,
  options: Partial<DoubleOptions> = {},
  changes: Changes = {},
  own: Partial<typeof model> = {},
): Promise<readonly string[]> {
  const double = await serve(kind, options);
  const warnings: string[] = [];
  const config = { kind, url: double.url, model: tiny, weightsFolder: join(folder, "weights"), ...changes };
  const engine = await ServerEngine.create({ ...model, ...own }, config, {
    warn: (message) => void warnings.push(message),
  });
  await engine.close();
  return warnings;
}

const refused = (message: string | RegExp) => ({ code: "config.invalid", message: expect.stringMatching(message) });

describe("a server without a needed route is named with what adds it, all gaps at once", () => {
  test.each([
    ["vllm", "/inference/v1/generate", "--enable-scale-out"],
    ["vllm", "/collective_rpc", "VLLM_SERVER_DEV_MODE=1"],
    ["vllm", "/weight_info", "VLLM_SERVER_DEV_MODE=1"],
    ["vllm", "/pause", "VLLM_SERVER_DEV_MODE=1"],
    ["sglang", "/update_weights_from_disk", "newer SGLang"],
    ["sglang", "/abort_request", "newer SGLang"],
  ] as const)("%s without %s", async (kind, path, remedy) => {
    await expect(attach(kind, { without: [path, "/flush_cache", "/reset_prefix_cache"] })).rejects.toMatchObject({
      code: "config.invalid",
      message: expect.stringMatching(new RegExp(`'${path}'.*${remedy}[\\s\\S]*(flush|reset_prefix)_cache`)),
    });
  });

  test("a checksum may be missing: what is then not checked is said", async () => {
    const path = { sglang: "/weights_checker", vllm: "/weight_checker" };
    for (const kind of ["sglang", "vllm"] as const)
      expect((await attach(kind, { without: [path[kind]] })).join()).toContain("by their label alone");
  });
});

describe.each(["sglang", "vllm"] as const)("of kind %s", (kind) => {
  test("shared devices need a server that gives its memory back", async () => {
    const flag = kind === "vllm" ? /--enable-sleep-mode/ : /--enable-memory-saver/;
    const shared = { sharedMemoryMiB: 10 };
    await expect(attach(kind, { canRelease: false }, shared)).rejects.toMatchObject(refused(flag));
    await attach(kind, { canRelease: false });
  });

  test("a server of another model, or with a shorter context", async () => {
    await expect(attach(kind, { architecture: "OtherForCausalLM" })).rejects.toMatchObject(
      refused(/'OtherForCausalLM' where engine.model is a 'TinyForCausalLM'/),
    );
    await expect(attach(kind, { contextLength: 5 })).rejects.toMatchObject(refused(/'6' where the server takes '5'/));
  });

  test("vocabularies that differ: of the configuration, and of the server", async () => {
    await expect(attach(kind, {}, {}, { vocabSize: 8 })).rejects.toMatchObject(
      refused(/'8' where engine.model has a vocabulary of '7'/),
    );
    const larger = join(folder, `${kind}-larger`);
    const options = { ...conformingModel, vocabSize: 9 };
    await writeTinyModel(larger, options, tinyWeights(options, 1));
    await expect(attach(kind, { model: larger })).rejects.toMatchObject({
      code: "config.invalid",
      message: expect.stringContaining("size mismatch for model.embed_tokens.weight"),
    });
  });

  test("a context that is longer than the model's", async () => {
    await expect(attach(kind, {}, {}, { contextLength: 7 })).rejects.toMatchObject(
      refused(/'7' where engine.model reads '6'/),
    );
  });

  test("PGR1: a variable that the agent does not let configurations name; nothing of it leaves", async () => {
    const rights = { node: "a", project: folder, interpreters: [], programs: [], models: [], variables: [] };
    vi.stubEnv("TREADLE_PROGRAM_RIGHTS", JSON.stringify(rights));
    vi.stubEnv("TREADLE_TEST_SECRET", "of the agent's user");
    const asked = attach(kind, { apiKey: "of the agent's user" }, { apiKeyVariable: "TREADLE_TEST_SECRET" });
    await expect(asked).rejects.toMatchObject({ code: "node.forbidden" });
    const allowed = JSON.stringify({ ...rights, variables: ["TREADLE_TEST_SECRET"] });
    vi.stubEnv("TREADLE_PROGRAM_RIGHTS", allowed);
    await attach(kind, { apiKey: "of the agent's user" }, { apiKeyVariable: "TREADLE_TEST_SECRET" });
    vi.unstubAllEnvs();
  });

  test("a key: missing, wrong, not set, and control routes that need none", async () => {
    process.env["TREADLE_TEST_KEY"] = "secret";
    process.env["TREADLE_TEST_WRONG"] = "guessed";
    const options = { apiKey: "secret" };
    for (const changes of [{}, { apiKeyVariable: "TREADLE_TEST_WRONG" }])
      await expect(attach(kind, options, changes)).rejects.toMatchObject(refused(/apiKeyVariable/));
    await expect(attach(kind, options, { apiKeyVariable: "TREADLE_TEST_NONE" })).rejects.toMatchObject(
      refused(/'TREADLE_TEST_NONE', which is not set/),
    );
    const warnings = (await attach(kind, options, { apiKeyVariable: "TREADLE_TEST_KEY" })).join();
    if (kind === "vllm") expect(warnings).toContain("'/collective_rpc'");
    else expect(warnings).not.toContain("without a key");
    expect((await attach(kind)).join()).toContain("without a key");
  });

  test("several servers behind one address, of which each knows its own weights", async () => {
    const double = await serve(kind);
    const [path, body] =
      kind === "vllm" ? ["/weight_info", { weight_version: "7" }] : ["/model_info", { weight_version: "7" }];
    double.inject(path, { type: "answer", body }, 100);
    const created = ServerEngine.create(model, { kind, url: double.url, model: tiny });
    await expect(created).rejects.toMatchObject(refused(/several servers share its address/));
  });

  test("no server at all", async () => {
    const double = await serve(kind);
    const { url } = double;
    await double.kill();
    const created = ServerEngine.create(model, { kind, url, model: tiny });
    await expect(created).rejects.toMatchObject({
      code: "service.failed",
      message: expect.stringContaining("ECONNREFUSED"),
    });
  });

  test("addresses beyond this machine, and fewer than ranks", async () => {
    const create = (url: string | string[], rank: number) =>
      ServerEngine.create(model, { kind, url, model: tiny }, { rank });
    await expect(create("http://192.0.2.1:8000", 0)).rejects.toMatchObject(refused(/allowRemote/));
    await expect(create("http://127.0.0.1:1", 1)).rejects.toMatchObject(refused(/'1' addresses and rank '1'/));
    await expect(create("file:///tmp", 0)).rejects.toMatchObject(refused(/url/i));
  });
});

describe("a model's folder", () => {
  const spoiled = async (name: string, spoil: (path: string) => Promise<unknown>): Promise<string> => {
    const path = join(folder, name);
    await writeTinyModel(path, conformingModel, tinyWeights(conformingModel, 1));
    await spoil(path);
    return path;
  };
  test.each([
    ["configuration", (path: string) => rm(join(path, "config.json")), /no config.json/],
    ["readable configuration", (path: string) => writeFile(join(path, "config.json"), "{"), /cannot be used/],
    ["tokenizer", (path: string) => rm(join(path, "tokenizer.json")), /no tokenizer/],
    ["weights", (path: string) => rm(join(path, "model.safetensors")), /no weights in safetensors/],
    ["whole weights", (path: string) => truncate(join(path, "model.safetensors"), 400), /no whole safetensors file/],
    ["whole header", (path: string) => truncate(join(path, "model.safetensors"), 20), /no whole safetensors file/],
    ["anything", (path: string) => rm(path, { recursive: true }), /cannot be read/],
  ])("without %s", async (name, spoil, message) => {
    const path = await spoiled(`without ${name}`, spoil);
    await expect(attach("vllm", {}, { model: path })).rejects.toMatchObject(refused(message));
  });
});

test("weights that cannot be written are refused at start", async () => {
  const path = join(folder, "a-file");
  await writeFile(path, "");
  await expect(attach("vllm", {}, { weightsFolder: path })).rejects.toMatchObject(refused(/weightsFolder/));
});

test("what a predecessor has left goes, and others may not read what is written", async () => {
  const weightsFolder = join(folder, "left");
  const double = await serve("vllm");
  const create = () => ServerEngine.create(model, { kind: "vllm", url: double.url, model: tiny, weightsFolder });
  const killed = await create();
  await killed.loadWeights(tinyWeights(conformingModel, 2, 1));
  const [name] = await readdir(weightsFolder);
  const own = join(weightsFolder, name!);
  expect((await stat(own)).mode & 0o777).toBe(0o700);
  await mkdir(join(own, "version-1-2.partial"));
  const successor = await create();
  expect(await readdir(own)).toEqual([]);
  await successor.close();
  await killed.close();
});

describe("safetensors", () => {
  const float32 = fc.float({ noNaN: true, noDefaultInfinity: true, min: Math.fround(-1e30), max: Math.fround(1e30) });
  const tensor = fc
    .tuple(fc.array(fc.integer({ min: 1, max: 4 }), { maxLength: 3 }), fc.infiniteStream(float32))
    .map(([shape, numbers]) => {
      const size = shape.reduce((a, b) => a * b, 1);
      return { shape, data: Float32Array.from({ length: size }, () => numbers.next().value!) };
    });

  test("what is written is read: exactly, or to the nearest bfloat16", async () => {
    let count = 0;
    await fc.assert(
      fc.asyncProperty(fc.array(tensor, { minLength: 1, maxLength: 4 }), fc.boolean(), async (tensors, isHalf) => {
        const path = join(folder, `tensors-${count++}.safetensors`);
        const dtype = isHalf ? "BF16" : "F32";
        const named = tensors.map((one, index) => ({ ...one, name: `ü.${index}`, dtype }) as const);
        await writeTensors(path, named);
        const read = await readTensors(path);
        const infos = await readTensorInfos(path);
        expect(read.map(({ name, shape }) => [name, shape])).toEqual(named.map(({ name, shape }) => [name, shape]));
        expect([...infos.values()]).toEqual(named.map(({ shape }) => ({ dtype, shape })));
        read.forEach(({ data }, index) => {
          const written = named[index]!.data;
          data.forEach((number, at) => {
            // Half of the last of 8 bits; below the smallest normal number, of its step.
            const step = isHalf ? Math.max(Math.abs(written[at]!) * 2 ** -8, 2 ** -134) : 0;
            expect(Math.abs(number - written[at]!)).toBeLessThanOrEqual(step);
          });
        });
        const bytes = await readFile(path);
        expect((8 + Number(bytes.readBigUInt64LE())) % 8).toBe(0);
      }),
      { numRuns: 40 },
    );
  });

  test("a file that is cut short anywhere is refused", async () => {
    const path = join(folder, "cut.safetensors");
    const { size } = await stat(join(tiny, "model.safetensors"));
    await fc.assert(
      fc.asyncProperty(fc.nat(size - 1), async (length) => {
        await writeFile(path, (await readFile(join(tiny, "model.safetensors"))).subarray(0, length));
        await expect(readTensorInfos(path)).rejects.toMatchObject({ code: "config.invalid" });
      }),
      { numRuns: 40 },
    );
  });
});

test("the mode of log-probabilities is seen at two temperatures, but not of a uniform distribution", () => {
  expect(judgeLogprobs(-0.5, -1.5, 7)).toBe(true);
  expect(judgeLogprobs(-0.5, -0.5, 7)).toBe(false);
  expect(judgeLogprobs(-Math.log(7), -Math.log(7), 7)).toBeUndefined();
  expect(judgeLogprobs(-1e-5, -0.2, 7)).toBe(true);
});
