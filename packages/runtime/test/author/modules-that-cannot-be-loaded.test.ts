import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { afterAll, expect, it } from "vitest";
import { loadModule, loadRemedy } from "../../src/author/module-loader.ts";

const root = mkdtempSync(join(tmpdir(), "treadle-load-"));
const project = join(root, "project");
mkdirSync(join(project, "workflows"), { recursive: true });
writeFileSync(join(project, "package.json"), "{}");
afterAll(() => rmSync(root, { recursive: true }));

const module = (path: string) => pathToFileURL(join(root, path)).href;
const coded = (code: string, message: string) => Object.assign(new Error(message), { code });

it.each([
  new SyntaxError("Cannot use import statement outside a module"),
  new SyntaxError("Unexpected token 'export'"),
  coded("ERR_REQUIRE_CYCLE_MODULE", "Cannot require() ES Module run.js in a cycle."),
  coded("ERR_REQUIRE_ESM", "require() of ES Module not supported."),
])("what is taken for CommonJS is told how to be a module: %s", (thrown) => {
  const inProject = `set "type": "module" in '${join(project, "package.json")}'`;
  expect(loadRemedy(module("project/workflows/run.js"), thrown)).toBe(`${inProject}, or name it 'run.ts'`);
  expect(loadRemedy(module("project/workflows/run.ts"), thrown)).toBe(inProject);
  expect(loadRemedy(module("run.js"), thrown)).toContain("'treadle init <folder>'");
});

it.each([
  ["ERR_MODULE_NOT_FOUND", "Cannot find package 'treadle' imported from /a/run.js", "treadle"],
  ["ERR_MODULE_NOT_FOUND", "Cannot find package '@scope/name' imported from /a/run.js", "@scope/name"],
  ["MODULE_NOT_FOUND", "Cannot find module 'treadle/workers'\nRequire stack:\n- /a/run.js", "treadle"],
])("a package that is missing is told where to install it: %s %s", (code, message, name) => {
  const thrown = coded(code, message);
  expect(loadRemedy(module("project/workflows/run.js"), thrown)).toBe(`run 'npm install ${name}' in '${project}'`);
  expect(loadRemedy(module("run.js"), thrown)).toContain(`'npm install ${name}' in '${root}', or`);
});

it("what fails otherwise has no remedy that would mislead", () => {
  const others = [
    coded("ERR_MODULE_NOT_FOUND", "Cannot find module '/a/reward.ts' imported from /a/run.ts"),
    coded("MODULE_NOT_FOUND", "Cannot find module './reward.ts'"),
    new SyntaxError("Unexpected token '}'"),
    new Error("boom"),
    undefined,
  ];
  for (const thrown of others) expect(loadRemedy(module("project/workflows/run.js"), thrown)).toBeUndefined();
});

it.each(["undefined", "null", "'no power'"])(
  "what throws %s, and no Error, is told as what it threw",
  async (thrown) => {
    const path = `project/workflows/throws-${encodeURIComponent(thrown)}.mjs`;
    writeFileSync(join(root, path), `throw ${thrown};`);
    const said = `it threw '${thrown.replaceAll("'", "")}', which is no Error`;
    await expect(loadModule(module(path))).rejects.toMatchObject({
      code: "worker.load-failed",
      message: expect.stringContaining(said),
    });
  },
);
