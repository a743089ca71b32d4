/** The site of the documentation, as `npm run docs` builds it. VitePress refuses links that lead nowhere. Needs the package registry. */
import { execFile } from "node:child_process";
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import { expect, test } from "vitest";
import { projectRoot } from "../support/project.ts";

const site = join(projectRoot, "docs/.vitepress/dist");
const textOf = async (page: string): Promise<string> =>
  (await readFile(join(site, `${page}.html`), "utf8")).replace(/<[^>]*>/g, "");

// Built once; with other tests beside it that takes minutes.
test("has every page, and the public API as the docstrings have it", { timeout: 900_000 }, async () => {
  await promisify(execFile)("npm", ["run", "docs"], { cwd: projectRoot, maxBuffer: 2 ** 24 });
  const written = (await readdir(join(projectRoot, "docs"), { recursive: true })).filter(
    (path) => path.endsWith(".md") && !path.startsWith("node_modules"),
  );
  const built = new Set(await readdir(site, { recursive: true }));
  expect(written.filter((path) => !built.has(path.replace(/\.md$/, ".html")))).toEqual([]);

  expect(await textOf("reference/api/treadle/classes/Worker")).toContain(
    "One component&#39;s work; one instance is one process, a rank.",
  );
  for (const name of ["treadle", "workers", "engines", "learning", "actions", "runner"])
    expect(await textOf(`reference/api/${name === "treadle" ? name : `treadle/${name}`}/index`)).toMatch(
      /Classes|Functions/,
    );
});
