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

test("every key of the action service and of its hosts says what it means", () => {
  const rows = rowsOf(pages["docs/reference/action-service.md"] ?? "");
  const keys = rows.map(([key]) => key);
  expect(keys).toEqual(expect.arrayContaining(["openai.upstreams.<i>.url", "resources.<name>.windows.<i>.burst"]));
  expect(keys.filter((key) => key === "listen")).toHaveLength(2); // the service's, and a host's
  const isOwn = (meaning: string): boolean => meaning !== "" && !/^of `/.test(meaning);
  expect(rows.filter(([, meaning]) => !isOwn(meaning)).map(([key]) => key)).toEqual([]);
});

test("every key that every workflow has says what it means", () => {
  const [common = ""] = (pages["docs/reference/configuration.md"] ?? "").split(
    "## Configurations of the shipped workers",
  );
  const rows = rowsOf(common);
  expect(rows.length).toBeGreaterThan(50);
  expect(rows.filter(([, meaning]) => meaning === "").map(([key]) => key)).toEqual([]);
});

const rowsOf = (page: string): (readonly [key: string, meaning: string])[] =>
  [...page.matchAll(/^\| `([^`]+)` \|.*\| (.*) \|$/gm)].map(([, key = "", meaning = ""]) => [key, meaning.trim()]);
