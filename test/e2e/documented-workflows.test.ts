/** The workflows that the documentation has a reader type in, run as they stand there. */
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { join, relative } from "node:path";
import { type MetricsRow, readMetrics } from "@treadle/observe";
import { runWorkflow, validateWorkflow } from "@treadle/runtime/runner";
import { describe, expect, test } from "vitest";
import { parse, stringify } from "yaml";
import { type CodeBlock, documents, MarkdownFile } from "../support/markdown.ts";
import { projectRoot } from "../support/project.ts";

/** Below the project, so that its packages are found; where git and the tools look at nothing. */
async function writtenFrom(path: string): Promise<{ folder: string } & AsyncDisposable> {
  const cache = join(projectRoot, ".cache");
  await mkdir(cache, { recursive: true });
  const folder = await mkdtemp(join(cache, "documented-"));
  for (const { file, text } of new MarkdownFile(path).blocks) {
    if (file !== undefined) await writeFile(join(folder, file), `${text}\n`);
  }
  return { folder, [Symbol.asyncDispose]: () => rm(folder, { recursive: true, force: true }) };
}

async function metricsOf(workflow: string, overrides: readonly string[] = []): Promise<readonly MetricsRow[]> {
  const runsRoot = join(workflow, "runs");
  const { summary } = await runWorkflow({ workflow, overrides, runsRoot, projectRoot, onEvent: () => {} });
  return readMetrics(join(runsRoot, summary.runId, "metrics.jsonl"));
}

const documented = documents.filter(({ blocks }) => blocks.some(({ file }) => file === "run.ts"));

test("documents show the workflows that are run here, and no other", () => {
  expect(documented.map(({ path }) => path).sort()).toEqual(["docs/guides/your-own-task.md", "docs/tutorial.md"]);
});

describe.each(documented.map(({ path }) => path))("the workflow of %s", (path) => {
  test.each(["temporal", "spatial", "hybrid"])("can be placed in %s mode", async (mode) => {
    await using written = await writtenFrom(path);
    const overrides = [`placement.mode=${mode}`];
    const { plan } = await validateWorkflow({ workflow: written.folder, overrides, projectRoot });
    expect(plan.mode).toBe(mode);
  });
});

test("the guide's dataset of one's own is drawn, judged and imitated by the configuration that it is laid over", async () => {
  const { blocks } = new MarkdownFile("docs/guides/your-own-data.md");
  const shown = (language: string, text: string): string => {
    const found = blocks.find((block) => block.language === language && block.text.includes(text));
    return (found as CodeBlock).text;
  };
  await using written = await writtenFrom("docs/guides/your-own-data.md");
  const module = join(written.folder, "own.ts");
  await writeFile(module, shown("ts", "export const createDataset"));
  const workflow = join(projectRoot, "workflows/reasoning-grpo");
  const base = parse(await readFile(join(workflow, "data.yaml"), "utf8"));
  const { data } = parse(shown("yaml", "module: data/own.ts"));
  const configFile = join(written.folder, "config.yaml");
  // As many rows of each kind as there; so few steps as say nothing of what is learnt.
  const imitation = { ...base.imitation, updates: 1, maxRounds: 1 };
  const few = { steps: 2, batch: 250, cluster: { devices: 1 }, maxRanks: 1, groupSize: 2, imitation };
  const config = { ...base, ...few, data: { ...data, module: relative(projectRoot, module) } };
  await writeFile(configFile, stringify(config));
  const runsRoot = join(written.folder, "runs");
  const { summary } = await runWorkflow({ workflow, configFile, runsRoot, projectRoot, onEvent: () => {} });
  expect(summary.steps).toBe(2);
});

test("the tutorial's workflow sums squares", async () => {
  await using written = await writtenFrom("docs/tutorial.md");
  const metrics = await metricsOf(written.folder, ["steps=2"]);
  const ofOneStep = [0, 1, 2, 3, 4, 5, 6, 7].reduce((sum, value) => sum + value * value + 1, 0);
  expect(metrics.map(({ total }) => total)).toEqual([ofOneStep, 2 * ofOneStep]);
});

test("the guide's own task is learnt from its own data and reward", async () => {
  await using written = await writtenFrom("docs/guides/your-own-task.md");
  const metrics = await metricsOf(written.folder);
  const validation = metrics.filter((row) => row["validation"] !== undefined).map(({ step }) => step);
  expect(validation).toEqual(expect.arrayContaining([20, 40, 60])); // of its checkpoints
  const accuracies = metrics.flatMap(({ accuracy }) => (accuracy === undefined ? [] : [accuracy]));
  expect(accuracies.length).toBeGreaterThan(4);
  expect(accuracies.at(-1)).toBeGreaterThan(0.6); // of three held-out words; a guess is right in one of thirty-six
});
