import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { errorCatalogue } from "@treadle/contracts";
import { expect, test } from "vitest";
import { projectRoot } from "../support/project.ts";

test("every catalogued error is raised somewhere", () => {
  const sources = readdirSync(join(projectRoot, "packages"), { recursive: true, encoding: "utf8" })
    .filter((path) => /^[a-z]+\/src\/.*\.ts$/.test(path))
    .flatMap((path) => readFileSync(join(projectRoot, "packages", path), "utf8").match(/"[a-z-]+\.[a-z-]+"/g) ?? []);
  const timesNamed = (code: string) => sources.filter((named) => named === `"${code}"`).length;
  // Once is the catalogue itself.
  expect(Object.keys(errorCatalogue).filter((code) => timesNamed(code) < 2)).toEqual([]);
});
