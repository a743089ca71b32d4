/** Treadle as a user gets it: packed, installed into an empty project, of modules and of CommonJS. Needs the package registry. */
import { type ChildProcess, execFile, spawn } from "node:child_process";
import { cp, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { command, projectRoot } from "../support/project.ts";
import { lacksTorch, python } from "../support/torch.ts";
import { until } from "../support/treadle.ts";

type Manifest = {
  type?: string;
  dependencies: Record<string, string>;
  readonly resolutions?: Record<string, string>;
};

const execute = promisify(execFile);
const readManifest = async (path: string): Promise<Manifest> => JSON.parse(await readFile(path, "utf8")) as Manifest;
const setManifest = async (path: string, change: (manifest: Manifest) => void): Promise<void> => {
  const manifest = await readManifest(path);
  change(manifest);
  await writeFile(path, JSON.stringify(manifest));
};

// From sources there is nothing to pack.
describe.skipIf(process.env["TREADLE_COMPILED"] !== "1")("an empty project", () => {
  let root: string;
  let project: string;
  let packed: string;
  let fromPacked: readonly string[];
  const run = (...args: string[]) => execute("npx", args, { cwd: project, maxBuffer: 2 ** 24 });

  beforeAll(async () => {
    root = await mkdtemp(join(tmpdir(), "treadle-packed-"));
    packed = join(root, "packed");
    fromPacked = ["--template", "own", "--no-install", "--packages", packed];
    project = join(root, "my project");
    // Of a copy: to pack puts files into a package for a moment, and other tests compare the checkout's code meanwhile.
    const checkout = join(root, "checkout");
    for (const path of ["packages", "python", "docs", "workflows", "build", "LICENSE", "package.json"])
      await cp(join(projectRoot, path), join(checkout, path), {
        recursive: true,
        filter: (each) => !each.includes("/node_modules"),
      });
    await execute("npm", ["run", "pack", "--", packed], { cwd: checkout });
    await execute(process.execPath, [command, "init", project, ...fromPacked]);
    const creator = (await readdir(packed)).find((file) => file.startsWith("create-treadle-")) as string;
    await setManifest(join(project, "package.json"), ({ dependencies }) => {
      dependencies["create-treadle"] = `file:${join(packed, creator)}`;
    });
    await execute("npm", ["install", "--prefer-offline", "--no-audit", "--no-fund"], { cwd: project });
  }, 600_000);
  afterAll(() => rm(root, { recursive: true, force: true }));

  test("has types in strict mode, those of the packages included, whatever it imports", {
    timeout: 600_000,
  }, async () => {
    const { exports } = (await readManifest(join(projectRoot, "packages/cli/package.json"))) as Manifest & {
      readonly exports: Readonly<Record<string, { readonly types?: string }>>;
    };
    const entries = Object.entries(exports).flatMap(([entry, { types }]) => (types === undefined ? [] : [entry]));
    expect(entries).toHaveLength(7);
    const every = join(project, "workflows/every-entry.ts");
    const imports = entries.map((entry, index) => `import * as all${index} from "${join("treadle", entry)}";`);
    const uses = entries.map((_, index) => `all${index}`);
    await writeFile(every, `${imports.join("\n")}\nexport default [${uses.join(", ")}];\n`);
    const checked = await run("tsc", "--noEmit").catch((failure: { stdout: string }) => failure);
    expect(checked.stdout).toBe("");
    await rm(every);
  });

  test("passes its own test, which runs its workflow", async () => {
    const { stdout } = await execute("npm", ["test"], { cwd: project });
    expect(stdout).toMatch(/# pass 1\n# fail 0/);
  });

  test.each(["reasoning", "tools", "embodied"])(
    "as template '%s' passes its own test, in strict mode",
    {
      timeout: 600_000,
    },
    async (template) => {
      const folder = join(root, template);
      const from = ["--template", template, "--no-install", "--packages", packed];
      await execute(process.execPath, [command, "init", folder, ...from]);
      await execute("npm", ["install", "--prefer-offline", "--no-audit", "--no-fund"], { cwd: folder });
      const checked = await execute("npx", ["tsc", "--noEmit"], { cwd: folder }).catch((failure) => failure);
      expect(checked.stdout).toBe("");
      const { stdout } = await execute("npm", ["test"], { cwd: folder });
      expect(stdout).toMatch(/# pass 1\n# fail 0/);
    },
  );

  test("learns, also where the project is one of CommonJS", async () => {
    await setManifest(join(project, "package.json"), (manifest) => {
      manifest.type = "commonjs";
    });
    const { stdout } = await run("treadle", "run", "workflows/bandit", "--plain", "--set", "steps=3");
    expect(stdout).toContain("finished 3 steps");
  });

  test("serves actions", async () => {
    await writeFile(join(project, "actions.yaml"), "listen: 127.0.0.1:0\ndrivers: [process]\n");
    const bin = join(project, "node_modules/treadle/bin/treadle.js");
    const server: ChildProcess = spawn(process.execPath, [bin, "actions", "serve", "actions.yaml"], { cwd: project });
    let said = "";
    for (const stream of [server.stdout, server.stderr]) {
      stream?.on("data", (bytes) => {
        said += bytes;
      });
    }
    const ended = new Promise((resolve) => server.on("close", resolve));
    await until(() => /127\.0\.0\.1:\d{2,}/.test(said) || server.exitCode !== null);
    expect(said).toMatch(/127\.0\.0\.1:\d{2,}/);
    server.kill("SIGTERM");
    await ended;
  });

  describe("with an interpreter of Python of one's own", () => {
    const engine = (python: string) => {
      const create = `await TorchEngine.create({ vocabSize: 8, layers: 1, width: 8, heads: 1, contextLength: 8 }, { kind: "torch" })`;
      const script = `import { TorchEngine } from "treadle/engines";
const engine = ${create};
const sampling = { maxTokens: 2, temperature: 1, stopTokens: [], seed: 0 };
const [completion] = await engine.generate([Int32Array.of(1, 2)], sampling);
console.log(completion.tokens.length);
await engine.close();`;
      const env = { ...process.env, TREADLE_PYTHON: python, PYTHONPATH: "" };
      return execute(process.execPath, ["--input-type=module", "--eval", script], { cwd: project, env });
    };

    test("finds the engine's Python sources, and is told how to install what they need", async (context) => {
      const bare = join(root, "bare");
      const made = await execute("python3", ["-m", "venv", "--without-pip", bare]).catch(() => undefined);
      if (made === undefined) return context.skip("there is no python3 with venv");
      const installed = join(project, "node_modules/@treadle");
      const [torch, client] = [
        join(installed, "engines/python/treadle_torch"),
        join(installed, "actions/python/treadle"),
      ];
      // The module is found, and begins: what it imports is missing, not itself.
      const failure = await engine(join(bare, "bin/python")).catch((error: { stderr: string }) => error);
      expect(failure.stderr).toContain("has no module 'torch'");
      expect(failure.stderr).toContain(`pip install "${torch}"`);
      const env = { ...process.env, TREADLE_PYTHON: join(bare, "bin/python") };
      const { stdout } = await execute("npx", ["treadle", "doctor", "--json"], { cwd: project, env });
      for (const folder of [torch, client]) {
        expect(JSON.parse(stdout).map(({ remedy }: { remedy?: string }) => remedy)).toContainEqual(
          expect.stringContaining(`pip install "${folder}"`),
        );
        const lock = folder === torch ? ["requirements.txt"] : [];
        expect(await readdir(folder)).toEqual(["README.md", "pyproject.toml", ...lock, "src"]);
      }
    });

    const reason = lacksTorch();
    test.skipIf(reason !== undefined)(`runs a model on PyTorch${reason ? ` (${reason})` : ""}`, async () => {
      const { stdout } = await engine(python);
      expect(stdout.trim()).toBe("2");
    });
  });

  test("has the documentation of its version", async () => {
    const docs = join(project, "node_modules/treadle/docs");
    expect(await readFile(join(docs, "index.md"), "utf8")).toContain("(guides/your-own-task.md)");
    expect(await readFile(join(docs, "guides/your-own-task.md"), "utf8")).toContain("```ts [run.ts]");
  });

  describe("of another package manager", () => {
    const bun = `@oven/bun-${process.platform}-${process.arch === "arm64" ? "aarch64" : process.arch}`;
    const tool = (path: string): string => join(root, "tools/node_modules", path);

    beforeAll(async () => {
      const tools = ["pnpm@10", "@yarnpkg/cli-dist@4", `${bun}@1`];
      await execute("npm", ["install", "--prefix", join(root, "tools"), "--no-audit", "--no-fund", ...tools]);
    }, 600_000);

    /** A project by `init` as this one would have it, with the packages that were packed. */
    const projectOf = async (name: string): Promise<string> => {
      const folder = join(root, `by ${name}`);
      const env = { ...process.env, npm_config_user_agent: `${name}/4.0.0` };
      await execute(process.execPath, [command, "init", folder, ...fromPacked], { env });
      return folder;
    };
    const within = (cwd: string, file: string, ...args: string[]) => execute(file, args, { cwd, maxBuffer: 2 ** 24 });
    const training = ["treadle", "run", "workflows/bandit", "--plain", "--set", "steps=3"];

    test("learns, installed by pnpm, where nothing is found that is not declared", { timeout: 600_000 }, async () => {
      const folder = await projectOf("pnpm");
      await within(folder, process.execPath, tool("pnpm/bin/pnpm.cjs"), "install");
      const { stdout } = await within(folder, process.execPath, tool("pnpm/bin/pnpm.cjs"), "exec", ...training);
      expect(stdout).toContain("finished 3 steps");
    });

    test("learns, installed by Bun", { timeout: 600_000 }, async () => {
      const folder = await projectOf("bun");
      await within(folder, tool(`${bun}/bin/bun`), "install");
      const { stdout } = await within(folder, tool(`${bun}/bin/bun`), "x", ...training);
      expect(stdout).toContain("finished 3 steps");
    });

    test("learns, installed by Yarn, and is told what to write under Plug'n'Play", { timeout: 600_000 }, async () => {
      const yarn = tool("@yarnpkg/cli-dist/bin/yarn.js");
      const folder = await projectOf("yarn");
      // Not every build of the newest one for other systems is published, which Yarn takes for an error.
      await setManifest(join(folder, "package.json"), ({ resolutions }) => {
        Object.assign(resolutions as object, { "msgpackr-extract": "3.0.4" });
      });
      await within(folder, process.execPath, yarn, "install", "--no-immutable");
      const { stdout } = await within(folder, process.execPath, yarn, ...training);
      expect(stdout).toContain("finished 3 steps");
      await writeFile(join(folder, ".yarnrc.yml"), "nodeLinker: pnp\n");
      await within(folder, process.execPath, yarn, "install", "--no-immutable");
      const refused = within(folder, process.execPath, yarn, ...training);
      await expect(refused).rejects.toMatchObject({
        code: 2,
        stderr: expect.stringContaining("nodeLinker: node-modules"),
      });
    });
  });

  test("gets a project by 'npm create', too", async () => {
    const other = join(root, "created");
    await run("create-treadle", other, "--template", "embodied", "--no-install");
    expect((await readManifest(join(other, "package.json"))).dependencies["treadle"]).toBeDefined();
    expect(await readFile(join(other, "workflows/embodied-ppo/config.yaml"), "utf8")).toContain("$schema=");
  });
});
