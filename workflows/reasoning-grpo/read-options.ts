import { parseArgs } from "node:util";
import { z } from "zod";

/** Options of a script, each a word after its name; a wrong one is said, and ends the process. */
export function readOptions<Shape extends z.ZodRawShape>(
  schema: z.ZodObject<Shape>,
  repeated: readonly string[] = [],
): z.infer<z.ZodObject<Shape>> {
  const known = Object.keys(schema.shape);
  const options = Object.fromEntries(
    known.map((name) => [name, { type: "string" as const, multiple: repeated.includes(name) }]),
  );
  let values: Record<string, unknown>;
  try {
    values = parseArgs({ options }).values;
  } catch (error) {
    return refuse(`${(error as Error).message}; options are ${known.map((name) => `--${name}`).join(", ")}`);
  }
  const parsed = schema.safeParse(values);
  return parsed.success ? parsed.data : refuse(z.prettifyError(parsed.error));
}

function refuse(why: string): never {
  console.error(why);
  process.exit(2);
}
