import { mkdir, mkdtemp, readFile, rm, utimes, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import fc from "fast-check";
import { afterEach, beforeEach, expect, test } from "vitest";
import { codeDifference, codeVersions, ProjectCode, versionDifference } from "../../src/node/code-hash.ts";

let root: string;
let reads: string[] = [];
const read = async (path: string): Promise<Buffer> => {
  reads.push(path);
  return readFile(path);
};
const put = async (path: string, text: string): Promise<void> => {
  await mkdir(dirname(join(root, path)), { recursive: true });
  await writeFile(join(root, path), text);
};

beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), "treadle-c-"));
  reads = [];
  await put("worker.ts", "export const one = 1;\n");
});
afterEach(() => rm(root, { recursive: true, force: true }));

const loaded = [
  "worker.ts",
  "dist/worker.js",
  "packages/a/dist/index.js",
  "model.py",
  "kernels/fast.wasm",
  "service.proto",
  "package-lock.json",
  "node_modules/.package-lock.json",
];
const idle = ["README.md", "runs/left.ts", "node_modules/a/index.js", ".hidden/a.ts", "coverage/a.js", "notes.txt"];

test.each(loaded)("another '%s' is other code", async (path) => {
  const code = new ProjectCode(root);
  const before = await code.current();
  await put(path, "first");
  const first = await code.current();
  expect(first.hash).not.toBe(before.hash);
  await put(path, "other"); // of the same size
  const second = await code.current();
  expect(second.hash).not.toBe(first.hash);
  expect(codeDifference(first.files, second.files)).toBe(`'${path}' differs`);
});

test("what no process loads changes nothing", async () => {
  const code = new ProjectCode(root);
  const before = await code.current();
  for (const path of idle) await put(path, "something");
  expect(await code.current()).toEqual(before);
});

test("a file is read again only when it has changed, also when its time was set back", async () => {
  const code = new ProjectCode(root, read);
  for (const path of loaded) await put(path, path);
  await code.current();
  expect(new Set(reads).size).toBe(loaded.length);
  reads = [];
  await code.current();
  expect(reads).toEqual([]);
  await put("model.py", "new of.py");
  await utimes(join(root, "model.py"), 0, 0);
  await code.current();
  expect(reads).toEqual([join(root, "model.py")]);
});

test("CH1: two hundred who ask at once are answered by two looks, each with what was there when it asked", async () => {
  const code = new ProjectCode(root, read);
  for (const path of loaded) await put(path, path);
  const early = code.current();
  await put("late.ts", "written before the others ask");
  const others = await Promise.all(Array.from({ length: 200 }, () => code.current()));
  await early;
  expect(reads.length).toBeLessThanOrEqual(2 * (loaded.length + 1));
  expect(new Set(others).size).toBe(1);
  expect(others[0]?.files.has("late.ts")).toBe(true);
});

test("which files differ is said, the first few by name, and nothing where none does", () => {
  const files = fc.dictionary(fc.stringMatching(/^[a-z]{1,3}\.ts$/), fc.constantFrom("1", "2"), { maxKeys: 12 });
  fc.assert(
    fc.property(files, files, (a, b) => {
      const [ours, theirs] = [new Map(Object.entries(a)), new Map(Object.entries(b))];
      const differing = [...new Set([...ours.keys(), ...theirs.keys()])].filter((k) => ours.get(k) !== theirs.get(k));
      const said = codeDifference(ours, theirs);
      if (differing.length === 0) return said === undefined;
      const named = differing.filter((path) => said?.includes(`'${path}'`));
      const rest = Number(/ and (\d+) more$/.exec(said ?? "")?.[1] ?? 0);
      return named.length === Math.min(5, differing.length) && named.length + rest === differing.length;
    }),
  );
});

test("another major version of Node, or another Treadle, is named", () => {
  expect(versionDifference(codeVersions)).toBeUndefined();
  const ours = { node: "v20.11.0", treadle: "1.0.0" };
  expect(versionDifference({ node: "v20.19.1", treadle: "1.0.0" }, ours)).toBeUndefined();
  expect(versionDifference({ node: "v22.1.0", treadle: "1.0.0" }, ours)).toMatch(/'v22.1.0'.*'v20.11.0'/);
  expect(versionDifference({ node: "v20.11.0", treadle: "1.1.0" }, ours)).toMatch(/'1.1.0'.*'1.0.0'/);
});
