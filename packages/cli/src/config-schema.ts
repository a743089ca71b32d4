/** A workflow's configuration as JSON Schema, for editors: completion, allowed values, and what each key means. */
import { RuntimeConfig } from "@treadle/contracts";
import * as engines from "@treadle/engines";
import * as learning from "@treadle/learning";
import * as workers from "@treadle/workers";
import { z } from "zod";
import { configMeanings } from "./generated/config-meanings.ts";

const shipped: Readonly<Record<string, unknown>> = { ...engines, ...learning, ...workers, RuntimeConfig };

/** What a workflow itself says of a key, by `.describe`, counts for more than what shipped schemas say of theirs. */
export function configSchema(schema: z.ZodType): unknown {
  const meanings = meaningsOfShipped();
  return z.toJSONSchema(schema, {
    io: "input",
    unrepresentable: "any",
    override: ({ zodSchema, jsonSchema }) => {
      const meaning = meanings.get(zodSchema);
      if (meaning !== undefined) jsonSchema.description ??= meaning;
    },
  });
}

/** Of each key's own schema: a workflow's configuration is made of the same objects. */
function meaningsOfShipped(): ReadonlyMap<z.core.$ZodType, string> {
  const meanings = new Map<z.core.$ZodType, string | undefined>();
  for (const [name, texts] of Object.entries(configMeanings)) {
    const schema = shipped[name];
    if (!(schema instanceof z.ZodType)) throw new Error(`no package exports a schema '${name}'`);
    for (const [key, inner] of keysOf(schema, "")) {
      const text = texts[key];
      if (text === undefined) continue;
      const isOther = meanings.has(inner) && meanings.get(inner) !== text;
      meanings.set(inner, isOther ? undefined : text); // one schema of several keys means none of them
    }
  }
  return new Map([...meanings].flatMap(([inner, text]) => (text === undefined ? [] : [[inner, text] as const])));
}

/** Keys, as `cluster.nats.url`, with the schemas of their values; a record's keys are `<name>`, an array's `<i>`. */
function* keysOf(schema: z.core.$ZodType, prefix: string): Generator<readonly [string, z.core.$ZodType]> {
  if (schema instanceof z.ZodObject) {
    for (const [name, inner] of Object.entries(schema.shape)) {
      yield [`${prefix}${name}`, inner];
      yield* keysOf(inner, `${prefix}${name}.`);
    }
  } else if (schema instanceof z.ZodRecord) yield* keysOf(schema.valueType, `${prefix}<name>.`);
  else if (schema instanceof z.ZodArray) yield* keysOf(schema.element, `${prefix}<i>.`);
  else if (schema instanceof z.ZodUnion) for (const option of schema.options) yield* keysOf(option, prefix);
  else if (schema instanceof z.ZodPipe) yield* keysOf(schema.in, prefix);
  else if (isWrapper(schema)) yield* keysOf(schema.unwrap(), prefix);
}

const isWrapper = (
  schema: z.core.$ZodType,
): schema is z.ZodOptional | z.ZodNullable | z.ZodDefault | z.ZodPrefault | z.ZodReadonly =>
  schema instanceof z.ZodOptional ||
  schema instanceof z.ZodNullable ||
  schema instanceof z.ZodDefault ||
  schema instanceof z.ZodPrefault ||
  schema instanceof z.ZodReadonly;
