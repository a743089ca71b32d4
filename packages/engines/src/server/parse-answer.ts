import { TreadleError } from "@treadle/contracts";
import { z } from "zod";

/** Throws `service.failed` for what a server's sources do not have it say. */
export function parseAnswer<T>(name: string, schema: z.ZodType<T>, value: unknown, path: string): T {
  const parsed = schema.safeParse(value);
  if (parsed.success) return parsed.data;
  throw unusableAnswer(name, path, z.prettifyError(parsed.error));
}

/** Of a stream. Throws `service.failed` also for what the server says of its own failure. */
export function parseEvent<T>(name: string, schema: z.ZodType<T>, data: string, path: string): T {
  let value: unknown;
  try {
    value = JSON.parse(data);
  } catch {
    throw unusableAnswer(name, path, `an event of its stream is no JSON: ${data.slice(0, 200)}`);
  }
  const failed = Failed.safeParse(value);
  if (failed.success)
    throw new TreadleError("service.failed", `${name} failed in '${path}': ${JSON.stringify(failed.data.error)}`);
  return parseAnswer(name, schema, value, path);
}

const Failed = z.object({ error: z.union([z.string(), z.looseObject({})]) });

export function unusableAnswer(name: string, path: string, what: string): TreadleError {
  return new TreadleError(
    "service.failed",
    `${name}'s answer to '${path}' is not as its sources say: ${what}; see which version it is`,
  );
}
