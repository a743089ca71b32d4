import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { TreadleError } from "@treadle/contracts";
import { expect, test } from "vitest";
import { z } from "zod";
import { fullSchema } from "../../../src/author/workflow.ts";
import { applyOverrides, readConfigFile, validateConfig } from "../../../src/runner/run/config.ts";

const schema = fullSchema(z.object({ model: z.strictObject({ width: z.int().positive(), name: z.string() }) }));

function problemsOf(values: unknown): readonly string[] {
  try {
    validateConfig(schema, values);
  } catch (error) {
    expect(error).toBeInstanceOf(TreadleError);
    expect((error as TreadleError).code).toBe("config.invalid");
    return (error as TreadleError).details["problems"] as string[];
  }
  return [];
}
const model = { width: 4, name: "x" };

test("defaults fill what is left out", () => {
  expect(validateConfig(schema, { model })).toMatchObject({ steps: 1, batch: 32, flow: { maxStaleness: 0 }, model });
});

test("every problem is reported at once, with its path and value", () => {
  const problems = problemsOf({
    model: { width: -3 },
    steps: "many",
    flow: { maxStaleness: 1.5, granularity: { prompts: "some" } },
    placement: { mode: "diagonal" },
  });
  expect(problems).toHaveLength(6);
  const text = problems.join("\n");
  expect(text).toMatch(/^model\.width: .*'-3'$/m);
  expect(text).toMatch(/^model\.name: .*nothing$/m);
  expect(text).toMatch(/^steps: .*'many'$/m);
  expect(text).toMatch(/^flow\.maxStaleness: .*'1.5'$/m);
  expect(text).toMatch(/^flow\.granularity\.prompts: .*'some'$/m);
  expect(text).toMatch(/^placement\.mode: .*"temporal".*'diagonal'$/m);
});

test("an unknown key names the nearest known one, at its own level", () => {
  expect(problemsOf({ model, stepz: 1 })).toEqual(["stepz: unknown key; did you mean 'steps'?"]);
  expect(problemsOf({ model: { ...model, widht: 1 } })).toEqual([
    "model.widht: unknown key; did you mean 'model.width'?",
  ]);
  expect(problemsOf({ model, flow: { maxStalenes: 1 }, supervision: { stalMs: 1 } })).toEqual([
    "flow.maxStalenes: unknown key; did you mean 'flow.maxStaleness'?",
    "supervision.stalMs: unknown key; did you mean 'supervision.stallMs'?",
  ]);
  expect(problemsOf({ model: { ...model, zzzzzzzz: 1 } })).toEqual([
    "model.zzzzzzzz: unknown key; known keys: width, name",
  ]);
});

test("what a workflow's own schema says of several keys together holds, too", () => {
  const own = z.strictObject({ low: z.number(), high: z.number() });
  const ordered = own.superRefine(({ low, high }, context) => {
    if (low > high) context.addIssue({ code: "custom", path: ["low"], message: "allowed is at most 'high'" });
  });
  const problems = (values: unknown) => {
    try {
      validateConfig(fullSchema(ordered), values);
    } catch (error) {
      return (error as TreadleError).details["problems"];
    }
    return [];
  };
  expect(problems({ low: 1, high: 2 })).toEqual([]);
  expect(problems({ low: 3, high: 2 })).toEqual([expect.stringMatching(/^low: allowed is at most 'high'/)]);
});

test("a workflow may not declare what Treadle defines itself", () => {
  expect(() => fullSchema(z.object({ steps: z.number() }))).toThrow("'steps'");
});

test("overrides are YAML values on paths, and make what is missing on the way", () => {
  const values = { model: { width: 1, name: "a" }, steps: 3 };
  const result = applyOverrides(values, [
    "model.width=8",
    "model.name=a=b",
    "placement.components.rollout=0-1",
    "trace=false",
    "flow.granularity={prompts: 4}",
    "steps.deep=[1, two]",
    "seed=",
  ]);
  expect(result).toEqual({
    model: { width: 8, name: "a=b" },
    placement: { components: { rollout: "0-1" } },
    trace: false,
    flow: { granularity: { prompts: 4 } },
    steps: { deep: [1, "two"] },
    seed: null,
  });
  expect(values).toEqual({ model: { width: 1, name: "a" }, steps: 3 });
});

