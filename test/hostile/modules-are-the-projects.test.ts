/**
 * A run that is resumed may have its configuration from elsewhere, and the runner loads what `data.module` and `tokenizer.module` name: the
 * project's code, and nothing else.
 */
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { validateWorkflow } from "@treadle/runtime/runner";
import { afterAll, beforeAll, expect, test } from "vitest";
import { projectRoot } from "../support/project.ts";

const workflow = fileURLToPath(new URL("../support/workflows/own-data", import.meta.url));
let outside: string;
/** of the project, where git and the tools look at nothing */
let inside: string;
let mark: string;
beforeAll(async () => {
  outside = await mkdtemp(join(tmpdir(), "treadle-outside-"));
  mark = join(outside, "was-run");
  await mkdir(join(projectRoot, ".cache"), { recursive: true });
  inside = await mkdtemp(join(projectRoot, ".cache", "modules-"));
  const evil = `import { writeFileSync } from "node:fs"; writeFileSync(${JSON.stringify(mark)}, "");\n`;
  await writeFile(join(outside, "evil.mjs"), evil);
  await symlink(join(outside, "evil.mjs"), join(inside, "linked.mjs"));
  // As a run's folder, whose files others have written.
  await writeFile(join(inside, "journal.jsonl"), "");
  await writeFile(join(inside, "kept.mjs"), evil);
});
afterAll(async () => {
  await rm(outside, { recursive: true, force: true });
  await rm(inside, { recursive: true, force: true });
});

const validate = (...overrides: string[]) => validateWorkflow({ workflow, projectRoot, overrides });

test("WH6: modules of the project are loaded", async () => {
  expect((await validate()).plan.components).toBeDefined();
});

test.each(["data", "tokenizer"])("WH6: %s.module names no code but the project's", async (key) => {
  const modules = [
    join(outside, "evil.mjs"),
    relative(projectRoot, join(outside, "evil.mjs")),
    join(inside, "linked.mjs"),
    join(inside, "kept.mjs"),
    "data:text/javascript,process.exit(3)",
    "node:fs",
  ];
  for (const module of modules) {
    await expect(validate(`${key}.module=${JSON.stringify(module)}`), module).rejects.toMatchObject({
      code: "worker.load-failed",
      message: expect.stringMatching(
        new RegExp(
          `^${key}\\.module is '.*(is outside of the project root|is no file here).*set ${key}\\.module to a file`,
          "s",
        ),
      ),
    });
    expect(existsSync(mark), module).toBe(false);
  }
});
