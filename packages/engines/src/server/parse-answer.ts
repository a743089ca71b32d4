import { TreadleError } from "@treadle/contracts";
import { z } from "zod";

/** Throws `service.failed` for what a server's sources do not have it say. */
export function parseAnswer<T>(name: string, schema: z.ZodType<T>, value: unknown, path: string): T {
  const parsed = schema.safeParse(value);
  if (parsed.success) return parsed.data;
  throw unusableAnswer(name, path, z.prettifyError(parsed.error));
}

export function unusableAnswer(name: string, path: string, what: string): TreadleError {
  return new TreadleError(
    "service.failed",
    `${name}'s answer to '${path}' is not as its sources say: ${what}; see which version it is`,
  );
}
