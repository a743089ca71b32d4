/** What an engine on PyTorch has trained, as a folder that transformers and PEFT's readers load (XP1 to XP3). */
import { execFileSync } from "node:child_process";
import { cp, mkdtemp, readdir, readFile, rm, stat, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { WeightTicket } from "@treadle/contracts";
import {
  type ExportOptions,
  exportModel,
  TorchConfig,
  TorchEngine,
  TransformerConfig,
  TransformerEngine,
} from "@treadle/engines";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { z } from "zod";
import { lacksTorch, python } from "../../../test/support/torch.ts";
import { inPython } from "../src/export/adapter.ts";
import { shardsOf } from "../src/export/export-model.ts";
import { readTensorInfos, readTensors } from "../src/server/safetensors.ts";
import { expectClose } from "./expect-close.ts";
import { randomBatch } from "./small-transformer.ts";

const reason = lacksTorch();
const sizes = { vocabSize: 7, layers: 2, width: 16, heads: 2, contextLength: 12, seed: 3 };
const tokens = Int32Array.of(1, 2, 3, 4, 5, 6);
const step = { learningRate: 0.05, scale: 0.1, maxGradNorm: 1 };
const loss = { type: "cross-entropy" } as const;

const make = `
import json, sys, torch
from transformers import AutoModelForCausalLM, Qwen3Config
for path in sys.argv[1:]:
    _, tied, dtype = path.rsplit("/", 1)[1].split("-")
    torch.manual_seed(1)
    config = Qwen3Config(vocab_size=7, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=4, max_position_embeddings=16, tie_word_embeddings=tied == "tied")
    AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).save_pretrained(path, max_shard_size="6KB")
    for name in ("tokenizer.json", "chat_template.jinja", "README.md"):
        open(path + "/" + name, "w").write("{}")
`;
const score = `
import json, sys, torch
from transformers import AutoModelForCausalLM
tokens = torch.tensor([json.loads(sys.argv[1])])
for path in sys.argv[2:]:
    model, info = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    with torch.no_grad():
        logprobs = model(input_ids=tokens).logits.float().log_softmax(-1)
    chosen = logprobs[0, :-1].gather(-1, tokens[0, 1:, None])[:, 0].tolist()
    print(json.dumps({"logprobs": [0.0, *chosen], "dtype": str(model.dtype)}))
`;
const Scored = z.object({ logprobs: z.array(z.number()), dtype: z.string() });

/** What transformers makes of them; one interpreter for all, as it takes seconds to start. */
function readByTransformers(paths: readonly string[]): z.infer<typeof Scored>[] {
  const args = ["-c", score, JSON.stringify([...tokens]), ...paths];
  const lines = execFileSync(python, args, { encoding: "utf8", stdio: "pipe" }).trim().split("\n");
  return lines.map((line) => Scored.parse(JSON.parse(line)));
}

type Kind = {
  /** that have saved it, a file each; default: one */
  readonly processes?: number;
  readonly of: "drawn" | "drawn-by-config" | "tied-float32" | "untied-bfloat16" | "tied-bfloat16";
  readonly dtype: "float32" | "bfloat16";
  readonly valueHead?: boolean;
  readonly lora?: { readonly rank: number; readonly alpha?: number };
};
const kinds: readonly Kind[] = [
  { of: "drawn", dtype: "float32", valueHead: true },
  { of: "drawn", dtype: "bfloat16" },
  { of: "drawn-by-config", dtype: "float32", valueHead: true },
  { of: "tied-float32", dtype: "float32" },
  { of: "untied-bfloat16", dtype: "bfloat16", valueHead: true, processes: 3 },
  { of: "tied-float32", dtype: "float32", lora: { rank: 3, alpha: 5 }, valueHead: true },
  { of: "untied-bfloat16", dtype: "bfloat16", lora: { rank: 2 }, processes: 2 },
  { of: "tied-bfloat16", dtype: "float32", lora: { rank: 2 } },
];

type Trained = {
  readonly kind: Kind;
  readonly options: Omit<ExportOptions, "to">;
  readonly expected: Float32Array;
  readonly ticket: WeightTicket;
  readonly published: readonly string[];
};

describe.skipIf(reason)(`models are exported${reason ? `: ${reason}` : ""}`, () => {
  let folder: string;
  const trained: Trained[] = [];
  const at = (name: string): string => join(folder, name);
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), "treadle-exported-"));
    const bases = ["tied-float32", "untied-bfloat16", "tied-bfloat16"].map((name) => at(`of-${name}`));
    execFileSync(python, ["-c", make, ...bases], { stdio: "pipe" });
    await cp(at("of-tied-float32"), at("of-drawn-by-config"), {
      recursive: true,
      filter: (path) => !path.endsWith(".safetensors") && !path.endsWith(".index.json"),
    });
    for (const [index, kind] of kinds.entries()) trained.push(await train(kind, index));
  }, 900_000);
  afterAll(() => rm(folder, { recursive: true, force: true }));

  async function saved(engine: TorchEngine, path: string): Promise<string | string[]> {
    const files = engine.saveFiles();
    if (!files) await writeFile(path, engine.save());
    return files
      ? Promise.all(files.map((file) => file.writeTo(`${path}-${file.name}`).then(() => `${path}-${file.name}`)))
      : path;
  }

  async function train(kind: Kind, index: number): Promise<Trained> {
    const { of, dtype, valueHead = false, lora, processes = 1 } = kind;
    const model = TransformerConfig.parse({ ...sizes, valueHead });
    const engine = TorchConfig.parse({
      kind: "torch",
      dtype,
      weightsFolder: folder,
      ...(of === "drawn" ? {} : { path: at(`of-${of}`), randomWeights: of === "drawn-by-config" }),
      ...(lora ? { lora: { ...lora, targets: ["q_proj", "v_proj", "down_proj"] } } : {}),
    });
    const running = await TorchEngine.create(model, engine, { processes });
    try {
      await running.forwardBackward(randomBatch(3, 6, index), loss);
      await running.optimStep(step);
      const checkpoint = await saved(running, at(`checkpoint-${index}`));
      const published = await running.publish();
      if (!published || !("ticket" in published)) throw new Error("nothing was published");
      const { ticket } = published;
      const own = `published-${index}`;
      execFileSync("cp", ["-r", join(ticket.store, ticket.folder), at(own)]);
      const expected = await running.logprobs({ rows: 1, columns: tokens.length, tokens });
      return { kind, options: { checkpoint, model, engine }, expected, ticket, published: [at(own)] };
    } finally {
      await running.close();
    }
  }

  test("transformers loads them with the engine's numbers, and in the type that config.json says", async () => {
    const paths: string[] = [];
    for (const [index, { kind, options }] of trained.entries()) {
      if (kind.of === "drawn" && kind.lora) continue;
      const to = at(`exported-${index}`);
      const made = await exportModel({ ...options, to, maxShardBytes: index % 2 === 0 ? undefined : 3000 });
      expect(made.policyVersion).toBe(1);
      expect((await stat(to)).mode & 0o077).toBe(0);
      const files = await readdir(to);
      expect(files.includes("value_head")).toBe(kind.valueHead === true);
      expect(files.includes("model.safetensors.index.json")).toBe(index % 2 === 1);
      if (kind.of !== "drawn") expect(files).toEqual(expect.arrayContaining(["chat_template.jinja", "tokenizer.json"]));
      expect(files).not.toContain("README.md");
      paths.push(to);
    }
    const read = readByTransformers(paths);
    expect(read).toHaveLength(trained.length);
    for (const [index, { logprobs, dtype }] of read.entries()) {
      const { kind, expected } = trained[index]!;
      expect(dtype).toBe(`torch.${kind.dtype}`);
      // A merged weight in bfloat16 is rounded once more than the engine's own passes round.
      expectClose(logprobs, [...expected], kind.dtype === "float32" ? 1e-4 : 0.05);
    }
  }, 300_000);

  test("LA2 weights are bit for bit those that the engine has published, adapters merged in", async () => {
    for (const [index, { kind, options, published }] of trained.entries()) {
      const to = at(`whole-${index}`);
      await exportModel({ ...options, to });
      const tensors = await readTensors(join(to, "model.safetensors"));
      const own = new Map(
        (await readTensors(join(published[0]!, "model.safetensors"))).map((each) => [each.name, each]),
      );
      expect(tensors.length).toBe(own.size - (kind.valueHead ? 1 : 0));
      for (const { name, shape, data } of tensors) {
        expect(shape).toEqual(own.get(name)!.shape);
        if (kind.lora) expectClose([...data], [...own.get(name)!.data], kind.dtype === "float32" ? 1e-5 : 0.01);
        else expect(data).toEqual(own.get(name)!.data);
      }
      if (!kind.valueHead) continue;
      const [head] = await readTensors(join(to, "value_head/model.safetensors"));
      expect(head).toEqual(own.get("value.projection"));
    }
  });

  test("LA4 an adapter alone is what the engine has published of it", async () => {
    let compared = 0;
    for (const [index, { kind, options, published }] of trained.entries()) {
      const to = at(`adapter-${index}`);
      if (!kind.lora) {
        await expect(exportModel({ ...options, to, adapter: true })).rejects.toThrow("without --adapter");
        continue;
      }
      await exportModel({ ...options, to, adapter: true });
      const read = async (from: string, name: string) => readFile(join(from, name));
      const file = "adapter_model.safetensors";
      expect(await readTensors(join(to, file))).toEqual(await readTensors(join(published[0]!, file)));
      expect(await readTensorInfos(join(to, file))).toEqual(await readTensorInfos(join(published[0]!, file)));
      const config = "adapter_config.json";
      expect(JSON.parse(`${await read(to, config)}`)).toEqual(JSON.parse(`${await read(published[0]!, config)}`));
      compared++;
    }
    expect(compared).toBe(kinds.filter(({ lora }) => lora).length);
  });

  test("the configuration of a drawn model is the one that PyTorch's engine draws it by", async () => {
    const script = `
import sys
sys.path.insert(0, sys.argv[1])
import torch
from treadle_torch.model import ModelOptions, make_model
make_model(ModelOptions(None, 7, 12, 2, 16, 2, False, 3), torch.float32).inner.save_pretrained(sys.argv[2])
`;
    const source = join(import.meta.dirname, "../../../python/treadle_torch/src");
    execFileSync(python, ["-c", script, source, at("saved")], { stdio: "pipe" });
    await exportModel({ ...trained[0]!.options, to: at("drawn") });
    const configOf = async (name: string) =>
      z.record(z.string(), z.unknown()).parse(JSON.parse(await readFile(join(at(name), "config.json"), "utf8")));
    const own = await configOf("drawn");
    const { transformers_version: _, ...expected } = await configOf("saved");
    expect(own).toEqual(expected);
  });

  test("XP2 a checkpoint of several processes is refused where one of its files is missing, cut, changed or another's", async () => {
    const { options } = trained.find(({ kind }) => kind.processes === 3)!;
    const [one, two, three] = options.checkpoint as [string, string, string];
    const other = (trained.find(({ kind }) => kind.processes === 2)!.options.checkpoint as string[])[1]!;
    const to = at("never");
    const damaged = at("damaged.safetensors");
    const whole = await readFile(two);
    const changed = Buffer.from(whole);
    changed[changed.length - 9]! ^= 1;
    const retyped = Buffer.from(whole);
    retyped.write("I32", retyped.lastIndexOf('"F32"') + 1);
    for (const [bytes, said] of [
      [whole.subarray(0, -1), /no whole safetensors file: it has/],
      [changed, /'second_moments\/.*has checksum/],
      [retyped, /'second_moments\/.*not in 'F32'/],
      [Buffer.alloc(0), /ends in its header/],
    ] as const) {
      await writeFile(damaged, bytes);
      const refused = { code: "checkpoint.corrupt", message: expect.stringMatching(said) };
      await expect(exportModel({ ...options, checkpoint: [one, damaged, three], to })).rejects.toMatchObject(refused);
    }
    for (const [checkpoint, said] of [
      [[three, one], /saved by '3' processes, and the files are those of '0, 2'/],
      [[one, two], /saved by '3' processes, and the files are those of '0, 1'/],
      [[one, two, three, three], /those of '0, 1, 2, 2'/],
      [[one, other, three], /of another checkpoint/],
      [[], /has no files/],
    ] as const)
      await expect(exportModel({ ...options, checkpoint, to })).rejects.toThrow(said);
    const gone = { code: "checkpoint.missing" };
    await expect(exportModel({ ...options, checkpoint: [one, at("nowhere"), three], to })).rejects.toMatchObject(gone);
    expect(await readdir(folder)).not.toContain("never");
  });

  test("XP2 a checkpoint that is cut or changed anywhere is refused, and leaves nothing", async () => {
    const { options } = trained[0]!;
    const whole = await readFile(options.checkpoint as string);
    const damaged = at("damaged");
    const to = at("never");
    await fc.assert(
      fc.asyncProperty(
        fc.nat(whole.length - 1),
        fc.integer({ min: 1, max: 255 }),
        fc.boolean(),
        async (place, change, cuts) => {
          const bytes = Buffer.from(whole);
          bytes[place]! ^= change;
          await writeFile(damaged, cuts ? whole.subarray(0, place) : bytes);
          await expect(exportModel({ ...options, checkpoint: damaged, to })).rejects.toMatchObject({
            code: "checkpoint.corrupt",
          });
          expect((await readdir(folder)).filter((name) => name.startsWith("never"))).toEqual([]);
        },
      ),
      { numRuns: 40 },
    );
    await writeFile(damaged, Buffer.concat([whole, Buffer.of(0)]));
    await expect(exportModel({ ...options, checkpoint: damaged, to })).rejects.toMatchObject({
      code: "checkpoint.corrupt",
    });
    const missing = exportModel({ ...options, checkpoint: at("nothing"), to });
    await expect(missing).rejects.toMatchObject({ code: "checkpoint.missing" });
  });

  test("XP1, XP2 a folder that is there, other sizes, another base and another alpha are refused", async () => {
    const to = at("refused");
    const drawn = trained[0]!.options;
    await expect(exportModel({ ...drawn, to: folder })).rejects.toThrow(/is there already/);
    const larger = { ...drawn.model, vocabSize: 8 };
    await expect(exportModel({ ...drawn, model: larger, to })).rejects.toThrow(/of shape '8x16'/);
    const deeper = { ...drawn.model, layers: 3 };
    await expect(exportModel({ ...drawn, model: deeper, to })).rejects.toThrow(/which the checkpoint lacks/);
    const adapted = trained.find(({ kind }) => kind.lora && kind.of === "tied-float32")!.options;
    const { lora, ...plain } = adapted.engine;
    await expect(exportModel({ ...adapted, engine: plain, to })).rejects.toThrow(/engine.lora/);
    const louder = { ...adapted.engine, lora: { ...lora!, alpha: 6 } };
    await expect(exportModel({ ...adapted, engine: louder, to })).rejects.toThrow(/digest/);
    await expect(exportModel({ ...adapted, base: at("of-tied-bfloat16"), to })).rejects.toThrow(/digest/);
    await expect(exportModel({ ...adapted, base: at("of-untied-bfloat16"), to })).rejects.toThrow(/lm_head/);
    await expect(exportModel({ ...adapted, base: at("nowhere"), to })).rejects.toThrow(/cannot be read; .*--base/);
    const { path: _, ...unnamed } = adapted.engine;
    await expect(exportModel({ ...adapted, engine: unnamed, to })).rejects.toThrow(/drawn by PyTorch.*; .*--adapter/);
    const copy = at("of-cut-float32");
    execFileSync("cp", ["-r", at("of-tied-float32"), copy]);
    const [shard] = (await readdir(copy)).filter((name) => name.endsWith(".safetensors"));
    await truncate(join(copy, shard!), 500);
    await expect(exportModel({ ...adapted, base: copy, to })).rejects.toThrow(/no whole safetensors file/);
    expect((await readdir(folder)).filter((name) => name.startsWith("refused"))).toEqual([]);
  });
});

