/** What a server is given to load is what other tools read: names, types and numbers of a real Hugging Face model. */
import { execFileSync } from "node:child_process";
import { cp, mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { WeightTicket } from "@treadle/contracts";
import { TorchEngine } from "@treadle/engines";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { lacksTorch, python } from "../../../test/support/torch.ts";
import { sealWeights } from "../src/parameters.ts";
import { ModelFolder } from "../src/server/model-folder.ts";
import { readTensorInfos } from "../src/server/safetensors.ts";
import { testedModel } from "./generation-contract.ts";

const reason = lacksTorch();
const plain = { ...testedModel, layers: 1, width: 8, heads: 1 };
const make = `
import sys, torch
from transformers import AutoModelForCausalLM, Qwen3Config
path, tied, dtype = sys.argv[1], sys.argv[2] == "tied", getattr(torch, sys.argv[3])
torch.manual_seed(1)
config = Qwen3Config(vocab_size=7, hidden_size=8, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=4, max_position_embeddings=16, tie_word_embeddings=tied)
AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(path)
open(path + "/tokenizer.json", "w").write("{}")
`;

describe.skipIf(reason)(reason ?? "a folder of weights", () => {
  let folder: string;
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), "treadle-written-"));
  });
  afterAll(() => rm(folder, { recursive: true, force: true }));

  test.each([
    ["tied", "float32", true],
    ["untied", "bfloat16", false],
    ["tied", "bfloat16", false],
  ])(
    "of a model that is %s, in %s, with a value head: %s, is read by transformers as what was trained",
    async (tied, dtype, valueHead) => {
      const model = { ...plain, valueHead };
      const path = join(folder, `${tied}-${dtype}`);
      execFileSync(python, ["-c", make, path, tied, dtype], { stdio: "pipe" });
      const trained = await TorchEngine.create(model, { kind: "torch", path });
      const { parameters } = await trained.exportWeights();
      const changed = parameters.map((one) => ({ ...one, data: one.data.map((value) => value * 1.5 + 0.25) }));
      const weights = sealWeights({ policyVersion: 1, parameters: changed });
      await trained.loadWeights(weights);
      const tokens = Int32Array.of(1, 2, 3, 4, 5, 6);
      const expected = await trained.logprobs({ rows: 1, columns: 6, tokens });

      const own = await ModelFolder.open(path);
      own.check(weights);
      const written = join(folder, `${tied}-${dtype}-written`);
      await own.write(weights, written);
      expect(await readTensorInfos(join(written, "model.safetensors"))).toEqual(
        await readTensorInfos(join(path, "model.safetensors")),
      );
      const { ticket } = (await trained.publish()) as { ticket: WeightTicket };
      own.checkTicket(ticket);
      expect(own.hasAll(ticket.tensors)).toBe(!valueHead);
      const linked = join(folder, `${tied}-${dtype}-linked`);
      if (!valueHead) await own.link(ticket, linked);
      await trained.close();

      for (const made of valueHead ? [written] : [written, linked]) {
        expect((await readdir(made)).sort()).toEqual(["config.json", "model.safetensors"]);
        await cp(join(path, "tokenizer.json"), join(made, "tokenizer.json"));
        const read = await TorchEngine.create(model, { kind: "torch", path: made });
        const scored = await read.logprobs({ rows: 1, columns: 6, tokens });
        await read.close();
        scored.forEach((logprob, at) => {
          expect(logprob).toBeCloseTo(expected[at]!, dtype === "float32" ? 5 : 0);
        });
      }
    },
    600_000,
  );
});
