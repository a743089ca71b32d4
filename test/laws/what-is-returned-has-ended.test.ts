import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join, relative } from "node:path";
import ts from "typescript";
import { expect, test } from "vitest";
import { projectRoot } from "../support/project.ts";

/** Whether something that was taken before `node` is disposed of when `node` leaves its function. */
function isDisposing(node: ts.Node): boolean {
  const isTaken = (statement: ts.Statement): boolean =>
    statement.end <= node.pos &&
    ts.isVariableStatement(statement) &&
    (statement.declarationList.flags & ts.NodeFlags.Using) === ts.NodeFlags.Using;
  for (let at = node.parent; at !== undefined && !ts.isFunctionLike(at); at = at.parent)
    if (ts.isBlock(at) && at.statements.some(isTaken)) return true;
  return false;
}

/** Promises that are returned unawaited where a lock, a span or a file ends before they do. */
function unawaited(files: readonly string[], options: ts.CompilerOptions): string[] {
  const program = ts.createProgram(files, options);
  const checker = program.getTypeChecker();
  const found: string[] = [];
  for (const path of files) {
    const file = program.getSourceFile(path) as ts.SourceFile;
    const visit = (node: ts.Node): void => {
      if (
        ts.isReturnStatement(node) &&
        node.expression &&
        !ts.isAwaitExpression(node.expression) &&
        isDisposing(node)
      ) {
        const type = checker.getTypeAtLocation(node.expression);
        if (checker.getPropertyOfType(type, "then") !== undefined) {
          const { line } = file.getLineAndCharacterOfPosition(node.getStart());
          found.push(`${relative(projectRoot, path)}:${line + 1}: ${node.getText().split("\n")[0]}`);
        }
      }
      node.forEachChild(visit);
    };
    visit(file);
  }
  return found;
}

const sources = execFileSync("git", ["ls-files", "--cached", "--others", "--exclude-standard", "*.ts"], {
  cwd: projectRoot,
  encoding: "utf8",
})
  .split("\n")
  .filter((path) => path !== "")
  .map((path) => join(projectRoot, path))
  .filter((path) => /\busing \w+ = /.test(readFileSync(path, "utf8")));

test("what is returned has ended before a lock, a span or a file that it needs does: it is awaited", () => {
  const { config } = ts.readConfigFile(join(projectRoot, "tsconfig.json"), ts.sys.readFile);
  const { options } = ts.parseJsonConfigFileContent(config, ts.sys, projectRoot);
  expect(sources.length).toBeGreaterThan(20);
  expect(unawaited(sources, options)).toEqual([]);
}, 300_000);
