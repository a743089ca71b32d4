/** The files of a new project: a shipped workflow, what npm and the compiler need, and a test. */
import { existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { basename, join } from "node:path";
import { packageFolder } from "@treadle/contracts/package-folder";
import { loadWorkflow } from "@treadle/runtime/runner";
import { configSchema } from "./config-schema.ts";

type Template = {
  /** folder of the shipped workflow */
  readonly workflow: string;
  /** files and folders of it; all its configurations come, too */
  readonly files: readonly string[];
  readonly about: string;
  /** what makes two steps soon, for the project's test */
  readonly quick?: readonly string[];
};

const quickImitation = ["imitation.maxRounds=1", "evaluation.problems=32", "evaluation.validationProblems=32"];

export const templates = {
  own: {
    workflow: "bandit",
    files: ["run.ts"],
    about: "workers of your own: a policy learns which arm of a slot machine pays best",
  },
  reasoning: {
    workflow: "reasoning-grpo",
    files: ["run.ts", "problems.jsonl", "tokenizer"],
    about: "a language model learns arithmetic by GRPO: rollout, inference and actor",
    quick: quickImitation,
  },
  tools: {
    workflow: "tool-agent",
    files: ["run.ts", "demonstration.ts"],
    about: "a language model learns to call a tool, which runs in sandboxes",
    quick: quickImitation,
  },
  embodied: {
    workflow: "embodied-ppo",
    files: ["run.ts"],
    about: "a policy learns to balance a pole by PPO: simulator and actor in a cycle",
  },
} as const satisfies Record<string, Template>;

export type TemplateName = keyof typeof templates;

const folder = packageFolder(import.meta.url);

/** A package brings them; a checkout has them beside its packages. */
const shipped = ["templates", "../../workflows"]
  .map((path) => join(folder, path))
  .find((path) => existsSync(path)) as string;

const own = JSON.parse(readFileSync(join(folder, "package.json"), "utf8")) as {
  readonly version: string;
  readonly dependencies: Readonly<Record<string, string>>;
  readonly peerDependencies: Readonly<Record<string, string>>;
};

export const ownVersion: string = own.version;

/** Packages of Treadle's that the one which users install needs. */
export const siblings: readonly string[] = Object.keys(own.dependencies).filter((name) => name.startsWith("@treadle/"));

/** What a project needs. */
export const ownDependencies = { treadle: own.version, zod: own.peerDependencies["zod"] };

/** Text by path, relative to the project's folder; `manifest` adds keys to its package.json, or replaces them. */
export async function projectFiles(
  folder: string,
  name: TemplateName,
  manifest: object = {},
): Promise<Readonly<Record<string, string>>> {
  const { workflow, files, quick = [] }: Template = templates[name];
  const source = join(shipped, workflow);
  const target = `workflows/${workflow}`;
  const read = (file: string): string => readFileSync(join(source, file), "utf8");
  const configurations = readdirSync(source).filter((file) => file.endsWith(".yaml"));
  const { schema } = (await loadWorkflow(source)).workflow;
  return {
    "package.json": json({ ...packageOf(folder, target), ...manifest }),
    "tsconfig.json": json(compilerOptions),
    ".gitignore": "node_modules/\nruns/\n.treadle/\n",
    ...Object.fromEntries(
      files.flatMap((path) => within(source, path)).map((file) => [`${target}/${file}`, read(file)]),
    ),
    ...Object.fromEntries(configurations.map((file) => [`${target}/${file}`, `${schemaLine}${read(file)}`])),
    [`${target}/config.schema.json`]: json(configSchema(schema)),
    [`${target}/run.test.ts`]: testOf(["steps=2", ...quick]),
  };
}

const schemaLine = "# yaml-language-server: $schema=./config.schema.json\n";

/** The files that a path of `root` stands for: itself, or what is in its folder. */
const within = (root: string, path: string): string[] =>
  statSync(join(root, path)).isDirectory()
    ? readdirSync(join(root, path)).flatMap((name) => within(root, `${path}/${name}`))
    : [path];

const json = (value: unknown): string => `${JSON.stringify(value, null, 2)}\n`;

/** Scripts that packages would run when they are installed, which nothing here needs: npm warns of each that no key decides. */
const refusedScripts = Object.fromEntries(
  ["cpu-features", "esbuild", "koffi", "msgpackr-extract", "protobufjs", "ssh2"].map((name) => [name, false]),
);

const packageOf = (folder: string, workflow: string) => ({
  name:
    basename(folder)
      .toLowerCase()
      .replace(/[^a-z0-9-]+/g, "-")
      .replace(/^-+|-+$/g, "") || "training",
  private: true,
  type: "module",
  scripts: {
    train: `treadle run ${workflow}`,
    dashboard: "treadle dashboard",
    test: `node --import tsx --test ${workflow}/run.test.ts`,
    typecheck: "tsc --noEmit",
    schema: `treadle schema ${workflow} > ${workflow}/config.schema.json`,
  },
  dependencies: ownDependencies,
  allowScripts: refusedScripts,
  devDependencies: { "@types/node": "^20.19.43", tsx: own.dependencies["tsx"], typescript: "~5.9.0" },
});

const compilerOptions = {
  compilerOptions: {
    target: "es2022",
    lib: ["es2023", "esnext.disposable"],
    module: "nodenext",
    strict: true,
    noUncheckedIndexedAccess: true,
    noImplicitOverride: true,
    exactOptionalPropertyTypes: true,
    verbatimModuleSyntax: true,
    allowImportingTsExtensions: true,
    noEmit: true,
    types: ["node"],
  },
  include: ["workflows"],
};

const testOf = (overrides: readonly string[]): string => `import assert from "node:assert/strict";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { runWorkflow } from "treadle/runner";

test("two steps are trained", async () => {
  const runsRoot = await mkdtemp(join(tmpdir(), "runs-"));
  try {
    const { summary } = await runWorkflow({
      workflow: fileURLToPath(new URL(".", import.meta.url)),
      projectRoot: process.cwd(),
      runsRoot,
      overrides: ${JSON.stringify(overrides).replaceAll(",", ", ")},
      onEvent: () => {},
    });
    assert.equal(summary.steps, 2);
  } finally {
    await rm(runsRoot, { recursive: true, force: true });
  }
});
`;
