import { z } from "zod";
import { TreadleError } from "./errors.ts";

/** What each refusal was about, so that whoever sent it is told from whoever only passed the error on. */
const refused = new WeakMap<Error, unknown>();

const maxProblems = 5;

/** Reads what another process sent. Throws `link.protocol` with the first paths that do not fit, and only that. */
export function readMessage<Schema extends z.ZodType>(schema: Schema, message: unknown): z.infer<Schema> {
  const parsed = schema.safeParse(message);
  if (parsed.success) return parsed.data;
  const problems = z.prettifyError(new z.ZodError(parsed.error.issues.slice(0, maxProblems))).slice(0, 1000);
  const error = new TreadleError(
    "link.protocol",
    `a message is not well formed: ${problems}; both processes must run the same version`,
  );
  refused.set(error, message);
  throw error;
}

/** Whether `error` says that this very message is not well formed. */
export function isRefusalOf(error: unknown, message: unknown): boolean {
  return error instanceof Error && refused.has(error) && Object.is(refused.get(error), message);
}
