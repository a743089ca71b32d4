/** TypeScript that a document shows compiles, against the packages as a user imports them; Python finds what it imports of ours. */
import { execFileSync } from "node:child_process";
import { existsSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import ts from "typescript";
import { expect, test } from "vitest";
import { type CodeBlock, documents } from "../support/markdown.ts";
import { projectRoot } from "../support/project.ts";

/** Blocks of one document that name their files (```` ```ts [run.ts] ````) lie in one folder and import one another. */
const blocks = documents.flatMap(({ path, blocks }) =>
  blocks
    .filter(({ language }) => language === "ts")
    .map((block, index) => {
      const folder = join(projectRoot, "workflows", `documented-${path.replace(/[^A-Za-z0-9]+/g, "-")}`);
      return { block, file: join(folder, block.file ?? `block-${index}.ts`) };
    }),
);

function problemsOf(
  shown: readonly { readonly block: Pick<CodeBlock, "text" | "at">; readonly file: string }[],
): string[] {
  const config = ts.readConfigFile(join(projectRoot, "tsconfig.json"), ts.sys.readFile);
  const { options } = ts.parseJsonConfigFileContent({ ...config.config, include: [], files: [] }, ts.sys, projectRoot);
  const texts = new Map(shown.map(({ block, file }) => [resolve(file), block.text]));
  const host = ts.createCompilerHost(options);
  const { fileExists, readFile, getSourceFile, directoryExists } = host;
  const folders = new Set([...texts.keys()].map(dirname));
  host.fileExists = (path) => texts.has(path) || fileExists(path);
  host.directoryExists = (path) => folders.has(path) || directoryExists?.(path) === true;
  host.readFile = (path) => texts.get(path) ?? readFile(path);
  host.getSourceFile = (path, languageVersion, ...rest) => {
    const text = texts.get(path);
    return text === undefined
      ? getSourceFile(path, languageVersion, ...rest)
      : ts.createSourceFile(path, text, languageVersion, true);
  };
  const program = ts.createProgram(
    [...texts.keys()],
    { ...options, noUnusedLocals: false, noUnusedParameters: false },
    host,
  );
  return shown.flatMap(({ block, file }) => {
    const source = program.getSourceFile(resolve(file));
    const found = [...program.getSyntacticDiagnostics(source), ...program.getSemanticDiagnostics(source)];
    return found.map(({ messageText, start = 0 }) => {
      const line = source ? source.getLineAndCharacterOfPosition(start).line + 1 : 0;
      return `${block.at}+${line}: ${ts.flattenDiagnosticMessageText(messageText, "\n")}`;
    });
  });
}

test("every block of TypeScript in a document has the types that it says", () => {
  expect(blocks.length).toBeGreaterThan(8);
  const wrong = {
    block: { text: `import { workflow } from "@treadle/runtime";\nworkflow(1);`, at: "wrong" },
    file: join(projectRoot, "workflows/documented-wrong/run.ts"),
  };
  const problems = problemsOf([...blocks, wrong]);
  expect(problems.filter((problem) => problem.startsWith("wrong"))).toHaveLength(1);
  expect(problems.filter((problem) => !problem.startsWith("wrong"))).toEqual([]);
}, 600_000); // the compiler reads every package

/** Prints what is wrong with the source on standard input; the first argument is the folder of the package `treadle`. */
const pythonCheck = `
import ast, pathlib, sys
tree = ast.parse(sys.stdin.read())
package = pathlib.Path(sys.argv[1])
for node in ast.walk(tree):
    if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "treadle":
        path = package.joinpath(*node.module.split(".")[1:])
        source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        names = {name for part in ast.walk(ast.parse(source.read_text()))
                 for name in ([part.name] if isinstance(part, (ast.ClassDef, ast.FunctionDef)) else
                              [alias.asname or alias.name for alias in part.names] if isinstance(part, ast.ImportFrom) else [])}
        for alias in node.names:
            if alias.name not in names:
                print(f"'{node.module}' has no '{alias.name}'")
`;
const hasPython = (process.env["PATH"] ?? "").split(":").some((folder) => existsSync(join(folder, "python3")));

/** Without its packages: what they are given is not looked at. */
function problemsOfPython(text: string): string {
  const sources = join(projectRoot, "python/treadle/src/treadle");
  try {
    return execFileSync("python3", ["-c", pythonCheck, sources], {
      input: text,
      encoding: "utf8",
      stdio: "pipe",
    }).trim();
  } catch (error) {
    return (error as { readonly stderr: string }).stderr.trim().split("\n").at(-1) as string;
  }
}

test.skipIf(!hasPython)(
  "every block of Python in a document is Python, and imports what the package treadle has",
  () => {
    const shown = documents.flatMap(({ blocks }) => blocks.filter(({ language }) => language === "python"));
    expect(shown.length).toBeGreaterThan(1);
    expect(shown.map(({ text, at }) => [at, problemsOfPython(text)]).filter(([, problems]) => problems !== "")).toEqual(
      [],
    );
    expect(problemsOfPython("from treadle import Actions, Amdal")).toBe("'treadle' has no 'Amdal'");
    expect(problemsOfPython("def score(prompt:")).toContain("SyntaxError");
  },
);
