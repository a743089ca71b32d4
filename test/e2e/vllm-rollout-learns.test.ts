/** A shipped workflow that samples from a live vLLM, which it starts, and trains on PyTorch: by `npm run test:vllm`; skipped elsewhere. */
import { mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { runWorkflow } from "@treadle/runtime/runner";
import { expect, test } from "vitest";
import { liveLaunch, liveModel } from "../support/live-vllm.ts";
import { projectRoot } from "../support/project.ts";

test.skipIf(liveLaunch === undefined || liveModel === undefined)(
  "reasoning-grpo samples from vLLM what PyTorch trains: what is imitated arrives, and log-probabilities agree",
  async () => {
    const runsRoot = await mkdtemp(join(tmpdir(), "treadle-vllm-run-"));
    try {
      const workflow = join(projectRoot, "workflows/reasoning-grpo");
      const engine = `engine=${JSON.stringify({ kind: "vllm", launch: liveLaunch, model: liveModel })}`;
      const sizes = ["steps=3", "batch=64", "imitation.maxRounds=16", "evaluation.problems=160"];
      const { summary } = await runWorkflow({
        workflow,
        configFile: join(workflow, "torch.yaml"),
        projectRoot,
        runsRoot,
        overrides: [engine, ...sizes, "trace=false", "supervision.startTimeoutMs=1200000"],
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
