import { existsSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join, normalize } from "node:path";
import { describe, expect, test } from "vitest";
import { documents, MarkdownFile } from "../support/markdown.ts";
import { projectRoot } from "../support/project.ts";

const read = (path: string): string => readFileSync(join(projectRoot, path), "utf8");
const readme = new MarkdownFile("README.md");

test("the README's test command is what continuous integration runs, and its run command names a workflow", () => {
  const commands = readme.blocks.filter(({ language }) => language === "sh").map(({ text }) => text);
  const [run, verify] = commands.filter((command) => /^npm (?:install|ci) &&/.test(command));
  expect(run).toBe("npm install && npx treadle run workflows/reasoning-grpo");
  expect(verify).toBe("npm ci && npm run verify"); // refuses a lock file that does not fit
  expect(read(".ci/run")).toMatch(/^npm ci .*&& npm run verify$/m);
});

test("the README is read in one sitting", () => {
  expect(readme.text.split("\n").length - 1).toBeLessThanOrEqual(150);
});

/** Of packages, tests and so on, as they stand in code within a line. */
const pathsIn = (document: MarkdownFile): string[] =>
  document.inlineCode.map(({ text }) => text).filter((text) => /^(?:packages|test|deploy|docs)\/[^<*…\s]*$/.test(text));

test("every path that the documents name exists", () => {
  const top = documents.filter(({ path }) => !path.includes("/") || path.startsWith("docs/"));
  const named = top.flatMap((document) => pathsIn(document).map((path) => ({ path, in: document.path })));
  expect(named.length).toBeGreaterThan(10);
  expect(named.filter(({ path }) => !existsSync(join(projectRoot, path)))).toEqual([]);
});

test("every link between documents leads to a file, and to a heading where it names one", () => {
  const links = documents.flatMap((document) =>
    [...document.prose.matchAll(/\]\(([^)\s]+)(?: "[^"]*")?\)/g)]
      .map(([, target]) => target as string)
      .filter((target) => !/^(https?|mailto):/.test(target))
      .map((target) => ({ target, from: document })),
  );
  expect(links.length).toBeGreaterThan(60);
  const dead = links.filter(({ target, from }) => {
    const [file = "", anchor] = target.split("#");
    const path = file === "" ? from.path : normalize(join(dirname(from.path), file));
    if (!existsSync(join(projectRoot, path))) return true;
    return anchor !== undefined && !new MarkdownFile(path).anchors.includes(anchor);
  });
  expect(dead.map(({ target, from }) => `${target} in ${from.path}`)).toEqual([]);
});

test("every page of the documentation can be reached from its first one", () => {
  const reached = new Set<string>();
  const visit = (path: string): void => {
    if (reached.has(path) || !path.endsWith(".md") || !existsSync(join(projectRoot, path))) return;
    reached.add(path);
    for (const [, target = ""] of new MarkdownFile(path).prose.matchAll(/\]\(([^)\s#:]+)[^)\s]*\)/g))
      visit(normalize(join(dirname(path), target)));
  };
  visit("docs/index.md");
  const pages = documents.map(({ path }) => path).filter((path) => path.startsWith("docs/"));
  expect(pages.length).toBeGreaterThan(15);
  expect(pages.filter((path) => !reached.has(path))).toEqual([]);
});

describe.each(readdirSync(join(projectRoot, "packages")))("package %s", (name) => {
  const { dependencies = {} } = JSON.parse(read(`packages/${name}/package.json`)) as {
    dependencies?: Record<string, string>;
  };

  test("has a README that says why it depends on what it depends on", () => {
    const text = read(`packages/${name}/README.md`);
    const outside = Object.keys(dependencies).filter((dependency) => !dependency.startsWith("@treadle/"));
    expect(outside.filter((dependency) => !text.includes(dependency))).toEqual([]);
  });
});
