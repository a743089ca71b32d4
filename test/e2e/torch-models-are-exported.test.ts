/** From a run to a folder that transformers loads: `treadle export` after two steps; skipped where there is no PyTorch. */
import { execFileSync } from "node:child_process";
import { createReadStream } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { TorchEngine } from "@treadle/engines";
import { runWorkflow } from "@treadle/runtime/runner";
import { expect, test } from "vitest";
import { projectRoot } from "../support/project.ts";
import { lacksTorch, python } from "../support/torch.ts";
import { treadle } from "../support/treadle.ts";

const greedy = `
import json, sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
for prompt in json.loads(sys.argv[2]):
    for _ in range(5):
        with torch.no_grad():
            prompt.append(int(model(input_ids=torch.tensor([prompt])).logits[0, -1].argmax()))
    print(json.dumps(prompt[-5:]))
`;
const prompts = [[3], [4, 5], [12, 2, 9], [7, 7, 7, 7]];

test("a run on PyTorch is exported, and transformers chooses the tokens that the engine chooses", async (context) => {
  const reason = lacksTorch();
  if (reason) context.skip(reason);
  const root = await mkdtemp(join(tmpdir(), "treadle-exported-run-"));
  const runsRoot = join(root, "runs");
  try {
    const workflow = join(projectRoot, "workflows/reasoning-grpo");
    const overrides = [
      ...[
        "steps=2",
        "batch=16",
        "trace=false",
        "imitation.problems=64",
        "imitation.maxRounds=2",
        "placement.mode=spatial",
      ],
      ...["evaluation.problems=10", "evaluation.validationProblems=10", "checkpoints.everySteps=1", "model.seed=7"],
    ];
    const configFile = join(workflow, "torch.yaml");
    const { runId } = await runWorkflow({
      workflow,
      configFile,
      projectRoot,
      runsRoot,
      overrides,
      onEvent: () => {},
    }).then(({ summary }) => summary);
    const to = join(root, "model");
    const asked = ["export", runId, "--runs", runsRoot, "--to", to];
    const { code, stdout, stderr } = await treadle(asked);
    expect(code, stderr).toBe(0);
    expect(stdout).toMatch(/parameters in float32 \(step 2, .*\n {2}config.json, model.safetensors\n/);
    expect(stdout).toContain("it has no tokenizer");

    const again = await treadle(asked);
    expect(again.code).not.toBe(0);
    expect(again.stderr).toContain("is there already");

    const model = { vocabSize: 16, layers: 2, width: 64, heads: 4, contextLength: 10, seed: 1 };
    const engine = await TorchEngine.create(model, { kind: "torch" });
    try {
      await engine.load(createReadStream(join(runsRoot, runId, "checkpoints/step-000002/actor/rank-0/engine")));
      const sampling = { maxTokens: 5, temperature: 0, stopTokens: [], seed: 1 };
      const chosen = await engine.generate(
        prompts.map((each) => Int32Array.from(each)),
        sampling,
      );
      const lines = execFileSync(python, ["-c", greedy, to, JSON.stringify(prompts)], {
        encoding: "utf8",
        stdio: "pipe",
      });
      const read = lines.trim().split("\n");
      expect(read.map((line) => JSON.parse(line) as unknown)).toEqual(chosen.map(({ tokens }) => [...tokens]));
    } finally {
      await engine.close();
    }
  } finally {
    await rm(root, { recursive: true, force: true });
  }
}, 900_000);
