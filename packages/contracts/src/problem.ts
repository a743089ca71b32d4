import type { z } from "zod";
import { TreadleError } from "./errors.ts";

/** `nowMs` is handed in, so that solving stays pure; without it nothing is timed and no deadline is kept. */
export type SolveOptions = {
  readonly method?: string | undefined;
  /** stop after this long with the best answer so far and a proven bound, where the method can */
  readonly deadlineMs?: number | undefined;
  readonly nowMs?: (() => number) | undefined;
  /** of methods that draw random numbers */
  readonly seed?: number | undefined;
  /** other flags of one problem, by name, such as `order` */
  readonly flags?: Readonly<Record<string, string>> | undefined;
};

/** One planner as a plain problem: JSON in, JSON out. `solve` checks `input` and throws `problem.invalid`. */
export type Problem = {
  readonly schema: z.ZodType;
  /** the first one is the default */
  readonly methods: readonly string[];
  readonly solve: (input: unknown, options?: SolveOptions) => unknown;
};

/** Reads a problem's input. Throws `problem.invalid` with every offending path, its value, and what was allowed. */
export function readProblem<Schema extends z.ZodType>(schema: Schema, input: unknown): z.infer<Schema> {
  const parsed = schema.safeParse(input);
  if (parsed.success) return parsed.data;
  const problems = parsed.error.issues.flatMap((issue) => describe(issue, input));
  throw new TreadleError("problem.invalid", problems.map((p) => `${p.path}: ${p.message}`).join("; "), {
    details: { problems },
  });
}

export function unknownMethod(method: string, methods: readonly string[]): TreadleError {
  return new TreadleError(
    "problem.invalid",
    `method: '${method}' is not known; allowed are ${methods.map((m) => `'${m}'`).join(", ")}`,
    { details: { method, methods } },
  );
}

type Described = { readonly path: string; readonly message: string };

function describe(issue: z.core.$ZodIssue, input: unknown): Described[] {
  const path = writePath(issue.path);
  const value = writeValue(valueAt(input, issue.path));
  if (issue.code === "unrecognized_keys") {
    return issue.keys.map((key) => ({
      path: writePath([...issue.path, key]),
      message: "the key is not known here; remove it or check its spelling",
    }));
  }
  if (issue.code === "invalid_union" && issue.errors.length > 0) {
    // The branch that got furthest is the one that was meant.
    const depth = (branch: readonly z.core.$ZodIssue[]): number => Math.max(0, ...branch.map((i) => i.path.length));
    const deepest = Math.max(...issue.errors.map(depth));
    const meant = issue.errors.find((branch) => depth(branch) === deepest);
    if (deepest > 0 && meant)
      return meant.flatMap((inner) => describe({ ...inner, path: [...issue.path, ...inner.path] }, input));
    const allowed = [...new Set(issue.errors.flatMap((branch) => branch.map((i) => lowerFirst(i.message))))];
    return [{ path, message: `'${value}' is not allowed: ${allowed.join(", or ")}` }];
  }
  if (valueAt(input, issue.path) === undefined) return [{ path, message: `is missing: ${lowerFirst(issue.message)}` }];
  return [{ path, message: `'${value}' is not allowed: ${lowerFirst(issue.message)}` }];
}

function valueAt(input: unknown, path: readonly PropertyKey[]): unknown {
  let value = input;
  for (const key of path) {
    if (typeof value !== "object" || value === null) return undefined;
    value = (value as Record<PropertyKey, unknown>)[key];
  }
  return value;
}

function writeValue(value: unknown): string {
  // JSON has no word for Infinity and NaN.
  const isWritten = typeof value === "string" || typeof value === "number";
  const text = isWritten ? String(value) : (JSON.stringify(value) ?? String(value));
  return text.length > 60 ? `${text.slice(0, 57)}...` : text;
}

function writePath(path: readonly PropertyKey[]): string {
  if (path.length === 0) return "input";
  return path.map((key, i) => (typeof key === "number" ? `[${key}]` : `${i > 0 ? "." : ""}${String(key)}`)).join("");
}

/** As errors begin; what comes later, such as a key, stays as it is. */
export const lowerFirst = (text: string): string => text.charAt(0).toLowerCase() + text.slice(1);
