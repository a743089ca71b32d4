/** Another user of the machine: what the TypeScript loader has compiled lies where everybody may make folders. */
import { spawnSync } from "node:child_process";
import { chmodSync, existsSync, mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { command, projectRoot } from "../support/project.ts";

test("a folder that another has made for the loader's cache is neither read nor written", async () => {
  const root = await mkdtemp(join(tmpdir(), "treadle-cache-"));
  try {
    const own = join(root, "own");
    mkdirSync(own);
    const validate = (TMPDIR: string) => {
      const args = [command, "validate", join(projectRoot, "workflows/bandit")];
      const { status, stderr } = spawnSync(process.execPath, args, {
        cwd: projectRoot,
        encoding: "utf8",
        // from sources, so that much is compiled, as CI's TREADLE_COMPILED=1 would not
        env: { ...process.env, TMPDIR, TREADLE_COMPILED: "" },
      });
      expect(status, stderr).toBe(0);
    };
    validate(own);
    const [cache = ""] = readdirSync(own).filter((name) => name.startsWith("tsx-"));
    const names = readdirSync(join(own, cache));
    expect(names.length).toBeGreaterThan(10);
    // Whoever made the folder knows the names: they are of what is compiled, and of when it was.
    const others = join(root, "others");
    mkdirSync(join(others, cache), { recursive: true });
    chmodSync(join(others, cache), 0o777);
    const trace = join(root, "ran");
    const code = `import fs from "node:fs"; fs.writeFileSync(${JSON.stringify(trace)}, "");`;
    for (const name of names)
      writeFileSync(join(others, cache, name), JSON.stringify({ code, map: "", warnings: [] }), { mode: 0o666 });
    validate(others);
    expect(existsSync(trace)).toBe(false);
    expect(readdirSync(join(others, cache)).sort()).toEqual(names.sort());
  } finally {
    await rm(root, { recursive: true, force: true });
  }
}, 120_000);
