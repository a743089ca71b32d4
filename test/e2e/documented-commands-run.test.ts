/**
 * The command lines of Treadle that documents show, typed one after the other as their reader would, in a project of its own
 * for each document. What is left out is named, with the reason.
 */
import { existsSync } from "node:fs";
import { cp, mkdir, mkdtemp, readdir, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { documents, type MarkdownFile } from "../support/markdown.ts";
import { projectRoot } from "../support/project.ts";
import { shellCommands } from "../support/shell-words.ts";
import { startTreadle } from "../support/treadle.ts";

type LeftOut = { readonly line: RegExp; readonly why: string; readonly trains?: true };

/** The first that fits counts. `trains`: a short run of another workflow stands for it, which the next lines look at. */
const leftOut: readonly LeftOut[] = [
  { line: /^(dashboard|node|logs -f|actions (serve|top)|pool start)\b/, why: "ends when it is told to" },
  { line: /--(cluster|nats)\b/, why: "needs NATS and agents: test/fault and test/integration start them" },
  { line: /^(bench|compare|multiplex)\b/, why: "minutes: packages/bench/test, test/e2e and test/fault run less of it" },
  {
    line: /^trace --pool\b/,
    why: "needs runs that shared devices: test/fault/runs-compute-beside-each-other.test.ts has some",
  },
  { line: /^(profile|graph)\b/, why: "trains for minutes: packages/cli/test and test/e2e measure small workflows" },
  { line: /^(plan|simulate)\b/, why: "needs a profile of minutes: test/e2e/simulate.test.ts has one" },
  { line: /^export\b/, why: "needs a run on PyTorch: test/e2e/torch-models-are-exported.test.ts has one" },
  { line: /^mismatch\b/, why: "needs an alarm: test/e2e/mismatches-are-shown.test.ts has one" },
  { line: /^actions profile (?!--help)/, why: "runs the reader's own tests" },
  { line: /^init .*--packages/, why: "needs packed packages: test/e2e/packages-install.test.ts packs them" },
  {
    line: /^run workflows\/(reasoning-grpo|tool-agent|tested-programs|embodied-ppo|emulated|last-letter)\b/,
    why: "trains for minutes: test/laws resolves its configuration, test/e2e trains the workflow",
    trains: true,
  },
];

/** What makes a line short, or keeps it from the network, and changes nothing of what it shows. */
const shortened: readonly (readonly [RegExp, string])[] = [
  [/^init /, "--no-install"],
  [/^run workflows\/squares .*steps=2000/, "--set steps=20"],
  [/^resume .*steps=600/, "--set steps=45"],
];

type Typed = { readonly at: string; readonly line: string };

const typedIn = ({ blocks }: MarkdownFile): Typed[] =>
  blocks
    .filter(({ language }) => language === "sh")
    .flatMap(({ text, at }) =>
      shellCommands(text).flatMap((words) => {
        const [first, second, ...rest] = words;
        if (first === "cd") return [{ at, line: words.join(" ") }];
        return first === "npx" && second === "treadle" ? [{ at, line: rest.join(" ") }] : [];
      }),
    );

const reasonOf = (line: string): LeftOut | undefined => leftOut.find((each) => each.line.test(line));
const isRun = ({ line }: Typed): boolean => !line.startsWith("cd ") && reasonOf(line) === undefined;
const sessions = documents
  .map((document) => ({ document, path: document.path, typed: typedIn(document) }))
  .filter(({ typed }) => typed.some(isRun));

let root: string;
beforeAll(async () => {
  // Below the project, so that its packages are found; where git and the tools look at nothing.
  const cache = join(projectRoot, ".cache");
  await mkdir(cache, { recursive: true });
  root = await mkdtemp(join(cache, "typed-"));
});
afterAll(() => rm(root, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 }));

/** A project with the shipped workflows. */
async function writeProject(folder: string): Promise<void> {
  const workflows = join(folder, "workflows");
  await cp(join(projectRoot, "workflows"), workflows, {
    recursive: true,
    filter: (path) => !path.endsWith(".test.ts"),
  });
  await writeFile(join(folder, "package.json"), '{ "type": "module" }\n');
  await install(folder);
}

/** What 'npm install' leaves where a project's root is. */
const install = (folder: string): Promise<void> => writeFile(join(folder, "package-lock.json"), "{}\n");

/** The workflow that a document shows, where its reader writes it. */
async function writeShown({ blocks }: MarkdownFile, folder: string, line: string): Promise<void> {
  const [workflow] = /workflows\/[a-z-]+/.exec(line) ?? [];
  const files = blocks.filter(({ file }) => file !== undefined);
  if (workflow === undefined || files.length === 0 || existsSync(join(folder, workflow))) return;
  await mkdir(join(folder, workflow));
  for (const { file, text } of files) await writeFile(join(folder, workflow, file as string), `${text}\n`);
}

const newestRun = async (folder: string): Promise<string> =>
  (await readdir(join(folder, "runs")).catch(() => []))
    .filter((name) => !name.startsWith("."))
    .sort()
    .at(-1) ?? "<run>";

describe("what a document has its reader type does what it says", () => {
  test.each(sessions.map(({ path, ...session }) => [path, session] as const))(
    "%s",
    { timeout: 900_000 },
    async (path, { document, typed }) => {
      const project = join(root, path.replace(/[^A-Za-z0-9]+/g, "-"));
      await writeProject(project);
      let folder = project;
      let hasTrained = false;
      for (const { line, at } of typed) {
        if (line.startsWith("cd ")) {
          folder = join(folder, line.slice("cd ".length));
          await install(folder);
          continue;
        }
        const out = reasonOf(line);
        if (out !== undefined && (out.trains === undefined || hasTrained)) continue;
        hasTrained ||= out !== undefined;
        const said = out === undefined ? line : "run workflows/bandit --set steps=3";
        const more = shortened.filter(([pattern]) => pattern.test(said)).map(([, words]) => words);
        const [words = []] = shellCommands([said.replaceAll("<run>", await newestRun(folder)), ...more].join(" "));
        await writeShown(document, folder, said);
        const { code, stderr } = await startTreadle(words, "", folder).finished;
        expect({ at, line, code, stderr: code === 0 ? "" : stderr }).toEqual({ at, line, code: 0, stderr: "" });
      }
    },
  );
});

test("what is left out is still in a document", () => {
  const lines = documents.flatMap(typedIn).map(({ line }) => line);
  expect(leftOut.filter((each) => !lines.some((line) => reasonOf(line) === each)).map(({ line }) => line)).toEqual([]);
  expect(shortened.filter(([pattern]) => !lines.some((line) => pattern.test(line)))).toEqual([]);
  expect(sessions.flatMap(({ typed }) => typed.filter(isRun)).length).toBeGreaterThan(25);
});
