/** Adapters that a trainer has published, which a server loads alone, over the weights that it serves (AS2, AS3, AS4, AS7, AS8). */
import { mkdir, mkdtemp, readdir, rm, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { crc32, type HostFiles, type Sampling, type WeightTicket } from "@treadle/contracts";
import { ServerEngine, weightsIdOf } from "@treadle/engines";
import {
  type DoubleOptions,
  type ServerDouble,
  SglangDouble,
  TinyModel,
  tinyWeights,
  VllmDouble,
  writeTinyModel,
} from "@treadle/engines/testing";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { valueHeadName } from "../src/embedded/transformer-config.ts";
import { normal } from "../src/random.ts";
import { type Tensor, writeTensors } from "../src/server/safetensors.ts";
import { conformingModel } from "../src/testing/conformance.ts";
import { sealTicket } from "../src/weight-ticket.ts";

const model = { ...conformingModel, layers: 1, width: 8, heads: 1 };
const sampling: Sampling = { maxTokens: 3, temperature: 1, stopTokens: [], seed: 9 };
const prompts = [Int32Array.of(1, 2), Int32Array.of(4, 5, 6)];
const tokens = [1, 2, 3, 4];
const nonce = "0123456789abcdef".repeat(2);
const [rank, alpha, width] = [2, 3, 6];
const layer = "model.layers.0.mlp.up_proj";
const own = tinyWeights(conformingModel, 1);
const routes = {
  sglang: { load: "/load_lora_adapter", whole: "/update_weights_from_disk" },
  vllm: { load: "/v1/load_lora_adapter", whole: "/collective_rpc" },
} as const;
type Kind = keyof typeof routes;

let numStores = 0;
let folder: string;
let hostFiles: HostFiles;
beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-adapters-"));
  await mkdir(join(folder, "published"));
  hostFiles = {
    folder: join(folder, "published"),
    ownPrefix: "treadle-a.1-",
    leftPrefix: "treadle-a.left-",
    runPrefix: "treadle-a.",
  };
  await writeTinyModel(join(folder, "tiny"), conformingModel, own);
});
afterAll(() => rm(folder, { recursive: true, force: true }));

const opened: { readonly engine: ServerEngine; readonly double: ServerDouble }[] = [];
afterEach(async () => {
  for (const { engine, double } of opened.splice(0)) {
    await double.kill();
    await engine.close();
  }
});

const settings = (kind: Kind, double: ServerDouble) => ({
  ...{ kind, url: double.url, model: join(folder, "tiny"), weightsFolder: join(folder, "weights") },
  trainer: { kind: "torch" as const, lora: { rank, alpha, targets: ["up_proj"] } },
  loads: "adapter" as const,
});

async function start(kind: Kind, options: Partial<DoubleOptions> = {}, changes: object = {}) {
  const given = { model: join(folder, "tiny"), adapters: { maxRank: rank, most: 3 }, ...options };
  const double = await new { sglang: SglangDouble, vllm: VllmDouble }[kind](given).start();
  try {
    const engine = await ServerEngine.create(model, { ...settings(kind, double), ...changes }, { hostFiles });
    opened.push({ engine, double });
    return { engine, double };
  } catch (error) {
    await double.kill();
    throw error;
  }
}

const tensor = (name: string, shape: number[], seed: number): Tensor => ({
  name,
  shape,
  data: Float32Array.from({ length: shape[0]! * shape[1]! }, (_, at) => normal(seed, 7, at)),
});
const adapterOf = (seed: number, name = layer): Tensor[] => [
  tensor(`base_model.model.${name}.lora_A.weight`, [rank, width], seed),
  tensor(`base_model.model.${name}.lora_B.weight`, [width, rank], seed + 1),
];

