import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { projectRoot } from "../support/project.ts";

const read = (path: string): string => readFileSync(join(projectRoot, path), "utf8");
const readme = read("README.md");

test("the README's test command is what continuous integration runs, and its run command names a workflow", () => {
  const commands = [...readme.matchAll(/```sh\n(.*?)\n```/gs)].map(([, command]) => command as string);
  const [run, verify] = commands.filter((command) => command.startsWith("npm install"));
  expect(run).toBe("npm install && npx treadle run workflows/reasoning-grpo");
  expect(verify).toBe("npm install && npm run verify");
  expect(read(".ci/run")).toContain("npm run verify");
});

test("every path that the README names exists", () => {
  const named = [...readme.matchAll(/`((?:packages|workflows|test)\/[^`*<]*)`|\]\(((?!http)[^)]+)\)/g)].map(
    ([, code, link]) => (code ?? link) as string,
  );
  expect(named.length).toBeGreaterThan(10);
  expect(named.filter((path) => !existsSync(join(projectRoot, path)))).toEqual([]);
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
