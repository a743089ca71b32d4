/** What an editor shows of a workflow's keys. */
import { workflow } from "@treadle/runtime";
import { EngineConfig } from "@treadle/workers";
import { expect, it } from "vitest";
import { z } from "zod";
import { configSchema } from "../src/config-schema.ts";

type Node = {
  readonly description?: string;
  readonly properties?: Readonly<Record<string, Node>>;
  readonly oneOf?: readonly Node[];
  readonly anyOf?: readonly Node[];
};

/** A workflow of this repository, as users have it. */
async function schemaOf(name: string): Promise<Node> {
  const { default: found } = await import(`../../../workflows/${name}/run.ts`);
  return configSchema(found.schema) as Node;
}

function undescribed(node: Node, path: string): string[] {
  const inside = Object.entries(node.properties ?? {}).flatMap(([name, inner]) => [
    ...(inner.description === undefined && inner.properties === undefined ? [`${path}${name}`] : []),
    ...undescribed(inner, `${path}${name}.`),
  ]);
  return [...inside, ...[...(node.oneOf ?? []), ...(node.anyOf ?? [])].flatMap((each) => undescribed(each, path))];
}

it.each(["reasoning-grpo", "tool-agent"])("keys of the parts that %s is made of say what they mean", async (name) => {
  const { properties = {} } = await schemaOf(name);
  for (const part of ["cluster", "placement", "supervision", "model", "task"])
    expect(undescribed(properties[part] as Node, `${part}.`)).toEqual([]);
  const grpo = (properties["algorithm"] as Node).oneOf?.[0]?.properties;
  expect(grpo?.["clipLow"]?.description).toContain("how far below 1");
  expect(properties["beta2"]?.description).toBe("of Adam; papers and libraries have 0.999");
});

it("what a workflow says of a key counts for more, and a key that is only alike means nothing", () => {
  const { model } = EngineConfig.shape;
  const own = { model: model.describe("its own words"), width: z.int().positive() };
  const { properties = {} } = configSchema(workflow(z.object(own), async () => {}).schema) as Node;
  expect(properties["model"]?.description).toBe("its own words");
  expect(properties["model"]?.properties?.["width"]?.description).toContain("represented");
  expect(properties["width"]?.description).toBeUndefined();
  expect(properties["seed"]?.description).toContain("of every draw");
});
