/**
 * `npm run test:torch-learns`: the shipped workflow, unchanged, on PyTorch by its shipped configuration: a small Qwen3 whose trainer and
 * generator are Python processes of their own learns arithmetic, from each seed (1, 2 and 3, or those given). Needs no GPU; the
 * environment of Python is made once in the cache folder.
 */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { runWorkflow } from "@treadle/runtime/runner";
import { projectRoot } from "./project.ts";
import { makeTorchEnvironment } from "./torch-environment.ts";

/** Of held-out problems, before the first step and after the last. */
const bar = { atStart: 0.4, after: 0.75 };

const seeds = process.argv.length > 2 ? process.argv.slice(2).map(seedOf) : [1, 2, 3];
await makeTorchEnvironment();
const runsRoot = await mkdtemp(join(tmpdir(), "treadle-torch-learns-"));
const columns = ["seed", "untrained", "at the start", "at the end", "seconds", ""] as const;
let hasMissed = false;
print(columns);
try {
  for (const seed of seeds) {
    const workflow = join(projectRoot, "workflows/reasoning-grpo");
    const { summary } = await runWorkflow({
      workflow,
      configFile: join(workflow, "torch.yaml"),
      projectRoot,
      runsRoot,
      overrides: [`seed=${seed}`, `model.seed=${seed}`, "trace=false"],
      onEvent: () => {},
    });
    const { evalBefore, evalAtStart, evalAfter, seconds } = summary;
    const learns = (evalAtStart ?? 1) <= bar.atStart && (evalAfter ?? 0) >= bar.after;
    hasMissed ||= !learns;
    const accuracies = [evalBefore, evalAtStart, evalAfter].map(percent);
    print([`${seed}`, ...accuracies, seconds.toFixed(0), learns ? "learns" : "misses"]);
  }
} finally {
  await rm(runsRoot, { recursive: true, force: true });
}
process.stdout.write(
  `wanted: at most ${percent(bar.atStart)} at the start, at least ${percent(bar.after)} at the end\n`,
);
if (hasMissed) process.exitCode = 1;

function print(cells: readonly string[]): void {
  process.stdout.write(
    `${cells
      .map((cell) => cell.padEnd(14))
      .join("")
      .trimEnd()}\n`,
  );
}

function percent(share: number | null): string {
  return share === null ? "-" : `${(100 * share).toFixed(1)} %`;
}

function seedOf(text: string): number {
  const seed = Number(text);
  if (text !== "" && Number.isSafeInteger(seed) && seed >= 0) return seed;
  throw new Error(
    `seed '${text}' is no natural number; give some, as 'npm run test:torch-learns -- 4 5', or none for 1, 2 and 3`,
  );
}
