import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { median, type RunEvent } from "@treadle/contracts";
import { packageFolder } from "@treadle/contracts/package-folder";
import { readTrace } from "@treadle/observe";
import { runWorkflow } from "@treadle/runtime/runner";
import { type BenchRow, row } from "../row.ts";

const steps = 5;
/** Of a step's groups. */
const leastTrained = 0.25;

/** Of the shipped sizes a step is short, and what episodes cost on their way is much of it; of 3 million parameters it is what is promised. */
const sizes = [
  { name: "as shipped", overrides: [], isPromised: false },
  { name: "with 4 layers of 256", overrides: ["model.layers=4", "model.width=256"], isPromised: true },
];

type Stretch = { readonly fromMs: number; readonly toMs: number };

/** What a step of the shipped workflow takes while no engine computes for it, by the spans that its trace has. */
export async function* benchTorchStepTime(): AsyncIterable<BenchRow> {
  for (const each of sizes) yield await measure(each);
}

async function measure({ name, overrides, isPromised }: (typeof sizes)[number]): Promise<BenchRow> {
  const projectRoot = join(packageFolder(import.meta.url), "../..");
  const workflow = join(projectRoot, "workflows/reasoning-grpo");
  const runsRoot = await mkdtemp(join(tmpdir(), "treadle-bench-"));
  try {
    const events: RunEvent[] = [];
    const { summary } = await runWorkflow({
      workflow,
      configFile: join(workflow, "torch.yaml"),
      projectRoot,
      runsRoot,
      overrides: [
        ...overrides,
        // A model that knows nothing is rewarded alike for all it says, and trains on none of it.
        ...[`steps=${steps}`, "imitation.maxRounds=1", "imitation.updates=40"],
        ...[`evaluation.everySteps=${steps}`, `checkpoints.everySteps=${steps}`, "trace=true"],
      ],
      onEvent: (event) => events.push(event),
    });
    for (const event of events) {
      if (event.type !== "step-finished" || (event.metrics["trainedGroups"] ?? 0) >= leastTrained) continue;
      throw new Error(
        `step ${event.step} trained on ${event.metrics["trainedGroups"]} of its groups, so it is no step to measure`,
      );
    }
    const computing: Stretch[] = [];
    for await (const { records } of readTrace([join(runsRoot, summary.runId, "trace.jsonl")]))
      for (const record of records)
        if (record.kind === "span" && record.category === "compute")
          computing.push({ fromMs: record.startMs, toMs: record.startMs + record.durationMs });
    const started = events.flatMap((event) => (event.type === "step-started" ? [event.atMs] : []));
    // The first makes what the others use again; the last has an evaluation and a checkpoint.
    const whole = started.slice(1).map((fromMs, at) => ({ fromMs, toMs: started[at + 2] }));
    const measured = whole.filter((each): each is Stretch => each.toMs !== undefined);
    const lengthMs = median(measured.map(({ fromMs, toMs }) => toMs - fromMs));
    const shares = measured.map((step) => 1 - coveredMs(step, computing) / (step.toMs - step.fromMs));
    const share = median(shares);
    return row({
      name: `what no engine computes of a step of reasoning-grpo/torch.yaml, ${name}, of ${(lengthMs / 1000).toFixed(2)} s (${(share * lengthMs).toFixed(0)} ms)`,
      value: 100 * share,
      unit: "%",
      baseline: 5,
      against: "a share of 5 %",
      ...(isPromised ? { ratioAtMost: 1 } : {}),
      notMeasured:
        "models of other sizes, whose engines take longer or shorter for as many episodes; evaluations and checkpoints",
    });
  } finally {
    await rm(runsRoot, { recursive: true, force: true });
  }
}

/** Of a stretch, how long at least one of the others goes on. */
export function coveredMs(within: Stretch, stretches: readonly Stretch[]): number {
  let sum = 0;
  let untilMs = within.fromMs;
  for (const { fromMs, toMs } of stretches.toSorted((a, b) => a.fromMs - b.fromMs)) {
    const endMs = Math.min(toMs, within.toMs);
    const startMs = Math.max(fromMs, untilMs);
    if (endMs > startMs) sum += endMs - startMs;
    untilMs = Math.max(untilMs, endMs);
  }
  return sum;
}
