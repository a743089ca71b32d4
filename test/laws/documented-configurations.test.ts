/**
 * Every block of YAML or JSON in a document is what Treadle reads: the schemas that `validate` and `run` use take it.
 *
 * The first line of a block says what it is checked as:
 * - `over=<configuration>`: keys of a workflow's configuration, which are laid over the ones of that file. Then the
 *   components are placed, too, unless `unplaced="<reason>"` says why this machine cannot;
 * - `as=actions`, `as=actions-host`: a configuration of the action service, of a host of its sandboxes;
 * - `foreign="<program>"`: read by another program, so only its syntax is checked;
 * - a file name: part of a workflow that the document shows as a whole, which test/e2e/documented-workflows.test.ts runs.
 */
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { ActionHostConfig, ActionServiceConfig } from "@treadle/actions/serve";
import { loadWorkflow, validateConfig, validateWorkflow } from "@treadle/runtime/runner";
import { expect, test } from "vitest";
import { parse, parseAllDocuments, stringify } from "yaml";
import { type CodeBlock, documents } from "../support/markdown.ts";
import { projectRoot } from "../support/project.ts";

type Block = Pick<CodeBlock, "language" | "file" | "info" | "text" | "at"> & { readonly document: string };

const allBlocks: readonly Block[] = documents.flatMap((document) =>
  document.blocks.map((block) => ({ ...block, document: document.path })),
);
const isData = ({ language }: Block): boolean => /^(ya?ml|jsonc?)$/.test(language);

type Values = { readonly [key: string]: unknown };
const isValues = (value: unknown): value is Values =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** As a reader would write the block into the file: records are joined, unless they say that they are of another kind. */
function laidOver(base: Values, over: Values): Values {
  const joined = Object.entries(over).map(([key, value]) => {
    const under = base[key];
    const isOther =
      isValues(under) && isValues(value) && ["kind", "name"].some((of) => of in value && value[of] !== under[of]);
    return [key, isValues(under) && isValues(value) && !isOther ? laidOver(under, value) : value];
  });
  return { ...base, ...Object.fromEntries(joined) };
}

/** Keys that a comment shows as others to choose from: `# docker: { … }`. */
const withComments = (text: string): string => text.replace(/^# (?=[a-z][A-Za-z]*: )/gm, "");

/** `isPlaced`: whether its components can be placed on this machine. */
async function checkConfiguration(text: string, under: string, isPlaced: boolean): Promise<void> {
  const file = join(projectRoot, under);
  const workflow = dirname(file);
  const values = parse(text) as unknown;
  if (!isValues(values)) throw new Error("it has no keys");
  const resolved = laidOver(parse(await readFile(file, "utf8")) as Values, values);
  validateConfig((await loadWorkflow(workflow)).workflow.schema, resolved);
  const folder = await mkdtemp(join(tmpdir(), "treadle-documented-"));
  try {
    const configFile = join(folder, "config.yaml");
    await writeFile(configFile, stringify(resolved));
    // What an earlier run has measured in this checkout says nothing of the documents.
    const overrides = [`placement.auto.profile=${join(folder, "profile.json")}`];
    const placing = validateWorkflow({ workflow, configFile, overrides, projectRoot });
    if (isPlaced) await placing;
    else
      await placing.then(
        () => Promise.reject(new Error("it can be placed here: 'unplaced' is wrong")),
        () => {},
      );
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

async function check(block: Block): Promise<void> {
  const { info, text, file, language } = block;
  const [, over, unplaced] = /^over=(\S+\.yaml)( unplaced="[^"]+")?$/.exec(info) ?? [];
  if (over !== undefined) return checkConfiguration(text, over, unplaced === undefined);
  if (info === "as=actions" || info === "as=actions-host") {
    for (const shown of [text, withComments(text)])
      if (info === "as=actions") validateConfig(ActionServiceConfig, parse(shown));
      else validateConfig(ActionHostConfig, parse(shown));
    return;
  }
  if (file?.endsWith(".jsonl")) {
    for (const line of text.split("\n")) JSON.parse(line);
    return checkShownWorkflow(block);
  }
  const problems = parseAllDocuments(text).flatMap(({ errors }) => errors);
  if (problems[0] !== undefined) throw problems[0];
  if (/^foreign="[^"]+"$/.test(info)) return;
  if (file === undefined) throw new Error(`its first line does not say what it is: '${language} ${info}'`);
  checkShownWorkflow(block);
}

function checkShownWorkflow({ document, file }: Block): void {
  if (!allBlocks.some((block) => block.document === document && block.file === "run.ts"))
    throw new Error(`'${file}' belongs to no workflow of its document`);
}

const problemOf = (block: Block): Promise<string[]> =>
  check(block).then(
    () => [],
    (error: Error) => [`${block.at}: ${error.message}`],
  );

const data = allBlocks.filter(isData);

test.each(data.map((block) => [block.at, block] as const))(
  "the block of %s is what its reader takes",
  async (_, block) => {
    expect(await problemOf(block)).toEqual([]);
  },
);

test.each([
  ["a key that nobody reads", "over=workflows/bandit/config.yaml", "learningRat: 1"],
  ["a value of another type", "over=workflows/bandit/config.yaml", "placement: { mode: sideways }"],
  ["a component that is not there", "over=workflows/bandit/config.yaml", "placement: { components: { actr: 0 } }"],
  ["a placement that is possible after all", 'over=workflows/bandit/config.yaml unplaced="no reason"', "batch: 8"],
  ["nothing", "over=workflows/bandit/config.yaml", "# batch: 8"],
  ["a driver that is not there", "as=actions", "drivers: [jail]"],
  ["a resource of a service, for a host", "as=actions-host", "resources: {}"],
  ["a wrong key in a comment", "as=actions", "drivers: [cgroup]\n# cgruop: { cgroupParent: /sys }"],
  ["what is no YAML", 'foreign="Prometheus"', "scrape_configs: [\n"],
  ["no word of what it is", "", "batch: 8"],
  ["a file name, in a document without a workflow", "", "batch: 8", "config.yaml"],
])("a block with %s is found", async (_, info, text, file?: string) => {
  expect(await problemOf({ language: "yaml", file, info, text, at: "here", document: "README.md" })).toHaveLength(1);
});

/** Which test reads the blocks of a language. */
const readBy: Readonly<Record<string, string>> = {
  ts: "test/laws/documented-code.test.ts compiles it",
  sh: "test/laws/documented-commands.test.ts parses its commands",
  yaml: "here",
  json: "here",
  python: "test/laws/documented-code.test.ts compiles it",
  dockerfile: "packages/actions/test/pytest-reward.test.ts builds it, but for what needs a registry",
  text: "nothing: a drawing, or what a command prints",
};

test("every block has a language, of which it is known what reads it", () => {
  for (const { path, text, blocks } of documents) {
    const fences = text.match(/^ *```/gm)?.length ?? 0;
    expect(`${fences} fences in ${path}`).toBe(`${2 * blocks.length} fences in ${path}`);
  }
  const languages = [...new Set(allBlocks.map(({ language }) => language))];
  expect(languages.sort()).toEqual(Object.keys(readBy).sort());
});
