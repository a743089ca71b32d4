/** Whatever a document tells somebody to type exists: commands, options, keys of the configuration, scripts. */
import { existsSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { RuntimeConfig } from "@treadle/contracts";
import { validateWorkflow } from "@treadle/runtime/runner";
import { expect, test } from "vitest";
import { z } from "zod";
import { readRunSpecs } from "../../packages/cli/src/multiplex/run-specs.ts";
import { createProgram, loadProgram } from "../../packages/cli/src/program.ts";
import { documents } from "../support/markdown.ts";
import { projectRoot } from "../support/project.ts";
import { shellCommands } from "../support/shell-words.ts";

const program = await loadProgram();
type Command = typeof program;
silence(program);

type Documented = { readonly words: readonly string[]; readonly at: string; readonly isMention: boolean };

/** Words of a command after its environment and, where it is Treadle's, after `treadle`. */
function treadleWords(words: readonly string[]): string[] | undefined {
  const command = words.slice(words.findIndex((word) => !/^[A-Z_]+=/.test(word)));
  const [first, second] = command;
  if (first === "treadle") return command.slice(1);
  return first === "npx" && second === "treadle" ? command.slice(2) : undefined;
}

const shown = documents.flatMap((document) => [
  ...document.blocks
    .filter(({ language }) => /^(sh|bash|shell)$/.test(language))
    .flatMap(({ text, at }) => shellCommands(text).map((words) => ({ words, at, isMention: false }))),
  ...document.inlineCode.flatMap(({ text, at }) =>
    shellCommands(text).map((words) => ({ words, at, isMention: true })),
  ),
]);

const ofTreadle: Documented[] = shown.flatMap(({ words, ...rest }) => {
  const own = treadleWords(words);
  return own ? [{ words: own, ...rest }] : [];
});

function silence(command: Command): void {
  command.configureOutput({ writeErr: () => {} });
  for (const inner of command.commands) silence(inner as Command);
}

/** By commander's own parser, whose actions and hooks do not run; a mention may leave arguments out. */
function check({ words, isMention }: Pick<Documented, "words" | "isMention">): void {
  let command = program;
  let rest = words.filter((word) => word !== "--help");
  for (;;) {
    const { operands, unknown } = command.parseOptions([...rest]);
    const [name] = operands;
    const inner = command.commands.find((each) => each.name() === name || each.aliases().includes(name ?? ""));
    if (!inner) {
      const { registeredArguments } = command;
      const isGroup = command.commands.length > 0 && registeredArguments.length === 0;
      if (isGroup && name !== undefined && name !== "<command>") throw new Error(`no command '${name}'`);
      if (unknown.length > 0) throw new Error(`'${command.name()}' has no option '${unknown[0]}'`);
      const isOpen = registeredArguments.at(-1)?.variadic === true || operands.at(-1) === "…";
      const needed = isGroup ? 1 : registeredArguments.filter(({ required }) => required).length;
      const isLong = !isGroup && operands.length > registeredArguments.length && !isOpen;
      if (!isMention && !words.includes("--help") && operands.length < needed) {
        throw new Error(`'${command.name()}' lacks an argument`);
      }
      if (isLong) throw new Error(`'${command.name()}' takes no '${operands.at(-1)}'`);
      return;
    }
    command = inner as Command;
    rest = [...operands.slice(1), ...unknown];
  }
}

const problemOf = (documented: Documented): string[] => {
  try {
    check(documented);
    return [];
  } catch (error) {
    const isOptionNamed =
      documented.isMention && (error as { code?: string }).code === "commander.optionMissingArgument";
    return isOptionNamed ? [] : [`${documented.at}: ${(error as Error).message}`];
  }
};

test("every command line of Treadle in a document has a command, options and arguments that exist", () => {
  expect(ofTreadle.length).toBeGreaterThan(100);
  expect(ofTreadle.flatMap(problemOf)).toEqual([]);
});

test.each([
  "rum workflows/bandit",
  "run workflows/bandit --mode spatial",
  "run",
  "run workflows/bandit workflows/bandit",
  "cluster begin",
  "simulate workflows/bandit --mode temporary",
])("a wrong command line is found: %s", (line) => {
  const [words = []] = shellCommands(line);
  expect(problemOf({ words, at: "here", isMention: false })).toHaveLength(1);
});

type Configured = {
  readonly at: string;
  readonly workflow: string | undefined;
  readonly overrides: readonly string[];
  readonly configFile: string | undefined;
};
const configured = ofTreadle
  .flatMap(({ words, at }): Configured[] => {
    const values = (flag: string) => words.flatMap((word, i) => (words[i - 1] === flag ? [word] : []));
    const workflow = words.find((word) => /^workflows\/[a-z-]+$/.test(word));
    const workflows = words.filter((word) => /^([a-z]+=)?workflows\/[a-z-]+$/.test(word));
    if (words.includes("multiplex") && workflows.length > 1) {
      return readRunSpecs(workflows, { set: values("--set"), config: values("--config") }).map((run) => ({
        at,
        ...run,
      }));
    }
    return [{ at, workflow, overrides: values("--set"), configFile: values("--config")[0] }];
  })
  .filter(({ overrides, configFile }) => overrides.length > 0 || configFile !== undefined)
  .filter(({ overrides }) => !overrides.some((override) => /[<…]/.test(override)));

test("every key and value that a document sets is one that its workflow takes", async () => {
  expect(configured.length).toBeGreaterThan(20);
  const problems: string[] = [];
  for (const { at, workflow, overrides, configFile } of configured) {
    const isShipped = workflow !== undefined && existsSync(join(projectRoot, workflow));
    try {
      if (isShipped) {
        const file = configFile?.includes("*") ? undefined : configFile;
        await validateWorkflow({
          workflow: join(projectRoot, workflow),
          configFile: file && join(projectRoot, file),
          overrides,
          projectRoot,
        });
      } else {
        const unknown = overrides.filter((override) => !isKey(RuntimeConfig, override.split("=")[0] as string));
        if (unknown.length > 0) problems.push(`${at}: ${unknown.join(", ")}`);
      }
    } catch (error) {
      problems.push(`${at}: ${(error as Error).message}`);
    }
  }
  expect(problems).toEqual([]);
});

/** Whether a path of keys leads to something that the schema has. */
function isKey(schema: z.ZodType, path: string): boolean {
  type Node = { properties?: Record<string, Node>; additionalProperties?: Node | boolean; anyOf?: Node[] };
  let node: Node | undefined = z.toJSONSchema(schema, { io: "input", unrepresentable: "any" }) as Node;
  for (const key of path.split(".")) {
    const open: Node | boolean | undefined = node?.additionalProperties;
    node = node?.properties?.[key] ?? (typeof open === "object" ? open : undefined);
  }
  return node !== undefined;
}

test("every script of npm that a document names exists", () => {
  const { scripts } = JSON.parse(readFileSync(join(projectRoot, "package.json"), "utf8")) as {
    scripts: Record<string, string>;
  };
  const named = shown.flatMap(({ words, at }) => {
    const [npm, run, script] = words.slice(words.findIndex((word) => !/^[A-Z_]+=/.test(word)));
    return npm === "npm" && run === "run" && script ? [{ script, at }] : [];
  });
  expect(named.length).toBeGreaterThan(5);
  const packages = documents.filter(({ path }) => path.startsWith("packages/")).map(({ path }) => path);
  expect(
    named.filter(({ script, at }) => !Object.hasOwn(scripts, script) && !packages.some((path) => at.startsWith(path))),
  ).toEqual([]);
});

/** The script of this repository that a command starts, and what it is given; undefined where it starts none. */
function scriptOf(
  words: readonly string[],
): { readonly script: string; readonly given: readonly string[] } | undefined {
  const { scripts } = JSON.parse(readFileSync(join(projectRoot, "package.json"), "utf8")) as {
    scripts: Readonly<Record<string, string>>;
  };
  const [program, run, name, dashes, ...rest] = words;
  const isNpm = program === "npm" && run === "run" && name !== undefined && dashes === "--";
  const command = isNpm ? [...(scripts[name] ?? "").split(" "), ...rest] : words;
  const at = command.findIndex((word) => /^[\w./-]+\.(ts|js|mjs)$/.test(word));
  return command[0] === "node" && at > 0 ? { script: command[at] as string, given: command.slice(at + 1) } : undefined;
}

/** What a script and the files beside it that it imports say. */
function sourceOf(script: string, seen = new Set<string>()): string {
  if (seen.has(script)) return "";
  seen.add(script);
  const source = readFileSync(join(projectRoot, script), "utf8");
  const imported = [...source.matchAll(/from "(\.[^"]+\.ts)"/g)].map(([, path]) =>
    join(dirname(script), path as string),
  );
  return [source, ...imported.map((path) => sourceOf(path, seen))].join("\n");
}

