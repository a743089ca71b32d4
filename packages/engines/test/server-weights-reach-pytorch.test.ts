/** What a server is given to load is what other tools read: names, types and numbers of a real Hugging Face model. */
import { execFileSync } from "node:child_process";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { WeightTicket } from "@treadle/contracts";
import { TorchEngine } from "@treadle/engines";
import { expect, onTestFinished, test } from "vitest";
import { z } from "zod";
import { lacksTorch, python } from "../../../test/support/torch.ts";
import { sealWeights } from "../src/parameters.ts";
import { ModelFolder } from "../src/server/model-folder.ts";
import { readTensorInfos } from "../src/server/safetensors.ts";
import { conformingModel } from "../src/testing/conformance.ts";

const reason = lacksTorch();
const plain = { ...conformingModel, layers: 1, width: 8, heads: 1 };
const tokens = Int32Array.of(1, 2, 3, 4, 5, 6);
const make = `
import sys, torch
from transformers import AutoModelForCausalLM, Qwen3Config
for path in sys.argv[1:]:
    _, tied, dtype = path.rsplit("/", 1)[1].split("-")
    torch.manual_seed(1)
    config = Qwen3Config(vocab_size=7, hidden_size=8, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=4, max_position_embeddings=16, tie_word_embeddings=tied == "tied")
    AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).save_pretrained(path)
    open(path + "/tokenizer.json", "w").write("{}")
`;
const score = `
import json, sys, torch
from transformers import AutoModelForCausalLM
tokens = torch.tensor([json.loads(sys.argv[1])])
for path in sys.argv[2:]:
    with torch.no_grad():
        logprobs = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)(input_ids=tokens).logits.log_softmax(-1)
    print(json.dumps([0.0, *logprobs[0, :-1].gather(-1, tokens[0, 1:, None])[:, 0].tolist()]))
`;
const kinds = [
  { tied: "tied", dtype: "float32", valueHead: true },
  { tied: "untied", dtype: "bfloat16", valueHead: false },
  { tied: "tied", dtype: "bfloat16", valueHead: false },
] as const;

// One interpreter makes all models, and one reads all that was written: it takes seconds to start.
test.skipIf(reason)(
  `weights of a folder are read by transformers as what was trained${reason ? `: ${reason}` : ""}`,
  async () => {
    const folder = await mkdtemp(join(tmpdir(), "treadle-written-"));
    onTestFinished(() => rm(folder, { recursive: true, force: true }));
    const paths = kinds.map(({ tied, dtype }) => join(folder, `of-${tied}-${dtype}`));
    execFileSync(python, ["-c", make, ...paths], { stdio: "pipe" });
    const made = new Map<string, { readonly expected: Float32Array; readonly digits: number }>();
    for (const [index, { dtype, valueHead }] of kinds.entries()) {
      const path = paths[index]!;
      const trained = await TorchEngine.create({ ...plain, valueHead }, { kind: "torch", path });
      onTestFinished(() => trained.close());
      const { parameters } = await trained.exportWeights();
      const changed = parameters.map((one) => ({ ...one, data: one.data.map((value) => value * 1.5 + 0.25) }));
      const weights = sealWeights({ policyVersion: 1, parameters: changed });
      await trained.loadWeights(weights);
      const expected = await trained.logprobs({ rows: 1, columns: 6, tokens });

      const own = await ModelFolder.open(path);
      own.check(weights);
      const written = `${path}-written`;
      await own.write(weights, written);
      expect(await readTensorInfos(join(written, "model.safetensors"))).toEqual(
        await readTensorInfos(join(path, "model.safetensors")),
      );
      const { ticket } = (await trained.publish()) as { ticket: WeightTicket };
      own.checkTicket(ticket);
      expect(own.hasAll(ticket.tensors)).toBe(!valueHead);
      const linked = `${path}-linked`;
      if (!valueHead) await own.link(ticket, linked);
      await trained.close();
      if (index < 2) await adapterReaches(own, path, valueHead);
      for (const each of valueHead ? [written] : [written, linked]) {
        expect((await readdir(each)).sort()).toEqual(["config.json", "model.safetensors"]);
        made.set(each, { expected, digits: dtype === "float32" ? 5 : 0 });
      }
    }
    const args = ["-c", score, JSON.stringify([...tokens]), ...made.keys()];
    const scored = execFileSync(python, args, { encoding: "utf8", stdio: "pipe" }).trim().split("\n");
    expect(scored).toHaveLength(made.size);
    for (const [index, { expected, digits }] of [...made.values()].entries()) {
      const read = z.array(z.number()).length(expected.length).parse(JSON.parse(scored[index]!));
      for (const [at, logprob] of read.entries()) expect(logprob).toBeCloseTo(expected[at]!, digits);
    }
  },
  600_000,
);

/** What a trainer publishes of an adapter over this model is what a server of it may be given. */
async function adapterReaches(own: ModelFolder, path: string, valueHead: boolean): Promise<void> {
  const lora = { rank: 2, targets: ["q_proj", "v_proj", "down_proj"] };
  const adapted = await TorchEngine.create({ ...plain, valueHead }, { kind: "torch", path, lora });
  try {
    const { ticket } = (await adapted.publish()) as { ticket: WeightTicket };
    expect(ticket.adapter!.tensors).toHaveLength(2 * lora.targets.length * 2); // of both layers
    const folder = `${path}-adapter`;
    const { isAdapter, verify } = await own.linkAdapter(ticket, folder);
    expect(isAdapter).toBe(true);
    await verify();
    expect((await readdir(folder)).sort()).toEqual(["adapter_config.json", "adapter_model.safetensors"]);
  } finally {
    await adapted.close();
  }
}
