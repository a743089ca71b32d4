/** The keys by which the README of `learning` says that a paper's behaviour can be had are keys. */
import { readFileSync } from "node:fs";
import { algorithmNames, createAlgorithm } from "@treadle/learning";
import { expect, test } from "vitest";
import { parse } from "yaml";

/** In `algorithm`, for each algorithm that the row names; keys of workers and of control environments say so. */
const deviations = readFileSync(new URL("../../packages/learning/README.md", import.meta.url), "utf8")
  .split("## Where it deviates from the papers")[1]!
  .split("\n\n**")[0]!
  .split("\n")
  .filter((line) => line.startsWith("| ") && !line.startsWith("| ---") && !line.startsWith("| here"))
  .map((line) => line.slice(2, -2).split(" | ") as [here: string, paper: string, why: string, key: string]);

test.each(deviations.filter(([here, , , key]) => algorithmsIn(here).length > 0 && keysIn(key).length > 0))(
  "a deviation ends by the key that the README names: %s",
  (here, _paper, _why, key) => {
    for (const name of algorithmsIn(here)) {
      expect(createAlgorithm(Object.assign({ name }, ...keysIn(key))).loss).toBeDefined();
    }
  },
);

function algorithmsIn(here: string): string[] {
  const subject = here.split(":")[0]!;
  return algorithmNames.filter((name) => subject.includes(`\`${name}\``));
}

/** As they would stand in a configuration file; a name alone is a key that takes a number of the user's. */
function keysIn(key: string): object[] {
  if (key.startsWith("no key")) return [];
  return [...key.matchAll(/`([^`]+)`/g)].map(([, text]) => parse(text!.includes(":") ? text! : `${text}: 1`) as object);
}