/** Flags that are no key of an options' schema (`name: z.string()`) or of `parseArgs` (`name: { type: … }`) there. */
const unknownFlags = (script: string, given: readonly string[]): string[] => {
  const flags = given.flatMap((word) => /^--([a-z][a-z-]*)/.exec(word)?.[1] ?? []);
  return flags.filter((flag) => !new RegExp(`^ *${flag}: (\\w+\\.|split|\\{ type:)`, "m").test(sourceOf(script)));
};

test("every flag of a script that a document starts is one that the script takes", () => {
  const started = shown.flatMap(({ words, at }) => {
    const found = scriptOf(words);
    return found === undefined ? [] : [{ ...found, at }];
  });
  expect(started.length).toBeGreaterThan(8);
  expect(
    started.flatMap(({ script, given, at }) => unknownFlags(script, given).map((flag) => `${at}: --${flag}`)),
  ).toEqual([]);
  const wrong = scriptOf(["npm", "run", "soak", "--", "--seads", "3"]);
  expect(wrong && unknownFlags(wrong.script, wrong.given)).toEqual(["seads"]);
});

const runnable = shown.filter(({ isMention }) => !isMention);
const programOf = (words: readonly string[]): string | undefined => words.find((word) => !/^[A-Za-z_]+=/.test(word));