test("an override without a key or a value that is not YAML says which", () => {
  for (const override of ["steps", "=3", ""]) {
    expect(() => applyOverrides({}, [override])).toThrow(`--set '${override}'`);
  }
  expect(() => applyOverrides({}, ["a=[1"])).toThrow(/--set a=\[1.*not valid YAML/);
});

test("an override cannot reach what every object has", () => {
  applyOverrides({}, ["__proto__.polluted=1", "constructor.polluted=1"]);
  expect(({} as Record<string, unknown>)["polluted"]).toBeUndefined();
  expect((Object as unknown as Record<string, unknown>)["polluted"]).toBeUndefined();
});

test("a file that is missing or is no YAML is config.unreadable, with the line", async () => {
  const folder = await mkdtemp(join(tmpdir(), "config-"));
  const path = join(folder, "config.yaml");
  await expect(readConfigFile(path)).rejects.toMatchObject({ code: "config.unreadable" });
  await writeFile(path, "steps: 1\nmodel: { width: [ }\n");
  await expect(readConfigFile(path)).rejects.toMatchObject({
    code: "config.unreadable",
    message: expect.stringMatching(/config\.yaml' is not valid YAML at line 2/),
  });
  await writeFile(path, "");
  expect(await readConfigFile(path)).toEqual({});
  await writeFile(path, "- a list\n");
  expect(problemsOf(await readConfigFile(path)).length).toBeGreaterThan(0);
  await rm(folder, { recursive: true });
});

test("a name that no member of a union has is refused with those that there are, and the nearest", () => {
  const algorithm = z.discriminatedUnion("name", [
    z.strictObject({ name: z.literal("grpo") }),
    z.strictObject({ name: z.literal("ppo"), clip: z.number() }),
  ]);
  const own = fullSchema(z.object({ algorithm: algorithm.default({ name: "grpo" }) }));
  const messageFor = (name: unknown) => {
    try {
      validateConfig(own, { algorithm: { name } });
      return "";
    } catch (error) {
      return (error as TreadleError).message;
    }
  };
  expect(messageFor("grop")).toContain("algorithm.name: 'grop' is not one of 'grpo', 'ppo', did you mean 'grpo'?");
  expect(messageFor(7)).toContain("algorithm.name: '7' is not one of 'grpo', 'ppo'");
});

test("a key that the named member of a union lacks is refused with those that it has", () => {
  const algorithm = z.discriminatedUnion("name", [
    z.strictObject({ name: z.literal("grpo"), dualClip: z.number().optional() }),
    z.strictObject({ name: z.literal("ppo"), discount: z.number().optional() }),
  ]);
  const own = fullSchema(z.object({ algorithm }));
  const messageFor = (value: object) => {
    try {
      validateConfig(own, { algorithm: value });
      return "";
    } catch (error) {
      return (error as TreadleError).message;
    }
  };
  expect(messageFor({ name: "ppo", zzzzzzzz: 1 })).toContain(
    "algorithm.zzzzzzzz: unknown key; known keys: name, discount",
  );
  expect(messageFor({ name: "grpo", dualclip: 1 })).toContain("did you mean 'algorithm.dualClip'?");
});

test("an unknown key of a section that may be a number instead is refused with those that it has", () => {
  const decay = z.enum(["linear", "cosine"]).optional();
  const schedule = z.strictObject({ peak: z.number(), warmupSteps: z.int().default(0), decay });
  const own = fullSchema(z.object({ rate: z.union([z.number(), schedule]) }));
  const refused = (key: string) => () => validateConfig(own, { rate: { peak: 1, [key]: 1 } });
  expect(refused("zzzzzzzz")).toThrow("rate.zzzzzzzz: unknown key; known keys: peak, warmupSteps, decay");
  expect(refused("warmupStep")).toThrow("rate.warmupStep: unknown key; did you mean 'rate.warmupSteps'?");
  expect(() => validateConfig(own, { rate: { peak: 1, decay: "cos" } })).toThrow(
    /^the configuration has 1 problem\(s\):\n {2}rate\.decay: .*"linear"\|"cosine".*'cos'$/,
  );
  expect(() => validateConfig(own, { rate: "high" })).toThrow(/ {2}rate: .*number.*, or .*object.*'high'$/);
});

test("how long ranks wait for a place is a limit of its own, and one that is none is refused", () => {
  expect(validateConfig(schema, { model })).toMatchObject({ cluster: { placeWaitMs: 120_000 } });
  for (const placeWaitMs of [0, 86_400_000])
    expect(validateConfig(schema, { model, cluster: { placeWaitMs } })).toMatchObject({ cluster: { placeWaitMs } });
  for (const placeWaitMs of [-1, Number.NaN, Number.POSITIVE_INFINITY, "2m", null])
    expect(problemsOf({ model, cluster: { placeWaitMs } })[0]).toMatch(/^cluster\.placeWaitMs: .*'.*'$/);
  expect(problemsOf({ model, cluster: { placeWaitMS: 1 } })).toEqual([
    "cluster.placeWaitMS: unknown key; did you mean 'cluster.placeWaitMs'?",
  ]);
});

test("what stands in a list or below a name of the reader's own has its options, and its keys, told, too", () => {
  const tracker = (kind: string) =>
    problemsOf({ model, observe: { trackers: [{ kind: "jsonl", path: "a" }, { kind }] } });
  expect(tracker("tensorbord")[0]).toMatch(
    /^observe\.trackers\.1\.kind: 'tensorbord' is not one of .*'tensorboard'.*, did you mean 'tensorboard'\?$/,
  );
  expect(problemsOf({ model, observe: { trackers: [{ kind: "jsonl", path: "a", pat: "a" }] } })[0]).toContain(
    "did you mean 'observe.trackers.0.path'?",
  );
  expect(problemsOf({ model, cluster: { groups: { gpus: { label: { pool: "h200" } } } } })[0]).toContain(
    "did you mean 'cluster.groups.gpus.labels'?",
  );
});