/** What a trainer's process does, in a store of its own: merged weights, and beside them the adapter. */
async function publish(seed: number, policyVersion: number, adapter: Tensor[] = adapterOf(seed)) {
  const store = join(hostFiles.folder, `treadle-a.7-weights-${++numStores}`);
  const at = join(store, "version-1-1");
  await mkdir(at, { recursive: true, mode: 0o700 });
  await writeFile(join(store, "nonce"), nonce);
  const config = Buffer.from(
    JSON.stringify({
      ...{ peft_type: "LORA", r: rank, lora_alpha: alpha, target_modules: ["up_proj"], bias: "none" },
      ...{ use_rslora: false, use_dora: false, modules_to_save: null },
    }),
  );
  await writeFile(join(at, "adapter_config.json"), config, { mode: 0o600 });
  const write = async (name: string, tensors: readonly Tensor[]) => {
    const checksums = await writeTensors(
      join(at, name),
      tensors.map((each) => ({ ...each, dtype: "F32" as const })),
    );
    return tensors.map(({ name: of, shape }) => ({
      name: of,
      shape: [...shape],
      dtype: "F32" as const,
      crc32: checksums.get(of)!,
    }));
  };
  const head = { name: valueHeadName, shape: [1, width], data: new Float32Array(width) };
  const ticket: WeightTicket = sealTicket({
    ...{ policyVersion, store, nonce, folder: "version-1-1" },
    tensors: await write("model.safetensors", [...own.parameters, head]),
    adapter: { rank, tensors: await write("adapter_model.safetensors", adapter), configCrc32: crc32(config) },
  });
  return { ticket, at };
}

/** Worked out here, without the double's own sums. */
function scoredBy(seed: number): Float32Array {
  const [a, b] = adapterOf(seed) as [Tensor, Tensor];
  const parameters = own.parameters.map((each) => {
    if (each.name !== `${layer}.weight`) return each;
    const data = each.data.map((weight, at) => {
      const [row, column] = [Math.floor(at / width), at % width];
      let change = 0;
      for (let k = 0; k < rank; k++) change += b.data[row * rank + k]! * a.data[k * width + column]!;
      return weight + (alpha / rank) * change;
    });
    return { ...each, data };
  });
  return new TinyModel(parameters).score(tokens, 1);
}

const scored = (double: ServerDouble) => double.score(tokens, 1, double.adapters.at(-1));
const asked = (double: ServerDouble) =>
  (double.generations as { lora_path?: string; model?: string; extra_key?: string; cache_salt?: string }[]).slice(2);
const posts = (double: ServerDouble, path: string) => double.calls.filter((call) => call === `POST ${path}`).length;
const filesOfServer = async () => {
  const [place] = await readdir(join(folder, "weights"));
  return readdir(join(folder, "weights", place!));
};

