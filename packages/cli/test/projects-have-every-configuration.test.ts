/** What `init` writes has each configuration that guides name, with the files that it reads. */
import { execFile } from "node:child_process";
import { existsSync, readdirSync } from "node:fs";
import { mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { command, projectRoot } from "../../../test/support/project.ts";
import { projectFiles, type TemplateName, templates } from "../src/project-template.ts";

const execute = promisify(execFile);

describe.each(Object.keys(templates) as TemplateName[])("a project by the template '%s'", (name) => {
  const workflow = `workflows/${templates[name].workflow}`;
  const configurations = readdirSync(join(projectRoot, workflow)).filter((file) => file.endsWith(".yaml"));
  let project: string;

  beforeAll(async () => {
    project = await mkdtemp(join(tmpdir(), "treadle-project-"));
    for (const [path, text] of Object.entries(await projectFiles(project, name))) {
      await mkdir(dirname(join(project, path)), { recursive: true });
      await writeFile(join(project, path), text);
    }
    // As if it were installed.
    await symlink(join(projectRoot, "node_modules"), join(project, "node_modules"));
  });
  afterAll(() => rm(project, { recursive: true, force: true }));

  test.each(configurations)("has a valid '%s'", { timeout: 120_000 }, async (file) => {
    const words = ["validate", workflow, "--config", `${workflow}/${file}`, "--json"];
    const { stdout } = await execute(process.execPath, [command, ...words], { cwd: project });
    expect(JSON.parse(stdout)).toMatchObject({ config: { steps: expect.any(Number) } });
    const named = stdout.match(/(?<=")workflows\/[^"]+/g) ?? [];
    expect(named.filter((path) => !existsSync(join(project, path)))).toEqual([]);
  });
});
