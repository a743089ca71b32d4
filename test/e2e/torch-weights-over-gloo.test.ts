/** The shipped workflow with weights that the trainer's process sends, by configuration alone; skipped where there is no PyTorch. */
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { readMetrics, readTrace } from "@treadle/observe";
import { runWorkflow } from "@treadle/runtime/runner";
import { expect, test } from "vitest";
import { projectRoot } from "../support/project.ts";
import { lacksTorch } from "../support/torch.ts";
import { temporaryRuns } from "../support/treadle.ts";

const steps = 3;

test("reasoning-grpo whose weights travel over gloo draws the first tokens, and has the losses, of one whose weights are files", async (context) => {
  const reason = lacksTorch();
  if (reason) context.skip(reason);
  await using runs = await temporaryRuns();
  const workflow = join(projectRoot, "workflows/reasoning-grpo");
  const seed = Number(process.env.TREADLE_SEED);
  const run = async (collective: "off" | "gloo") => {
    const { summary } = await runWorkflow({
      workflow,
      configFile: join(workflow, "torch.yaml"),
      projectRoot,
      runsRoot: runs.path,
      overrides: [
        ...[
          `steps=${steps}`,
          "batch=32",
          "imitation.maxRounds=1",
          "imitation.updates=5",
          `evaluation.everySteps=${steps}`,
        ],
        ...[`engine.collective=${collective}`, `seed=${seed}`, `model.seed=${seed}`, "trace=true"],
      ],
      onEvent: () => {},
    });
    const folder = join(runs.path, summary.runId);
    const sent: string[] = [];
    for await (const { worker, records } of readTrace([join(folder, "trace.jsonl")]))
      for (const record of records)
        if (record.kind === "span" && record.name === "actor/0.offerWeights")
          sent.push(`${worker} in step ${record.step ?? 0}`);
    const metrics = readMetrics(join(folder, "metrics.jsonl"));
    const completions = join(folder, "artifacts/completions");
    const texts = await Promise.all(
      (await readdir(completions)).sort().map((name) => readFile(join(completions, name), "utf8")),
    );
    const { evalBefore, evalAtStart, policyVersion } = summary;
    const first = texts.flatMap((text) => text.split("\n")).sort();
    const [tokens, reward] = ["tokens", "reward"].map((name) => metrics[0]?.[name]);
    return { sent, metrics, same: { first, tokens, reward, evalBefore, evalAtStart, policyVersion } };
  };
  const disk = await run("off");
  const gloo = await run("gloo");
  expect(disk.sent).toEqual([]);
  // The rollout has the first step's weights from the evaluation before it.
  for (const [worker, first] of [
    ["rollout/0", 2],
    ["inference/0", 1],
  ] as const)
    for (let step = first; step <= steps; step++) expect(gloo.sent).toContain(`${worker} in step ${step}`);
  expect(disk.same.first.length).toBeGreaterThan(1);
  expect(gloo.same).toEqual(disk.same);
  // Groups are trained in the order in which they arrive, so gradients are equal up to the order of their sums.
  expect(gloo.metrics).toHaveLength(steps);
  for (const [index, row] of gloo.metrics.entries())
    expect(row["loss"]).toBeCloseTo(disk.metrics[index]?.["loss"] as number, index === 0 ? 6 : 3);
}, 900_000);
