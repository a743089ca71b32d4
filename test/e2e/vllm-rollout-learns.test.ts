/** A shipped workflow that samples from a live vLLM and trains on PyTorch: `npm run test:vllm` starts one; skipped elsewhere. */
import { mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { runWorkflow } from "@treadle/runtime/runner";
import { expect, test } from "vitest";
import { projectRoot } from "../support/project.ts";

const { TREADLE_VLLM_URL: url, TREADLE_VLLM_MODEL: model } = process.env;

test.skipIf(url === undefined || model === undefined)(
  "reasoning-grpo samples from vLLM what PyTorch trains: what is imitated arrives, and log-probabilities agree",
  async () => {
    const runsRoot = await mkdtemp(join(tmpdir(), "treadle-vllm-run-"));
    try {
      const workflow = join(projectRoot, "workflows/reasoning-grpo");
      const engine = `engine={kind: vllm, url: "${url}", model: "${model}"}`;
      const sizes = ["steps=3", "batch=64", "imitation.maxRounds=16", "evaluation.problems=160"];
      const { summary } = await runWorkflow({
        workflow,
        configFile: join(workflow, "torch.yaml"),
        projectRoot,
        runsRoot,
        overrides: [engine, ...sizes, "trace=false"],
        onEvent: () => {},
      });
      // Greedy answers of the server, by weights that PyTorch has trained.
      expect(summary.evalAtStart).toBeGreaterThan(summary.evalBefore! + 0.05);
      const [run] = await readdir(runsRoot);
      const lines = (await readFile(join(runsRoot, run as string, "metrics.jsonl"), "utf8")).trim().split("\n");
      const steps = lines.map((line) => JSON.parse(line) as Record<string, number>);
      const mismatches = steps.flatMap(({ mismatchKl }) => mismatchKl ?? []);
      expect(mismatches).toHaveLength(3);
      for (const mismatch of mismatches) expect(mismatch).toBeLessThan(1e-6);
    } finally {
      await rm(runsRoot, { recursive: true, force: true });
    }
  },
  1_800_000,
);
