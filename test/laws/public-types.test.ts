import { readFileSync } from "node:fs";
import { join } from "node:path";
import ts from "typescript";
import { expect, test } from "vitest";
import { projectRoot } from "../support/project.ts";

const source = (path: string) =>
  ts.createSourceFile(path, readFileSync(join(projectRoot, path), "utf8"), ts.ScriptTarget.ES2022, true);

/** The names of types that a file's exported declarations mention, bodies and private members left out. */
function mentioned(file: ts.SourceFile): Set<string> {
  const names = new Set<string>();
  const visit = (node: ts.Node): void => {
    if (ts.isBlock(node) || ts.isPrivateIdentifier(node)) return;
    if (ts.isPropertyDeclaration(node) && ts.isPrivateIdentifier(node.name)) return;
    if (ts.isTypeReferenceNode(node) && ts.isIdentifier(node.typeName)) names.add(node.typeName.text);
    node.forEachChild(visit);
  };
  for (const statement of file.statements) {
    const isExported =
      ts.canHaveModifiers(statement) &&
      ts.getModifiers(statement)?.some(({ kind }) => kind === ts.SyntaxKind.ExportKeyword);
    if (isExported) visit(statement);
  }
  return names;
}

function exported(file: ts.SourceFile): Set<string> {
  const names = new Set<string>();
  for (const statement of file.statements) {
    if (!ts.isExportDeclaration(statement) || !statement.exportClause) continue;
    if (ts.isNamedExports(statement.exportClause)) {
      for (const { name } of statement.exportClause.elements) names.add(name.text);
    }
  }
  return names;
}

test("every type in the public face of a worker can be imported from @treadle/runtime", () => {
  const file = source("packages/runtime/src/author/worker.ts");
  const own = new Set(["C", "W", "Promise", "Record", "Uint8Array", "Disposable"]); // parameters, and what the language has
  const internal = new Set(["AnyWorkerClass"]); // of functions that only the runtime calls
  const named = [...mentioned(file)].filter((name) => !own.has(name) && !internal.has(name));
  expect(named.length).toBeGreaterThan(5);
  const known = exported(source("packages/runtime/src/index.ts"));
  expect(named.filter((name) => !known.has(name))).toEqual([]);
});
