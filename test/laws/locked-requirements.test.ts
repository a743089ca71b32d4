/** What Python's engine runs on is locked: each package in one version of known files, whoever installs it. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { satisfies } from "semver";
import { expect, test } from "vitest";
import { projectRoot } from "../support/project.ts";

const read = (name: string): string => readFileSync(join(projectRoot, "python/treadle_torch", name), "utf8");
/** A requirement with its hashes may go on over lines. */
const locked = read("requirements.txt")
  .replaceAll(/\\\n\s*/g, "")
  .split("\n")
  .filter((line) => line !== "" && !line.startsWith("#"));
const named = (line: string): readonly [name: string, version: string] => {
  const [, name, version] = /^([a-z0-9.-]+)==(\S+)/.exec(line) ?? [];
  if (name === undefined || version === undefined) throw new Error(`'${line}' is not locked to a version`);
  return [name, version];
};
const versions = new Map(locked.map(named));

test("every package is locked to a version, and to the hashes of its files", () => {
  expect(locked.length).toBeGreaterThan(20);
  for (const line of locked) expect(line).toMatch(/--hash=sha256:[0-9a-f]{64}/);
});

test("what the package and the lock's own list ask for is there, in a version that they take", () => {
  const [, dependencies = ""] = /^dependencies = \[(.*?)^\]/ms.exec(read("pyproject.toml")) ?? [];
  const asked = [...dependencies.matchAll(/"([^"]+)"/g), ...read("requirements.in").matchAll(/^([a-z].*)$/gm)];
  expect(asked.length).toBeGreaterThan(10);
  for (const [, requirement = ""] of asked) {
    const [, name = "", operator = ">=", version = "0"] = /^([a-z-]+)(?:(>=|==)(\S+))?$/.exec(requirement) ?? [];
    const has = versions.get(name);
    expect(has, requirement).toBeDefined();
    const whole = (text: string) => [...text.split("."), "0", "0"].slice(0, 3).join(".");
    const range = `${operator === "==" ? "" : operator}${whole(version)}`;
    expect(satisfies(whole(has as string), range), `${requirement}; locked is '${has}'`).toBe(true);
  }
});
