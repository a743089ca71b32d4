import { expect, test } from "vitest";
import { checkShape } from "../../src/control-plane/stream-shape.ts";

const name = "KV_treadle-records";
const subjects = ["$KV.treadle-records.>"];

test("a stream as this code makes it passes, however a server writes what is not set", () => {
  checkShape({ name, subjects }, subjects);
  checkShape({ name, subjects, sources: [], mirror: null, republish: undefined }, subjects);
  checkShape({ name, subjects: ["b", "a"] }, ["a", "b"]);
});

test.each([
  ["sources", [{ name: "KV_treadle-journals" }]],
  ["mirror", { name: "KV_treadle-journals" }],
  ["republish", { src: ">", dest: "stolen.>" }],
  ["subject_transform", { src: ">", dest: "elsewhere.>" }],
  ["subjects", [...subjects, "treadle.topic.>"]],
  ["subjects", []],
  ["subjects", undefined],
])("one with other '%s' does not, and the refusal names both", (setting, value) => {
  const check = () => checkShape({ name, subjects, [setting]: value }, subjects);
  expect(check).toThrow(name);
  expect(check).toThrow(setting);
});
