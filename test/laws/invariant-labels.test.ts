/**
 * Invariants have labels: a line of a header comment that begins with one defines it, as in "RS1 the first failure …", in
 * TypeScript and in Python.
 * Each is defined once in the repository, whatever is cited exists, and each is cited by a test.
 */
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { documents } from "../support/markdown.ts";
import { projectRoot } from "../support/project.ts";

const tracked = execFileSync("git", ["ls-files", "--cached", "--others", "--exclude-standard", "*.ts", "*.py"], {
  cwd: projectRoot,
  encoding: "utf8",
  maxBuffer: 2 ** 26,
}).split("\n");
const isTest = (path: string) => path.startsWith("test/") || /\/tests?\//.test(path) || path.endsWith(".test.ts");
const isPython = (path: string) => path.endsWith(".py");
const files = tracked
  .filter((path) => /^(packages|python|test|workflows)\//.test(path) && !path.includes("generated"))
  .map((path) => ({ path, isTest: isTest(path), text: readFileSync(join(projectRoot, path), "utf8") }));

const label = "[A-Z]{1,3}[0-9]{1,2}";
const definition = new RegExp(`^ *\\* (?:- )?(${label})(?: \\([^)]*\\))? (?=[A-Za-z\`])`, "gm");
const pythonDefinition = new RegExp(`^(${label})(?: \\([^)]*\\))? (?=[A-Za-z\`])`, "gm");
const listed = new RegExp(`(?<![\\w#./=-])${label}(?![\\w%-]| -?[0-9]|\\.[0-9]|")`, "g");
/** `C1 to C4`, `C1–C4` and `C1-C4` cite what lies between, too. */
const ranges = /\b([A-Z]{1,3})([0-9]{1,2})(?: to |–|-)\1([0-9]{1,2})\b/g;

const definitions = new Map<string, string[]>();
for (const { path, text, isTest: ofTest } of files) {
  if (ofTest) continue;
  for (const [, name] of text.matchAll(isPython(path) ? pythonDefinition : definition)) {
    definitions.set(name as string, [...(definitions.get(name as string) ?? []), path]);
  }
}
const families = new Set([...definitions.keys()].map((name) => name.replace(/[0-9]+$/, "")));

/** Labels of families that there are, in comments, in the names of tests, and in what tests throw; anywhere in Python. */
function citedBy({ text, path }: { readonly text: string; readonly path: string }): Set<string> {
  const ofPython = isPython(path);
  const cited = new Set<string>();
  for (const line of text.split("\n")) {
    if (!ofPython && !/\*|\/\/|["'`]/.test(line)) continue;
    for (const [name] of line.matchAll(listed)) cited.add(name);
    for (const [, family = "", from, to] of line.matchAll(ranges))
      for (let n = Number(from); n <= Number(to); n++) cited.add(`${family}${n}`);
  }
  return new Set([...cited].filter((name) => families.has(name.replace(/[0-9]+$/, ""))));
}

test("every label is defined once", () => {
  const twice = [...definitions].filter(([, paths]) => paths.length > 1).map(([name, paths]) => `${name}: ${paths}`);
  expect(twice).toEqual([]);
  expect(definitions.size).toBeGreaterThan(250);
  expect([...definitions.values()].flat().filter(isPython).length).toBeGreaterThan(30);
});

test("every label that is cited is defined", () => {
  const unknown = files.flatMap((file) =>
    [...citedBy(file)].filter((name) => !definitions.has(name)).map((name) => `${name} in ${file.path}`),
  );
  expect(unknown).toEqual([]);
});

test("every label that the documentation names is defined", () => {
  const named = documents
    .filter(({ path }) => path.startsWith("docs/design/"))
    .flatMap(({ text, path }) =>
      [...text.matchAll(/^\| ([A-Z]{1,3}[0-9]{1,2}[^|]*) \|/gm)].flatMap(([, cell = ""]) =>
        [...cell.matchAll(new RegExp(label, "g"))].map(([name]) => ({ name, path })),
      ),
    );
  expect(named.length).toBeGreaterThan(40);
  expect(named.filter(({ name }) => !definitions.has(name))).toEqual([]);
});

test("every label that is defined is cited by a test", () => {
  const cited = new Set(files.filter((file) => file.isTest).flatMap((file) => [...citedBy(file)]));
  expect([...definitions].filter(([name]) => !cited.has(name)).map(([name, [path]]) => `${name} of ${path}`)).toEqual(
    [],
  );
});
