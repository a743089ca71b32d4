import { join } from "node:path";
import fc from "fast-check";
import { expect, test } from "vitest";
import { profilePath } from "../../../src/runner/placement/profile-store.ts";

const root = "/home/someone/project";

test("a profile is kept under the path of its workflow", () => {
  const kept = join(root, ".treadle/profiles/workflows/grpo.json");
  expect(profilePath(root, join(root, "workflows/grpo"))).toBe(kept);
  expect(profilePath(root, join(root, "workflows/grpo/"))).toBe(kept);
  expect(profilePath(root, "/anywhere", "mine.json")).toBe(join(root, "mine.json"));
});

test("two folders never share a profile, whatever they are called and wherever they are", () => {
  const part = fc.constantFrom("a", "b", "grpo", "grpo.json", "elsewhere", "..a", "project");
  const folder = fc.oneof(
    fc.array(part, { maxLength: 4 }).map((parts) => join(root, ...parts)),
    fc.array(part, { minLength: 1, maxLength: 3 }).map((parts) => join("/home", ...parts)),
  );
  fc.assert(
    fc.property(folder, folder, (one, other) => {
      const [ofOne, ofOther] = [profilePath(root, one), profilePath(root, other)];
      expect(ofOne === ofOther).toBe(one === other);
      expect(ofOne.startsWith(join(root, ".treadle/profiles/"))).toBe(true);
    }),
    { numRuns: 1000 },
  );
});
