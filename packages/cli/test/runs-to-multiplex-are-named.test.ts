import { expect, test } from "vitest";
import { readRunSpecs } from "../src/multiplex/run-specs.ts";

const read = (workflows: string[], set: string[] = [], config: string[] = []) =>
  readRunSpecs(workflows, { set, config });

test("runs are called as their folders, or as they are named, and settings are for the run that they begin with", () => {
  expect(
    read(["workflows/bandit/", "two=workflows/bandit"], ["two.steps=3", "bandit.cluster.devices=2"], ["two=b.yaml"]),
  ).toEqual([
    { name: "bandit", workflow: "workflows/bandit/", configFile: undefined, overrides: ["cluster.devices=2"] },
    { name: "two", workflow: "workflows/bandit", configFile: "b.yaml", overrides: ["steps=3"] },
  ]);
});

test.each([
  [["a/x", "b/x"], [], [], "two runs are called 'x'; name them, as 'one=b/x'"],
  [["a/x"], [], [], "one run shares devices with nobody"],
  [["=a/x", "b"], [], [], "'=a/x' is not the name of a run, '=', and a workflow"],
  [["a b=x", "c"], [], [], "run 'a b' has a name of other than letters"],
  [
    ["a", "b"],
    ["steps=3"],
    [],
    "'--set steps=3' does not begin with the name of a run; the runs are a, b, as 'a.steps=3'",
  ],
  [["a", "b"], ["c.steps=3"], [], "'--set c.steps=3' does not begin with the name of a run"],
  [["a", "b"], [], ["c=f.yaml"], "'--config c=f.yaml' is for no run"],
  [["a", "b"], [], ["f.yaml"], "'f.yaml' is not the name of a run, '=', and a file"],
])("%s with %s and %s is refused", (workflows, set, config, message) => {
  expect(() => read(workflows, set, config)).toThrow(message);
});