describe.each(["sglang", "vllm"] as const)("a server of kind %s", (kind) => {
  test("AS8 is given adapters alone, one after another: requests name theirs, and the one before goes", async () => {
    const { engine, double } = await start(kind);
    await engine.generate(prompts, sampling);
    expect(asked(double).map(({ lora_path, model: named }) => lora_path ?? named)).toEqual([undefined, undefined]);
    for (const version of [1, 2, 3, 4]) {
      const { ticket } = await publish(10 * version, version);
      expect(await engine.opens(ticket)).toBe(true);
      await engine.loadTicket(ticket);
      expect([engine.policyVersion, engine.weightsId]).toEqual([version, weightsIdOf(ticket)]);
      const completions = await engine.generate(prompts, sampling);
      expect(new Set(completions.map(({ policyVersion }) => policyVersion))).toEqual(new Set([version]));
      expect(scored(double)).toEqual(scoredBy(10 * version));
      const [last] = asked(double).slice(-1);
      expect(last!.lora_path ?? last!.model).toBe(double.adapters[0]);
      expect(double.adapters).toHaveLength(1);
      expect(await filesOfServer()).toEqual([expect.stringMatching(`^version-${version}-`)]);
    }
    expect(posts(double, routes[kind].whole)).toBe(1);
    // AS4: what one adapter has computed of a prompt is no other one's.
    expect(new Set(asked(double).map(({ extra_key, cache_salt }) => extra_key ?? cache_salt)).size).toBe(5);
  });

  test("a sampled token's log-probability is the adapter's", async () => {
    const { engine, double } = await start(kind);
    await engine.loadTicket((await publish(31, 1)).ticket);
    const [completion] = await engine.generate([Int32Array.of(1, 2)], sampling);
    const whole = [1, 2, ...completion!.tokens];
    const told = double.score(whole, 1, double.adapters[0]).slice(2);
    for (const [at, each] of completion!.logprobs.entries()) expect(each).toBeCloseTo(told[at]!, 5);
  });

  test.each([
    ["is refused half-way", { type: "status", status: 500, text: "out of memory" } as const],
    ["loses its connection", { type: "reset", isDone: true } as const],
    ["has half an answer", { type: "half" } as const],
  ])("AS2 an adapter whose load %s poisons the engine until a whole one", async (_, fault) => {
    const { engine, double } = await start(kind);
    await engine.loadTicket((await publish(41, 1)).ticket);
    double.inject(routes[kind].load, fault);
    const poisoned = { code: "engine.poisoned", message: expect.stringContaining("version '2'") };
    const { ticket } = await publish(42, 2);
    await expect(engine.loadTicket(ticket)).rejects.toMatchObject(poisoned);
    await expect(engine.generate(prompts, sampling)).rejects.toMatchObject(poisoned);
    expect(engine.policyVersion).toBe(1);
    await engine.loadTicket((await publish(43, 3)).ticket);
    expect((await engine.generate(prompts, sampling))[0]!.policyVersion).toBe(3);
    expect(scored(double)).toEqual(scoredBy(43));
    expect(double.adapters).toHaveLength(1); // what a lost answer had left is gone, too
  });

  test("AS3 a server that was restarted, or given other weights, gets the model's own again, and then the adapter", async () => {
    const { engine, double } = await start(kind);
    await engine.loadTicket((await publish(51, 1)).ticket);
    await double.kill();
    await double.start();
    expect((await engine.generate(prompts, sampling))[0]!.policyVersion).toBe(1);
    expect(scored(double)).toEqual(scoredBy(51));
    double.relabel("another client's");
    await engine.generate(prompts, sampling);
    expect(scored(double)).toEqual(scoredBy(51));
    expect(posts(double, routes[kind].whole)).toBe(3);
  });

  test("AS8 over whole weights that came as bytes, the model's own are loaded before an adapter", async () => {
    const { engine, double } = await start(kind);
    await engine.loadWeights(tinyWeights(conformingModel, 5, 1));
    expect(double.score(tokens)).toEqual(new TinyModel(tinyWeights(conformingModel, 5).parameters).score(tokens, 1));
    await engine.loadTicket((await publish(61, 2)).ticket);
    expect(scored(double)).toEqual(scoredBy(61));
    await engine.loadWeights(tinyWeights(conformingModel, 6, 3));
    await engine.generate(prompts, sampling);
    expect(asked(double).at(-1)).not.toHaveProperty("lora_path");
    expect(double.adapters).toEqual([]);
  });

  test("AS7 below an adapter, the model's own folder is not loaded again when its tensors are others than it had", async () => {
    const path = join(folder, `${kind}-own`);
    await writeTinyModel(path, conformingModel, own);
    const { engine, double } = await start(kind, { model: path }, { model: path });
    await engine.loadTicket((await publish(66, 1)).ticket);
    await double.kill();
    await double.start();
    await rm(join(path, "model.safetensors"));
    await writeTinyModel(path, { ...conformingModel, dtype: "BF16" }, own);
    await expect(engine.generate(prompts, sampling)).rejects.toThrow("are others than they were when it was opened");
    expect(posts(double, routes[kind].whole)).toBe(1);
  });

  test("of shared devices, a server that has slept gets weights and adapter again", async () => {
    const { engine, double } = await start(kind, {}, { sharedMemoryMiB: 64 });
    await engine.restore();
    await engine.loadTicket((await publish(71, 1)).ticket);
    await engine.release();
    await engine.restore();
    expect((await engine.generate(prompts, sampling))[0]!.policyVersion).toBe(1);
    expect(scored(double)).toEqual(scoredBy(71));
  });

  test("AS7 an adapter that is not as it was published, or of another model, is refused before the server hears of it", async () => {
    const { engine, double } = await start(kind);
    await engine.loadTicket((await publish(81, 1)).ticket);
    const loads = posts(double, routes[kind].load);
    const spoilt: readonly [string, (at: string) => Promise<unknown>][] = [
      ["no whole safetensors file", (at) => truncate(join(at, "adapter_model.safetensors"), 100)],
      [
        "lora_B.weight' has checksum",
        async (at) => {
          const [a, b] = adapterOf(82) as [Tensor, Tensor];
          await rm(join(at, "adapter_model.safetensors"));
          const other = { ...b, data: b.data.map((each, i) => (i === 3 ? each + 1 : each)) };
          await writeTensors(
            join(at, "adapter_model.safetensors"),
            [a, other].map((each) => ({ ...each, dtype: "F32" as const })),
          );
        },
      ],
      ["adapter_config.json' has checksum", (at) => writeFile(join(at, "adapter_config.json"), "{}")],
      ["not there any more", (at) => rm(join(at, "adapter_config.json"))],
    ];
    for (const [index, [told, spoil]] of spoilt.entries()) {
      const { ticket, at } = await publish(82, 20 + index);
      await spoil(at);
      await expect(engine.loadTicket(ticket), told).rejects.toMatchObject({
        code: "engine.weights-mismatch",
        message: expect.stringContaining(told),
      });
    }
    const strange: [string, Tensor[]][] = [
      ["takes no such tensor", adapterOf(83, "model.layers.9.mlp.up_proj")],
      ["has shape '2x6' where", adapterOf(83).map((each) => ({ ...each, shape: [2, 6] }))],
      ["takes no such tensor", [tensor("base_model.model.lora_C.weight", [2, 6], 1)]],
    ];
    for (const [index, [told, adapter]] of strange.entries())
      await expect(engine.loadTicket((await publish(84, 30 + index, adapter)).ticket)).rejects.toThrow(told);
    expect(posts(double, routes[kind].load)).toBe(loads);
    expect([engine.policyVersion, await filesOfServer()]).toEqual([1, [expect.stringMatching(/^version-1-/)]]);
    await engine.generate(prompts, sampling);
    expect(scored(double)).toEqual(scoredBy(81));
  });

  test("a larger rank than the server takes poisons by its own words; a trainer's file without adapter is not opened", async () => {
    const { engine } = await start(kind, { adapters: { maxRank: 1, most: 3 } });
    const { ticket } = await publish(91, 1);
    await expect(engine.loadTicket(ticket)).rejects.toThrow("LoRA rank 2 is greater than max_lora_rank 1");
    const { adapter: _, checksum: __, ...whole } = ticket;
    expect(await engine.opens(sealTicket(whole))).toBe(false);
  });

  test("what the server or the configuration lacks is said at the start, with the flag", async () => {
    await expect(start(kind, { adapters: undefined })).rejects.toThrow(
      /takes no adapters; start it with --enable-lora.*set engine.loads to 'weights'/,
    );
    await expect(start(kind, { without: [routes[kind].load] })).rejects.toThrow(
      `it has no '${routes[kind].load}', which loads adapters`,
    );
    await expect(start(kind, {}, { trainer: { kind: "torch" } })).rejects.toThrow(
      "set engine.trainer.lora, or engine.loads to 'weights'",
    );
    await start(kind, { adapters: undefined, without: [routes[kind].load] }, { loads: "weights" });
  });
});
