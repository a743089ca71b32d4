import {
  chmod,
  chown,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  realpath,
  rm,
  stat,
  symlink,
  writeFile,
} from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseTrust } from "@treadle/transport";
import fc from "fast-check";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { addNode, initCluster, removeNode } from "../src/cluster-folder.ts";
import { clusterCommand } from "../src/commands/cluster.ts";
import { nodeCommand } from "../src/commands/node.ts";

const setup = { servers: ["127.0.0.1:4222"] };
const invalid = { code: "config.invalid" };
let above: string;
let folder: string;

beforeEach(async () => {
  above = await mkdtemp(join(tmpdir(), "treadle-cluster-"));
  folder = join(above, "keys");
});
afterEach(() => rm(above, { recursive: true, force: true }));

const contents = async (): Promise<string> => {
  const files = await readdir(above, { recursive: true, withFileTypes: true });
  const texts = files
    .filter((file) => file.isFile())
    .map(async ({ parentPath, name }) => [join(parentPath, name), await readFile(join(parentPath, name), "utf8")]);
  return JSON.stringify(await Promise.all(texts));
};
const namesOf = async () => parseTrust(await readFile(join(folder, "trust"), "utf8"), "").map(({ name }) => name);

test("keys are their owner's alone and kept from git, and the trust file names them", async () => {
  await initCluster(folder, setup, ["a", "b"]);
  await addNode(folder, "c");
  expect(await namesOf()).toEqual([undefined, "a", "b", "c"]);
  expect((await stat(folder)).mode & 0o777).toBe(0o700);
  for (const file of await readdir(folder)) expect((await stat(join(folder, file))).mode & 0o777, file).toBe(0o600);
  expect(await readFile(join(folder, ".gitignore"), "utf8")).toBe("*\n");
});

test("a folder that is there already becomes its owner's alone, and nobody else's is taken", async () => {
  await mkdir(folder);
  await chmod(folder, 0o755);
  await initCluster(folder, setup, []);
  expect((await stat(folder)).mode & 0o777).toBe(0o700);
  if (process.getuid?.() !== 0) return; // only root gives folders away
  const others = join(above, "others");
  await mkdir(others);
  await chown(others, 65_534, 65_534);
  await expect(initCluster(others, setup, [])).rejects.toMatchObject(invalid);
  expect(await readdir(others)).toEqual([]);
});

test("no keys are written where every user may replace them, unless the folder is sticky, as /tmp is", async () => {
  const open = join(above, "open");
  await mkdir(open);
  await chmod(open, 0o777);
  await mkdir(join(open, "mine"), { mode: 0o700 });
  await mkdir(join(above, "safe"));
  await symlink(join(open, "mine"), join(above, "link"));
  await symlink(join(above, "safe"), join(open, "link"));
  const below = [join(open, "keys"), join(open, "mine", "keys")];
  const byLinks = [join(above, "link", "keys"), join(above, "link"), join(open, "link", "keys")];
  for (const each of [...below, ...byLinks]) {
    await expect(initCluster(each, setup, []), each).rejects.toMatchObject({
      ...invalid,
      message: expect.stringContaining(`chmod o-w ${await realpath(open)}`),
    });
  }
  expect(await readdir(join(above, "safe"))).toEqual([]);
  expect(await readdir(join(open, "mine"))).toEqual([]);
  await chmod(open, 0o1777);
  await initCluster(join(above, "link", "keys"), setup, []);
});

test.each([
  [["--server", "10.0.0.7:4222"], true],
  [["--server", "127.0.0.1:4222"], false],
  [[], false],
  [["--server", "nats.example:4222", "--tls-cert", "c", "--tls-key", "k", "--tls-ca", "a"], false],
])("'treadle cluster init' with %j warns of what passes in the clear: %s", async (flags, isWarned) => {
  const said = vi.spyOn(process.stdout, "write").mockReturnValue(true);
  await clusterCommand().parseAsync(["init", folder, ...flags], { from: "user" });
  const text = said.mock.calls.join("");
  said.mockRestore();
  expect(text.includes("careful:")).toBe(isWarned);
});

const badName = fc.oneof(
  fc.constantFrom(
    "",
    "runner",
    "x/../../evil",
    "..",
    "has space",
    "a\nrunner b",
    "a#b",
    "a.b",
    "*",
    ">",
    "ü",
    "x".repeat(61),
  ),
  fc.string().filter((name) => !/^[A-Za-z0-9_-]{1,60}$/.test(name)),
);

test("names that are no names, and names twice, are refused before anything is written", async () => {
  await expect(initCluster(folder, setup, ["a", "a"])).rejects.toMatchObject(invalid);
  expect(await readdir(above)).toEqual([]);
  await fc.assert(
    fc.asyncProperty(badName, async (name) => {
      await expect(initCluster(folder, setup, ["a", name])).rejects.toMatchObject(invalid);
      expect(await readdir(above)).toEqual([]);
    }),
    { numRuns: 30 },
  );
  await initCluster(folder, setup, ["a"]);
  const before = await contents();
  await fc.assert(
    fc.asyncProperty(fc.oneof(badName, fc.constant("a")), async (name) => {
      await expect(addNode(folder, name)).rejects.toMatchObject(invalid);
      expect(await contents()).toBe(before);
    }),
    { numRuns: 30 },
  );
});

