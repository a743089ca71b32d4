/** The tables of attacks name the tests that try them. */
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import ts from "typescript";
import { expect, test } from "vitest";
import { projectRoot } from "../support/project.ts";

type Named = { readonly path: string; readonly title: string | undefined };

/** By attacker, the tests that its row names: the file, from the root, and the title of a link, which is part of a test's name. */
function namedTests(document: string): Map<string, Named[]> {
  const lines = readFileSync(join(projectRoot, document), "utf8").split("\n");
  const from = lines.findIndex((line) => line.startsWith("| attacker | can | cannot | tried in |"));
  const rows = lines.slice(from + 2, lines.indexOf("", from));
  return new Map(
    rows.map((row) => {
      const [attacker = "", , , tried = ""] = row.slice(2, -2).split(" | ");
      const links = [...tried.matchAll(/\]\(([^)\s]+)(?: "([^"]*)")?\)/g)];
      const pathOf = (path: string) => relative(projectRoot, join(projectRoot, dirname(document), path));
      return [attacker, links.map(([, path = "", title]) => ({ path: pathOf(path), title }))];
    }),
  );
}

/** The names of a file's tests, as they stand there. */
function titlesIn(path: string): string[] {
  const source = ts.createSourceFile(path, readFileSync(join(projectRoot, path), "utf8"), ts.ScriptTarget.Latest, true);
  const titles: string[] = [];
  const visit = (node: ts.Node): void => {
    if (ts.isCallExpression(node)) {
      // `test`, `test.skipIf(…)`, `test.each(…)`: the call whose first argument is a text.
      const [title] = node.arguments;
      const isTest = /^(test|it)$/.test(rootOf(node.expression).getText());
      const isText = title !== undefined && (ts.isStringLiteral(title) || ts.isTemplateLiteral(title));
      if (isTest && isText) titles.push(title.getText());
    }
    ts.forEachChild(node, visit);
  };
  visit(source);
  return titles;
}

const rootOf = (node: ts.Expression): ts.Expression =>
  ts.isCallExpression(node) || ts.isPropertyAccessExpression(node) ? rootOf(node.expression) : node;

const documents = ["README.md", "docs/guides/security.md"];

test.each(documents)("each attacker of %s is tried by tests that exist", (document) => {
  const named = namedTests(document);
  expect(named.size).toBe(5);
  for (const [attacker, tests] of named) {
    expect(tests, attacker).not.toEqual([]);
    for (const { path, title = "" } of tests) {
      const found = titlesIn(path).filter((each) => each.includes(title));
      if (title === "") expect(found.length, path).toBeGreaterThan(0);
      else expect(found, `'${title}' in ${path}`).toHaveLength(1);
    }
  }
});

test("each link of the README's table says which test of the file it means, in enough words to know it by", () => {
  for (const { path, title = "" } of [...namedTests("README.md").values()].flat())
    expect(title.split(" ").length, `'${title}' of ${path}`).toBeGreaterThanOrEqual(4);
});

test("no test of an attacker is missing in the whole table", () => {
  const named = new Set([...namedTests("docs/guides/security.md").values()].flat().map(({ path }) => path));
  const all = readdirSync(join(projectRoot, "test/hostile")).filter((name) => name.endsWith(".test.ts"));
  expect(all.map((name) => `test/hostile/${name}`).filter((path) => !named.has(path))).toEqual([]);
});