test("the embedded engine's model is no Hugging Face architecture, and is refused as that", async () => {
  const folder = await mkdtemp(join(tmpdir(), "treadle-exported-"));
  try {
    const model = TransformerConfig.parse(sizes);
    const engine = await TransformerEngine.create(model);
    await writeFile(join(folder, "engine"), engine.save());
    const options = { checkpoint: join(folder, "engine"), model, engine: TorchConfig.parse({ kind: "torch" }) };
    await expect(exportModel({ ...options, to: join(folder, "to") })).rejects.toThrow(
      /embedded engine.*; .*engine.kind=torch/,
    );
    await engine.close();
    expect(await readdir(folder)).toEqual(["engine"]);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
});

test("shards keep the order, have at most their bytes unless one tensor has more, and are as few as that allows", () => {
  fc.assert(
    fc.property(
      fc.array(fc.integer({ min: 1, max: 40 }), { minLength: 1 }),
      fc.integer({ min: 1, max: 300 }),
      (sizesOf, most) => {
        const tensors = sizesOf.map((size, index) => ({ name: `${index}`, shape: [size] }));
        const shards = shardsOf(tensors, "F32", most);
        expect(shards.flat()).toEqual(tensors);
        const bytesIn = (shard: readonly { shape: readonly number[] }[]) =>
          shard.reduce((sum, { shape: [size = 0] }) => sum + 4 * size, 0);
        for (const [index, shard] of shards.entries()) {
          expect(shard.length === 1 || bytesIn(shard) <= most).toBe(true);
          const next = shards[index + 1]?.[0];
          if (next) expect(bytesIn([...shard, next])).toBeGreaterThan(most);
        }
      },
    ),
  );
});

test.skipIf(reason)("LA3 floats are printed as Python prints them", () => {
  const values = [0, 1, 2, 5 / 3, 0.1, 1e-4, 0.00005, 1.5e-7, 1e-10, 1e15, 1e16, 1.25e17, 123456.75, 1e22, 3e-300];
  const script = "import json, sys; print(json.dumps([str(float(each)) for each in json.loads(sys.argv[1])]))";
  const printed: unknown = JSON.parse(
    execFileSync(python, ["-c", script, JSON.stringify(values)], { encoding: "utf8" }),
  );
  expect(values.map(inPython)).toEqual(printed);
});