test("a folder that holds anything stays as it is", async () => {
  await writeFile(join(above, "trust"), "mine", { mode: 0o644 });
  const mode = (await stat(above)).mode;
  await expect(initCluster(above, setup, [])).rejects.toMatchObject({
    ...invalid,
    message: expect.stringContaining("trust"),
  });
  expect([(await stat(above)).mode, await readdir(above)]).toEqual([mode, ["trust"]]);
  expect(await readFile(join(above, "trust"), "utf8")).toBe("mine");
  await initCluster(folder, setup, []);
  await expect(initCluster(folder, setup, [])).rejects.toMatchObject(invalid);
  await writeFile(join(folder, "node-b.nk"), "another's");
  const before = await contents();
  await expect(addNode(folder, "b")).rejects.toMatchObject({
    ...invalid,
    message: expect.stringContaining("node-b.nk"),
  });
  expect(await contents()).toBe(before);
});

test("a node that is removed is admitted by no server and trusted by nobody", async () => {
  await initCluster(folder, setup, ["a", "b"]);
  const key = parseTrust(await readFile(join(folder, "trust"), "utf8"), "").find(({ name }) => name === "a")?.key;
  await removeNode(folder, "a");
  expect(await namesOf()).toEqual([undefined, "b"]);
  expect(key).toMatch(/^U/);
  expect(await contents()).not.toContain(key);
  expect(await readdir(folder)).not.toContain("node-a.nk");
  await expect(removeNode(folder, "a")).rejects.toMatchObject({ ...invalid, message: expect.stringContaining("b") });
  await addNode(folder, "a");
  expect(await contents()).not.toContain(key);
});

test("a removal that failed on the way is finished by another", async () => {
  await initCluster(folder, setup, ["a", "b"]);
  const trust = await readFile(join(folder, "trust"), "utf8");
  const key = parseTrust(trust, "").find(({ name }) => name === "a")?.key as string;
  const accounts = join(folder, "accounts.conf");
  await rm(accounts);
  await mkdir(accounts); // no file can take its place
  await expect(removeNode(folder, "a")).rejects.toThrow();
  await rm(accounts, { recursive: true });
  await removeNode(folder, "a");
  expect(await namesOf()).toEqual([undefined, "b"]);
  expect(await contents()).not.toContain(key);
});

/** What 'treadle node' says before it asks a server, for which it would need a key that can be read. */
const refusalOf = (...flags: string[]): Promise<string> =>
  nodeCommand()
    .parseAsync(["--cluster", folder, ...flags], { from: "user" })
    .then(
      () => "started",
      ({ code, message }) => `${code}: ${message}`,
    );

test("a node that has no key is told which keys are there, and how it comes by one", async () => {
  await initCluster(folder, setup, ["b", "a"]);
  const there = `config.invalid: '${folder}' has no key`;
  const remedy = "those of 'a', 'b'; give --name with one of them, or make one with 'treadle cluster add-node";
  expect(await refusalOf()).toContain(`${there} for all nodes, but ${remedy} <name>'`);
  expect(await refusalOf("--name", "c")).toContain(`${there} of node 'c', but ${remedy} c'`);
  for (const name of ["a", "b"]) await rm(join(folder, `node-${name}.nk`));
  expect(await refusalOf("--name", "a")).toContain(`${there} of a node; bring one, or make one with`);
});

test("a node's own key is found by its name, as runs call it, or where there is one for all, by any", async () => {
  await initCluster(folder, setup, ["gpu-7-example-org"]);
  const name = ["--name", "gpu-7.example.org"];
  // A key that is there and cannot be read ends the command, and says which it was.
  await writeFile(join(folder, "node-gpu-7-example-org.nk"), "no key");
  expect(await refusalOf(...name)).toContain("node-gpu-7-example-org.nk' holds no key");
  await rm(join(folder, "node-gpu-7-example-org.nk"));
  await writeFile(join(folder, "node.nk"), "no key", { mode: 0o600 });
  expect(await refusalOf(...name)).toContain("node.nk' holds no key");
  expect(await refusalOf()).toContain("node.nk' holds no key");
  await rm(join(folder, "node.nk"));
  const elsewhere = join(above, "elsewhere.nk");
  await writeFile(elsewhere, "no key", { mode: 0o600 });
  expect(await refusalOf("--credentials", elsewhere)).toContain("elsewhere.nk' holds no key");
});

test("nodes that are added at the same time all have a key that counts, and one that is removed meanwhile has none", async () => {
  await initCluster(folder, setup, ["a", "b"]);
  const names = ["n1", "n2", "n3", "n4"];
  await Promise.all([removeNode(folder, "b"), ...names.map((name) => addNode(folder, name))]);
  const keys = parseTrust(await readFile(join(folder, "trust"), "utf8"), "trust");
  expect(keys.flatMap(({ name }) => name ?? []).sort()).toEqual(["a", ...names]);
  const files = await readdir(folder);
  expect(files.filter((file) => file.startsWith("node-")).sort()).toEqual(["a", ...names].map((n) => `node-${n}.nk`));
  expect(files.filter((file) => file.includes("lock"))).toEqual([]);
});
