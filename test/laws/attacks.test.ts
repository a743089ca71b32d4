/** The tables of attacks name the tests that try them. */
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { expect, test } from "vitest";
import { projectRoot } from "../support/project.ts";

/** By attacker, the tests that its row names, from the root. */
function namedTests(document: string): Map<string, string[]> {
  const lines = readFileSync(join(projectRoot, document), "utf8").split("\n");
  const from = lines.findIndex((line) => line.startsWith("| attacker | can | cannot | tried in |"));
  const rows = lines.slice(from + 2, lines.indexOf("", from));
  return new Map(
    rows.map((row) => {
      const [attacker = "", , , tried = ""] = row.slice(2, -2).split(" | ");
      const paths = [...tried.matchAll(/\]\(([^)]+)\)/g)].map(([, path = ""]) => path);
      return [attacker, paths.map((path) => relative(projectRoot, join(projectRoot, dirname(document), path)))];
    }),
  );
}

const documents = ["README.md", "docs/guides/security.md"];

test.each(documents)("each attacker of %s is tried by tests that exist", (document) => {
  const named = namedTests(document);
  expect(named.size).toBe(5);
  for (const [attacker, paths] of named) {
    expect(paths, attacker).not.toEqual([]);
    for (const path of paths)
      expect(/^\s*(test|it)(\.each|\.skipIf)?\(/m.test(readFileSync(join(projectRoot, path), "utf8")), path).toBe(true);
  }
});

test("no test of an attacker is missing in the whole table", () => {
  const named = new Set([...namedTests("docs/guides/security.md").values()].flat());
  const all = readdirSync(join(projectRoot, "test/hostile")).filter((name) => name.endsWith(".test.ts"));
  expect(all.map((name) => `test/hostile/${name}`).filter((path) => !named.has(path))).toEqual([]);
});
