/** A workflow's configuration as JSON Schema, for editors: completion, allowed values, and what each key means. */
import { z } from "zod";
import { configMeanings } from "./generated/config-meanings.ts";

type Node = {
  description?: string;
  readonly properties?: Readonly<Record<string, Node>>;
  readonly additionalProperties?: Node | boolean;
};

export function configSchema(schema: z.ZodType): unknown {
  const json = z.toJSONSchema(schema, { io: "input", unrepresentable: "any" }) as Node;
  describe(json, "");
  return json;
}

/** What a workflow itself says of a key counts for more. */
function describe(node: Node, prefix: string): void {
  for (const [name, inner] of Object.entries(node.properties ?? {})) {
    const key = `${prefix}${name}`;
    const meaning = configMeanings[key];
    if (meaning !== undefined) inner.description ??= meaning;
    describe(inner, `${key}.`);
    if (typeof inner.additionalProperties === "object") describe(inner.additionalProperties, `${key}.<name>.`);
  }
}
