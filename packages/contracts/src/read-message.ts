import { z } from "zod";
import { TreadleError } from "./errors.ts";

const maxProblems = 5;

/** Reads what another process sent. Throws `link.protocol` with the first paths that do not fit, and only that. */
export function readMessage<Schema extends z.ZodType>(schema: Schema, message: unknown): z.infer<Schema> {
  const parsed = schema.safeParse(message);
  if (parsed.success) return parsed.data;
  throw new TreadleError(
    "link.protocol",
    `a message is not well formed: ${problemsOf(parsed.error)}; both processes must run the same version`,
  );
}

/** The first of them, in a few lines. */
export function problemsOf(error: z.ZodError): string {
  return z.prettifyError(new z.ZodError(error.issues.slice(0, maxProblems))).slice(0, 1000);
}
