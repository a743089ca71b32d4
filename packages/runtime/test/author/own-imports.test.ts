import { execFile } from "node:child_process";
import { mkdir, mkdtemp, realpath, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { promisify } from "node:util";
import { afterEach, beforeEach, expect, test } from "vitest";
import { ownImports } from "../../src/author/own-imports.ts";

let root: string;
const put = async (path: string, text: string): Promise<string> => {
  await mkdir(dirname(join(root, path)), { recursive: true });
  await writeFile(join(root, path), text);
  return pathToFileURL(join(root, path)).href;
};
const install = (name: string, text = "export const one = 1;\n") =>
  Promise.all([
    put(`node_modules/@treadle/${name}/package.json`, '{ "type": "module", "exports": "./index.js" }'),
    put(`node_modules/@treadle/${name}/index.js`, text),
  ]);
const found = async (module: string) =>
  (await ownImports(module)).map((url) => /@treadle\/([a-z]+)\/index\.js$/.exec(url)?.[1]).sort();

beforeEach(async () => {
  root = await realpath(await mkdtemp(join(tmpdir(), "treadle-i-")));
  await put("package.json", '{ "type": "module" }');
  for (const name of ["one", "two", "three", "four"]) await install(name);
});
afterEach(() => rm(root, { recursive: true, force: true }));

test("Treadle's packages are found in every way of importing, through files beside a module, and never for their types alone", async () => {
  await put("beside.ts", 'import "./module.ts";\nexport * from "@treadle/three";\nimport "@treadle/missing";\n');
  const module = await put(
    "module.ts",
    `import type { One } from "@treadle/four";
import { z } from "zod";
import {
  type Two,
  two,
} from "@treadle/two"; import "@treadle/one";
import { beside } from './beside.ts';
const text = 'import "@treadle/four"';
export class MakerWorker {}
`,
  );
  expect(await found(module)).toEqual(["one", "three", "two"]);
  expect(await ownImports("data:text/javascript,1")).toEqual([]);
  expect(await ownImports(pathToFileURL(join(root, "nowhere.ts")).href)).toEqual([]);
});

test("the package that users install is one of them, by each of its entries, and a stranger's of a like name is not", async () => {
  const exports = JSON.stringify({ ".": "./index.js", "./workers": "./workers.js" });
  await put("node_modules/treadle/package.json", `{ "type": "module", "exports": ${exports} }`);
  await put("node_modules/treadle/index.js", "");
  await put("node_modules/treadle/workers.js", "");
  await put("node_modules/treadle-like/index.js", "");
  const module = await put(
    "module.ts",
    'import { workflow } from "treadle";\nimport { one } from "treadle/workers";\nimport "treadle-like";\n',
  );
  const entries = (await ownImports(module)).map((url) => url.slice(url.lastIndexOf("node_modules/")));
  expect(entries.sort()).toEqual(["node_modules/treadle/index.js", "node_modules/treadle/workers.js"]);
});

test.skipIf(process.env["TREADLE_COMPILED"] !== "1")(
  "a compiled runtime loads them without the TypeScript loader, once, and the module gets the same (TREADLE_COMPILED=1)",
  async () => {
    await install(
      "one",
      "globalThis.loads = [...(globalThis.loads ?? []), process.sourceMapsEnabled];\nexport class One {}\n",
    );
    const module = await put(
      "module.ts",
      'import { One } from "@treadle/one";\nexport const mine: typeof One = One;\n',
    );
    const runner = fileURLToPath(new URL("../../dist/runner.js", import.meta.url));
    const one = pathToFileURL(join(root, "node_modules/@treadle/one/index.js")).href;
    const script = `const { loadFile } = await import(${JSON.stringify(pathToFileURL(runner).href)});
const { mine } = await loadFile(${JSON.stringify(dirname(fileURLToPath(module)))}, "module");
const { One } = await import(${JSON.stringify(one)});
console.log(JSON.stringify([globalThis.loads, mine === One, process.sourceMapsEnabled]));`;
    const { stdout } = await promisify(execFile)(process.execPath, ["--input-type=module", "-e", script]);
    expect(JSON.parse(stdout)).toEqual([[false], true, true]); // the loader turns source maps on
  },
);
