import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { PredictorFolder } from "../../src/runner/cluster/predictor-folder.ts";
import { predictorFolder, profilePath } from "../../src/runner/placement/profile-store.ts";

let folder: string;
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "treadle-predictors-"));
});
afterEach(() => rm(folder, { recursive: true, force: true }));

test("each rank reads what it wrote last, and a rank that wrote nothing what the first one did", async () => {
  const kept = new PredictorFolder(join(folder, "kept"));
  expect(await kept.read("rollout/0")).toBeNull();
  await kept.write("rollout/0", "first");
  await kept.write("rollout/1", "old");
  await kept.write("rollout/1", "second");
  await kept.write("agent.b/0", "other");
  expect(await kept.read("rollout/0")).toEqual({ path: join(folder, "kept", "rollout-0.json"), text: "first" });
  expect((await kept.read("rollout/1"))?.text).toBe("second");
  expect((await kept.read("rollout/7"))?.text).toBe("first");
  expect((await kept.read("agent.b/0"))?.text).toBe("other");
  expect(await kept.read("nobody/0")).toBeNull();
});

test("more than 8 MiB is refused, and what was kept stays", async () => {
  const kept = new PredictorFolder(folder);
  await kept.write("rollout/0", "small");
  await expect(kept.write("rollout/0", "x".repeat(8 * 2 ** 20 + 1))).rejects.toMatchObject({
    code: "artifact.refused",
  });
  expect((await kept.read("rollout/0"))?.text).toBe("small");
  expect(await readdir(folder)).toEqual(["rollout-0.json"]);
});

test("without a folder nothing is kept", async () => {
  const none = new PredictorFolder();
  await none.write("rollout/0", "lost");
  expect(await none.read("rollout/0")).toBeNull();
});

test("predictors of a workflow lie beside its profile, by the same rule", () => {
  const of = (workflow: string) => predictorFolder("/project", workflow);
  expect(of("/project/workflows/grpo")).toBe("/project/.treadle/predictors/workflows/grpo");
  const elsewhere = profilePath("/project", "/other/grpo").replace("profiles", "predictors").replace(".json", "");
  expect(of("/other/grpo")).toBe(elsewhere);
});
