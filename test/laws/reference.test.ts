import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { generatedPages } from "../../docs/generate/pages.ts";
import { projectRoot } from "../support/project.ts";

const pages = await generatedPages();

test.each(Object.keys(pages))("%s is what the code says", (name) => {
  const path = join(projectRoot, name);
  const committed = existsSync(path) ? readFileSync(path, "utf8") : "";
  expect(committed, "run 'npm run docs:reference' and commit what it wrote").toBe(pages[name]);
});

test("every key that every workflow has says what it means", () => {
  const [common = ""] = (pages["docs/reference/configuration.md"] ?? "").split(
    "## Configurations of the shipped workers",
  );
  const rows = [...common.matchAll(/^\| `([^`]+)` \|.*\| (.*) \|$/gm)];
  expect(rows.length).toBeGreaterThan(50);
  expect(rows.filter(([, , meaning]) => meaning?.trim() === "").map(([, key]) => key)).toEqual([]);
});
