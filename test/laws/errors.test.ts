import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { errorCatalogue } from "@treadle/contracts";
import { expect, test } from "vitest";
import { projectRoot } from "../support/project.ts";

const documented = readFileSync(join(projectRoot, "packages/contracts/ERRORS.md"), "utf8")
  .split("\n")
  .map((line) => /^\| `([^`]+)` \| (\w+) \| (.+) \|$/.exec(line))
  .filter((match) => match !== null)
  .map(([, code, disposition, meaning]) => ({ code, disposition, meaning }));

test("the catalogue and its documentation list the same errors with the same words", () => {
  const catalogued = Object.entries(errorCatalogue).map(([code, { disposition, meaning }]) => ({
    code,
    disposition,
    meaning,
  }));
  const byCode = (a: { code: string | undefined }, b: { code: string | undefined }) =>
    String(a.code).localeCompare(String(b.code));
  expect(documented.toSorted(byCode)).toEqual(catalogued.toSorted(byCode));
});

test("every catalogued error is raised somewhere", () => {
  const sources = readdirSync(join(projectRoot, "packages"), { recursive: true, encoding: "utf8" })
    .filter((path) => /^[a-z]+\/src\/.*\.ts$/.test(path))
    .flatMap((path) => readFileSync(join(projectRoot, "packages", path), "utf8").match(/"[a-z-]+\.[a-z-]+"/g) ?? []);
  const timesNamed = (code: string) => sources.filter((named) => named === `"${code}"`).length;
  // Once is the catalogue itself.
  expect(Object.keys(errorCatalogue).filter((code) => timesNamed(code) < 2)).toEqual([]);
});
