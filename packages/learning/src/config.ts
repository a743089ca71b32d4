import { nearestOf, TreadleError } from "@treadle/contracts";
import type { z } from "zod";

/**
 * Parses `value` with `schema`, or throws one `config.invalid` that names every wrong key with its path, its value and
 * what is allowed. `path` is where the value stands in the whole configuration, for example `algorithm`.
 */
export function parseConfig<T>(schema: z.ZodType<T>, value: unknown, path: string): T {
  const result = schema.safeParse(value);
  if (result.success) return result.data;
  const problems = result.error.issues.flatMap((issue) => describeIssue(issue, value, path, schema));
  throw new TreadleError("config.invalid", problems.join("; "), { details: { path, problems } });
}

/** Picks `value.name` from `known`, or throws a `config.invalid` that lists the names. */
export function parseName<const Name extends string>(known: readonly Name[], value: unknown, path: string): Name {
  const name = isRecord(value) ? value.name : undefined;
  const match = known.find((candidate) => candidate === name);
  if (match !== undefined) return match;
  const near = typeof name === "string" ? nearestOf(name, known) : undefined;
  throw new TreadleError(
    "config.invalid",
    `${path}.name is ${quote(name)}: allowed is one of ${known.map(quote).join(", ")}` +
      (near === undefined ? "" : `; did you mean '${near}'`),
    { details: { path: `${path}.name`, value: name, allowed: [...known] } },
  );
}

type Issue = z.core.$ZodIssue;

function describeIssue(issue: Issue, root: unknown, path: string, schema: z.ZodType): string[] {
  const where = [path, ...issue.path.map(String)].join(".");
  if (issue.code === "unrecognized_keys") {
    const known = knownKeys(schema, issue.path);
    return issue.keys.map((key) => {
      const near = nearestOf(key, known);
      const hint = near === undefined ? "" : `; did you mean '${near}'`;
      const allowed = known.length === 0 ? "" : `: allowed keys are ${known.map(quote).join(", ")}`;
      return `${where}.${key} is not a known key${allowed}${hint}`;
    });
  }
  return [`${where} is ${quote(valueAt(root, issue.path))}: allowed is ${allowedBy(issue)}`];
}

function allowedBy(issue: Issue): string {
  switch (issue.code) {
    case "invalid_type":
      return `a value of type ${issue.expected}`;
    case "too_small":
      return `${issue.origin === "array" ? "a length" : "a number"} ${issue.inclusive ? ">=" : ">"} ${issue.minimum}`;
    case "too_big":
      return `${issue.origin === "array" ? "a length" : "a number"} ${issue.inclusive ? "<=" : "<"} ${issue.maximum}`;
    case "invalid_value":
      return `one of ${issue.values.map(quote).join(", ")}`;
    case "invalid_union": {
      const options = (issue as { options?: unknown }).options;
      return Array.isArray(options) ? `one of ${options.map(quote).join(", ")}` : issue.message.toLowerCase();
    }
    default:
      return issue.message;
  }
}

/** Keys of the object schema at `path`; empty where the schema there is not a plain object. */
function knownKeys(schema: z.ZodType, path: readonly PropertyKey[]): string[] {
  let current: unknown = schema;
  for (const key of path) current = shapeOf(current)?.[String(key)];
  return Object.keys(shapeOf(current) ?? {});
}

function shapeOf(schema: unknown): Record<string, unknown> | undefined {
  if (!isRecord(schema)) return undefined;
  if (isRecord(schema.shape)) return schema.shape;
  const definition = schema.def;
  return isRecord(definition) ? shapeOf(definition.innerType) : undefined;
}

function valueAt(root: unknown, path: readonly PropertyKey[]): unknown {
  return path.reduce<unknown>((value, key) => (isRecord(value) ? value[String(key)] : undefined), root);
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null;
}

function quote(value: unknown): string {
  if (typeof value === "string" || typeof value === "number") return `'${value}'`;
  return `'${JSON.stringify(value) ?? String(value)}'`;
}
