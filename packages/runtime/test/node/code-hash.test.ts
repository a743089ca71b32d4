import { createReadStream } from "node:fs";
import { chmod, mkdir, mkdtemp, realpath, rm, symlink, utimes, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import fc from "fast-check";
import { afterEach, beforeEach, expect, test } from "vitest";
import { codeDifference, ProjectCode, versionDifference } from "../../src/node/code-hash.ts";
import { codeVersions, type TreadleForm, treadlePackages } from "../../src/node/treadle-code.ts";

let world: string;
let root: string;
let reads: string[] = [];
let passedMs = 0;
async function* read(path: string): AsyncIterable<Uint8Array> {
  reads.push(path);
  yield* createReadStream(path) as AsyncIterable<Uint8Array>;
}
const put = async (path: string, text: string, under = root): Promise<void> => {
  await mkdir(dirname(join(under, path)), { recursive: true });
  await writeFile(join(under, path), text);
};
/** Of this project alone: Treadle's own packages have tests of their own. */
const open = (form: TreadleForm = "compiled", packages: ReadonlyMap<string, string> = new Map()) =>
  new ProjectCode(root, { form, packages, read, nowMs: () => passedMs });

beforeEach(async () => {
  world = await realpath(await mkdtemp(join(tmpdir(), "treadle-c-")));
  root = join(world, "project");
  reads = [];
  passedMs = 0;
  await put("worker.ts", "export const one = 1;\n");
});
afterEach(() => rm(world, { recursive: true, force: true }));

const loaded = [
  "worker.ts",
  "dist/worker.js",
  "packages/a/dist/index.js",
  "packages/a/src/runs/list.ts",
  "packages/a/src/coverage/measure.ts",
  "model.py",
  "table.json",
  "kernels/fast.wasm",
  "service.proto",
  "package-lock.json",
  "pnpm-lock.yaml",
  "yarn.lock",
  "bun.lock",
  "bun.lockb",
  "uv.lock",
];
const idle = [
  "README.md",
  "notes.txt",
  "dist/worker.d.ts",
  "node_modules/a/index.js",
  ".hidden/a.ts",
  ".git/hooks/a.js",
  ".turbo/cache.json",
  "__pycache__/model.py",
  "coverage/coverage-final.json",
  "packages/a/coverage/a.js",
  "runs/left.ts",
  "runs/2026/config.json",
  "experiments/one/plan.json",
  "venv/lib/python3/site-packages/torch.py",
];
/** What makes some of them idle. */
const marks = [
  ...["packages/a/package.json", "venv/pyvenv.cfg"],
  ...["experiments/one/config.json", "experiments/one/journal.jsonl"],
];
const putMarks = async () => {
  for (const path of marks) await put(path, "{}");
};

test.each(loaded)("another '%s' is other code, and is named", async (path) => {
  const code = open();
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
  await putMarks();
  const code = open();
  const before = await code.current();
  for (const path of idle) await put(path, "something");
  expect(await code.current()).toEqual(before);
});

test.each(["events.jsonl", "journal.jsonl"])(
  "code beside data called '%s' counts: a run's folder has its configuration, too",
  async (name) => {
    await put(`lib/${name}`, "{}");
    await put("lib/deep/helper.ts", "one");
    const code = open();
    const before = await code.current();
    await put("lib/deep/helper.ts", "two");
    expect(codeDifference(before.files, (await code.current()).files)).toBe("'lib/deep/helper.ts' differs");
  },
);

test("a machine that was pulled and not built differs in what was built, where that is what is loaded", async () => {
  const offers = { ".": { source: "./src/index.ts", default: "./dist/index.js" } };
  await put("packages/a/package.json", JSON.stringify({ exports: offers }));
  await put("packages/b/package.json", JSON.stringify({ exports: "./dist/index.js" }));
  const look = async (form: TreadleForm) => open(form).current();
  const before = { sources: await look("sources"), compiled: await look("compiled") };
  await put("packages/a/dist/index.js", "built");
  expect(codeDifference(before.compiled.files, (await look("compiled")).files)).toBe(
    "'packages/a/dist/index.js' is only there",
  );
  expect((await look("sources")).hash).toBe(before.sources.hash);
  await put("packages/b/dist/index.js", "built"); // there are no sources to load
  expect((await look("sources")).hash).not.toBe(before.sources.hash);
});

const npm = (packages: object): string => JSON.stringify({ name: "any", lockfileVersion: 3, packages });

test("what npm has installed is compared package by package, but for what is one kind of machine's", async () => {
  const lock = "node_modules/.package-lock.json";
  const zod = { version: "4.0.0", integrity: "sha512-a" };
  const own = { "packages/a": { version: "0.1.0" }, "node_modules/a": { resolved: "packages/a", link: true } };
  await put(lock, npm({ "node_modules/zod": zod, ...own }));
  const before = await open().current();
  const native = { "node_modules/zod/node_modules/fast-linux-x64": { version: "1.0.0", cpu: ["x64"], os: ["linux"] } };
  await put(lock, npm({ ...native, "node_modules/zod": { ...zod, license: "MIT" } }));
  expect((await open().current()).hash).toBe(before.hash);
  await put(lock, npm({ "node_modules/zod": { ...zod, version: "4.0.1", integrity: "sha512-b" } }));
  expect(codeDifference(before.files, (await open().current()).files)).toBe("'node_modules/zod' differs");
});

test.each([
  ["node_modules/.pnpm/lock.yaml", "zod: 1", "zod: 2"],
  ["node_modules/.yarn-state.yml", "zod: 1", "zod: 2"],
  [
    "node_modules/.yarn-integrity",
    JSON.stringify({ lockfileEntries: { "zod@4": "1" } }),
    JSON.stringify({ lockfileEntries: { "zod@4": "2" } }),
  ],
  ["docs/node_modules/.package-lock.json", npm({}), npm({ "node_modules/zod": { version: "4.0.1" } })],
  ["node_modules/.package-lock.json", "no JSON", "no json"],
])("other packages are seen in '%s'", async (path, one, other) => {
  await put(path, one);
  const before = await open().current();
  await put(path, other);
  expect((await open().current()).hash).not.toBe(before.hash);
});

test("what is installed above the project counts as in it, and what says where or when it was installed does not", async () => {
  const lock = npm({ "node_modules/zod": { version: "4.0.0" } });
  await put("node_modules/.package-lock.json", lock);
  const inside = await open().current();
  await rm(join(root, "node_modules"), { recursive: true });
  await put("node_modules/.package-lock.json", lock, world);
  expect(await open().current()).toEqual(inside);
  await put("node_modules/.modules.yaml", `prunedAt: ${Date.now()}`, world);
  expect(await open().current()).toEqual(inside);
});

test("CF2: a link to a file outside is refused by its name, to a folder named; neither is read", async () => {
  await put("elsewhere/shared.ts", "secret", world);
  await symlink("../elsewhere", join(root, "data"));
  const found = await open().current();
  expect(found.outside).toEqual(["data"]);
  expect(codeDifference(new Map(), found.files)).toBe("'data' is only there, 'worker.ts' is only there");
  for (const target of ["../elsewhere/shared.ts", join(world, "elsewhere/shared.ts")]) {
    await symlink(target, join(root, "shared.ts"));
    await expect(open().current()).rejects.toMatchObject({
      code: "node.unavailable",
      message: expect.stringMatching(/^'shared.ts' leads to '.*shared.ts', outside of the project.*--project$/),
    });
    await rm(join(root, "shared.ts"));
  }
  await mkdir(join(root, "node_modules/@shared"), { recursive: true });
  await symlink("../../../elsewhere", join(root, "node_modules/@shared/a"));
  await expect(open().current()).rejects.toThrow(/^'node_modules\/@shared\/a' leads to/);
  expect(reads.filter((path) => path.includes("elsewhere"))).toEqual([]);
});

test("a link within the project is compared by where it leads, and by what is there, also in a folder that is not looked at", async () => {
  await put(".versions/one/a.ts", "1");
  await put(".versions/two/a.ts", "1");
  await put(".versions/b.ts", "1");
  await symlink(".versions/one", join(root, "lib"));
  await symlink(".versions/b.ts", join(root, "b.ts"));
  const before = await open().current();
  await put(".versions/one/a.ts", "2");
  await put(".versions/b.ts", "2");
  const after = await open().current();
  expect(codeDifference(before.files, after.files)).toBe("'.versions/one/a.ts' differs, 'b.ts' differs");
  await rm(join(root, "lib"));
  await symlink(".versions/two", join(root, "lib"));
  expect(codeDifference(after.files, (await open().current()).files)).toMatch(/'lib' differs/);
});

test("CF1: links in a circle, to nowhere, to the newest run and to what is installed come to an end and change nothing", async () => {
  await put("lib/a.ts", "1");
  await put("node_modules/b/b.ts", "1");
  await put("runs/newest/journal.jsonl", "");
  await put("runs/newest/config.json", "{}");
  const before = await open().current();
  await symlink("runs/newest", join(root, "newest"));
  await symlink("nowhere.ts", join(root, "broken.ts"));
  await symlink("loop.ts", join(root, "loop.ts"));
  expect(await open().current()).toEqual(before);
  await symlink("..", join(root, "lib/up"));
  await symlink("../lib", join(root, "lib/again"));
  await symlink("node_modules/b", join(root, "b"));
  expect(codeDifference(before.files, (await open().current()).files)).toBe(
    "'b' is only there, 'lib/again' is only there, 'lib/up' is only there",
  );
});

test("of Treadle's own packages outside of the project, what is loaded counts, wherever they lie", async () => {
  const packages = new Map([["@treadle/a", join(world, "treadle/a")]]);
  for (const path of ["src/a.ts", "dist/a.js", "test/a.test.ts"]) await put(`treadle/a/${path}`, "1", world);
  const files = async (form: TreadleForm) => [...(await open(form, packages).current()).files.keys()];
  expect(await files("sources")).toEqual(["@treadle/a/src/a.ts", "worker.ts"]);
  expect(await files("compiled")).toEqual(["@treadle/a/dist/a.js", "worker.ts"]);
  // One that only the project has, as a link.
  await mkdir(join(root, "node_modules/@treadle"), { recursive: true });
  await symlink("../../../treadle/a", join(root, "node_modules/@treadle/a"));
  expect(await files("compiled")).toEqual(["@treadle/a/dist/a.js", "worker.ts"]);
  // And one that lies beside them, whatever its name.
  await put("treadle/create/dist/index.js", "1", world);
  await symlink("../../treadle/create", join(root, "node_modules/create-treadle"));
  expect(await files("compiled")).toEqual(["@treadle/a/dist/a.js", "create-treadle/dist/index.js", "worker.ts"]);
  const known = new Set(treadlePackages().keys());
  expect(known.has("@treadle/runtime") && known.has("@treadle/contracts") && known.has("@treadle/transport")).toBe(
    true,
  );
});

test("a file is read again only when it has changed, also when its time was set back", async () => {
  const code = open();
  for (const path of loaded) await put(path, path);
  await code.current();
  expect(new Set(reads).size).toBe(loaded.length);
  passedMs += 60_000;
  await code.current();
  reads = [];
  await code.current();
  expect(reads).toEqual([]);
  await put("model.py", "new of.py");
  await utimes(join(root, "model.py"), 0, 0);
  await code.current();
  expect(reads).toEqual([join(root, "model.py")]);
});

test("CH2: of writes within one step of the file system's clock none is missed, and what stays is then not read again", async () => {
  const stat = async () => ({ ino: 1n, size: 3n, mtimeNs: 1n, ctimeNs: 1n });
  const code = new ProjectCode(root, { packages: new Map(), read, stat, nowMs: () => passedMs });
  const hashes = new Set<string>();
  for (let write = 100; write < 110; write++) {
    await put("worker.ts", `${write}`);
    hashes.add((await code.current()).hash);
    passedMs += 10;
  }
  expect(hashes.size).toBe(10);
  passedMs += 60_000;
  await code.current();
  reads = [];
  await code.current();
  expect(reads).toEqual([]);
});

test("CH1: two hundred who ask at once are answered by two looks, each with what was there when it asked", async () => {
  const code = open();
  for (const path of loaded) await put(path, path);
  const early = code.current();
  await put("late.ts", "written before the others ask");
  const others = await Promise.all(Array.from({ length: 200 }, () => code.current()));
  await early;
  expect(reads.length).toBeLessThanOrEqual(2 * (loaded.length + 1));
  expect(new Set(others).size).toBe(1);
  expect(others[0]?.files.has("late.ts")).toBe(true);
});

test.skipIf(process.getuid?.() === 0)(
  "a file that cannot be read is other code than one that can (not as root)",
  async () => {
    const before = await open().current();
    await chmod(join(root, "worker.ts"), 0);
    expect(codeDifference(before.files, (await open().current()).files)).toBe("'worker.ts' differs");
  },
);

test("in any tree, another file that is loaded is other code, and another that is not is the same", async () => {
  const folder = fc.constantFrom("", "src/", "packages/a/", "packages/a/src/lib/", "experiments/two/");
  const name = (names: readonly string[]) => fc.constantFrom(...names);
  const counts = fc
    .tuple(folder, name(["a.ts", "b.mjs", "c.py", "d.json", "e.wasm", "yarn.lock"]))
    .map((p) => p.join(""));
  const ignored = fc
    .tuple(
      fc.tuple(folder, name(["node_modules/x/", ".cache/", "__pycache__/", "venv/"])).map((parts) => parts.join("")),
      name(["a.ts", "lib/b.mjs", "c.py", "d.json"]),
    )
    .map((parts) => parts.join(""));
  const results = fc.constantFrom("coverage/a.js", "packages/a/coverage/b.json", "runs/c/d.json", "src/README.md");
  const files = fc.dictionary(fc.oneof(counts, ignored, results), fc.string({ maxLength: 8 }), { maxKeys: 12 });
  const change = fc.tuple(fc.oneof(counts, ignored, results), fc.string({ minLength: 9, maxLength: 12 }));
  await fc.assert(
    fc.asyncProperty(files, fc.array(change, { minLength: 1, maxLength: 5 }), async (tree, changes) => {
      await rm(root, { recursive: true, force: true });
      await putMarks();
      for (const parent of ["", "src/", "packages/a/", "packages/a/src/lib/", "experiments/two/"])
        await put(`${parent}venv/pyvenv.cfg`, "");
      for (const [path, text] of Object.entries(tree)) await put(path, text);
      const code = open();
      const content = new Map(Object.entries(tree));
      for (const [path, text] of changes) {
        const before = await code.current();
        const isOther = content.get(path) !== text;
        content.set(path, text);
        await put(path, text);
        const after = await code.current();
        const isLoaded = !/(node_modules|\.cache|__pycache__|venv|coverage|runs)\/|README/.test(path);
        expect({ path, differs: after.hash !== before.hash }).toEqual({ path, differs: isLoaded && isOther });
        expect(await open().current()).toEqual(after); // what is kept says what a new look says
      }
    }),
    { numRuns: 40 },
  );
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

test("another Treadle, another form of it or another major version of Node is not used; another minor or patch is, and said", () => {
  expect(versionDifference(codeVersions)).toBeUndefined();
  const ours = { node: "v20.11.0", treadle: "1.0.0", form: "compiled" } as const;
  for (const node of ["v20.19.0", "v20.11.1"]) {
    expect(versionDifference({ ...ours, node }, ours)).toEqual({
      what: `it runs Node '${node}', the runner 'v20.11.0'`,
      isBearable: true,
    });
  }
  const refused = (over: object) => versionDifference({ ...ours, ...over }, ours);
  expect(refused({ node: "v22.1.0" })).toMatchObject({
    what: expect.stringMatching(/'v22.1.0'.*'v20.11.0'/),
    isBearable: false,
  });
  expect(refused({ treadle: "1.1.0" })).toMatchObject({
    what: expect.stringMatching(/'1.1.0'.*'1.0.0'/),
    isBearable: false,
  });
  expect(refused({ form: "sources" })).toMatchObject({
    what: expect.stringMatching(/'sources'.*'compiled'/),
    isBearable: false,
  });
});

test.each([
  ["pnpm", ".pnpm", "node_modules/.pnpm/lock.yaml"],
  ["Bun's isolated linker", ".bun", "bun.lock"],
])("packages that %s links into a store of its own count by its lock file", async (_, store, lock) => {
  const stored = `node_modules/${store}/zod@4.0.0/node_modules/zod`;
  await put(`${stored}/index.js`, "export const a = 1;\n");
  await symlink(`${store}/zod@4.0.0/node_modules/zod`, join(root, "node_modules/zod"));
  await put(lock, "zod: 4.0.0");
  const before = await open().current();
  expect(before.outside).toEqual([]);
  await put(`${stored}/index.js`, "export const a = 2;\n");
  expect((await open().current()).hash).toBe(before.hash);
  await put(lock, "zod: 4.0.1");
  const after = await open().current();
  expect(codeDifference(before.files, after.files)).toContain(lock);
});

test("packages of which no manager has left a file there, as Bun, count by their manifests' versions", async () => {
  const install = (name: string, version: string, more = {}) =>
    put(`node_modules/${name}/package.json`, JSON.stringify({ name, version, ...more }));
  await put("bun.lock", "the same on both");
  await install("zod", "4.0.0");
  await install("@scope/one", "1.0.0");
  await install("@esbuild/linux-x64", "1.0.0", { os: ["linux"], cpu: ["x64"] });
  const before = await open().current();
  await install("@esbuild/linux-x64", "2.0.0", { os: ["linux"], cpu: ["x64"] });
  expect((await open().current()).hash).toBe(before.hash);
  await install("@scope/one", "1.0.10");
  const after = await open().current();
  expect(codeDifference(before.files, after.files)).toContain("node_modules/@scope/one");
});
