import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { validateWorkflow } from "@treadle/runtime/runner";
import { describe, expect, test } from "vitest";
import { parse } from "yaml";
import { z } from "zod";
import { projectRoot } from "../support/project.ts";

const workflows = readdirSync(join(projectRoot, "workflows"));

describe.each(workflows)("the configuration of %s", (name) => {
  const workflow = join(projectRoot, "workflows", name);

  test.each(["temporal", "spatial", "hybrid"])("is valid and can be placed in %s mode", async (mode) => {
    const overrides = [`placement.mode=${mode}`];
    const { config, plan } = await validateWorkflow({ workflow, overrides, projectRoot });
    expect(config.placement.mode).toBe(mode);
    expect(plan.mode).toBe(mode);
    for (const { ranks } of Object.values(plan.components)) expect(ranks.length).toBeGreaterThan(0);
  });

  test("is refused with a key that nobody reads", async () => {
    const refused = validateWorkflow({ workflow, overrides: ["seeed=1"], projectRoot });
    await expect(refused).rejects.toMatchObject({ code: "config.invalid", message: expect.stringContaining("'seed'") });
  });
});

const others = workflows.flatMap((name) =>
  readdirSync(join(projectRoot, "workflows", name))
    .filter((file) => file.endsWith(".yaml") && file !== "config.yaml")
    .map((file) => [name, file] as const),
);

test.each(others)("of %s, %s is valid and can be placed, too", async (name, file) => {
  const workflow = join(projectRoot, "workflows", name);
  const { plan } = await validateWorkflow({ workflow, configFile: join(workflow, file), overrides: [], projectRoot });
  for (const { ranks } of Object.values(plan.components)) expect(ranks.length).toBeGreaterThan(0);
});

const Selecting = z.object({
  checkpoints: z.object({ bestBy: z.string(), everySteps: z.int().positive() }),
  evaluation: z.object({ everySteps: z.int().positive() }),
});

test.each(["reasoning-grpo", "tool-agent"])(
  "%s keeps the best checkpoint by validation, never by what is held out",
  (name) => {
    const text = readFileSync(join(projectRoot, "workflows", name, "config.yaml"), "utf8");
    const { checkpoints, evaluation } = Selecting.parse(parse(text));
    expect(checkpoints.bestBy).toBe("validation");
    expect(checkpoints.everySteps % evaluation.everySteps).toBe(0); // or a checkpoint would have no figure
  },
);