/** What documents start besides Treadle, npm and Node, and where it is tried, or why nowhere. */
const otherPrograms: Readonly<Record<string, string>> = {
  "nats-server": "test/support and the tests of faults start it with what 'cluster init' writes",
  docker: "needs an engine and images of this commit; test/laws/deploy.test.ts reads the files",
  helm: "test/laws/helm-chart.test.ts renders the chart with values of its own",
  kubectl: "needs a cluster of Kubernetes; test/laws/helm-chart.test.ts checks what would be applied",
  sbatch: "needs Slurm; test/laws/deploy.test.ts lints the script",
  systemctl: "needs systemd; test/laws/deploy.test.ts lints the units",
  sudo: "gives files to another user",
  openssl: "writes a certificate for a server that nobody runs here",
  pip: "fetches gigabytes; test/support/python-environment.ts installs the same",
  python: "test/e2e and packages/actions/test start Python from environments of their own",
  ...Object.fromEntries(["cd", "cp", "tr", "for", "do", "done"].map((word) => [word, "the shell's own"])),
};

test("every program in a shell block is Treadle's, npm's, Node's, or one of which it is known where it is tried", () => {
  const known = new Set(["treadle", "npx", "npm", "node", ...Object.keys(otherPrograms)]);
  const programs = runnable.map(({ words, at }) => ({ program: programOf(words), at }));
  expect(programs.length).toBeGreaterThan(100);
  expect(programs.filter(({ program }) => program !== undefined && !known.has(program))).toEqual([]);
  const unused = Object.keys(otherPrograms).filter((name) => !programs.some(({ program }) => program === name));
  expect(unused, "no document starts these any more").toEqual([]);
});

/** Folders that come into being as the reader does what the document says. */
const madeByReaders = new Set(["deploy/docker/keys"]);

test("every file and folder that a shell block names exists, or its document has the reader write it", () => {
  const isWritten = (path: string, document: string): boolean =>
    madeByReaders.has(path) ||
    (path.startsWith("workflows/") &&
      documents.some((each) => each.path === document && each.blocks.some(({ file }) => file !== undefined)));
  const named = runnable.flatMap(({ words, at }) =>
    words
      .flatMap((word) => word.match(/(?<![\w./-])(?:workflows|packages|test|docs|deploy|python)\/[\w./@*-]+/g) ?? [])
      .map((path) => ({ path: path.replace(/\/?\*.*$/, ""), at, document: at.replace(/:\d+$/, "") })),
  );
  expect(named.length).toBeGreaterThan(50);
  expect(
    named.filter(({ path, document }) => !existsSync(join(projectRoot, path)) && !isWritten(path, document)),
  ).toEqual([]);
});

/** Every command's help by its name, with those that no help lists. */
function helpOf(command: Command, parent = ""): [string, string][] {
  const name = `${parent} ${command.name()}`;
  const inner = command.commands.flatMap((each) => helpOf(each as Command, name));
  return [[name, command.helpInformation()], ...inner];
}

test("the manifest has the help of every command, word for word", async () => {
  const [manifest, loaded] = [helpOf(await createProgram()), helpOf(program)];
  expect(loaded.length).toBeGreaterThan(30);
  expect(Object.fromEntries(manifest)).toEqual(Object.fromEntries(loaded));
});
