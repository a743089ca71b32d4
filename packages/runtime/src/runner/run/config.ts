/** From files and flags to one validated configuration: defaults < file < `--set`. All problems are reported at once. */
import { readFile } from "node:fs/promises";
import { lowerFirst, nearestOf, TreadleError } from "@treadle/contracts";
import { parse as parseYaml, YAMLParseError } from "yaml";
import { z } from "zod";

/** `a.b=1` for each override; the right side is read as YAML, so numbers, booleans and lists need no quoting. */
export function applyOverrides(values: unknown, overrides: readonly string[]): unknown {
  const result: Record<string, unknown> = isRecord(values) ? structuredClone(values) : {};
  for (const override of overrides) {
    const at = override.indexOf("=");
    if (at < 1) {
      throw new TreadleError("config.invalid", `--set '${override}' is not of the form key.path=value`);
    }
    const path = override.slice(0, at).split(".");
    let node = result;
    for (const key of path.slice(0, -1)) {
      const next = Object.hasOwn(node, key) ? node[key] : undefined;
      if (isRecord(next)) node = next;
      else {
        const fresh: Record<string, unknown> = {};
        node[key] = fresh;
        node = fresh;
      }
    }
    node[path.at(-1) as string] = readYaml(override.slice(at + 1), `--set ${override}`);
  }
  return result;
}

export async function readConfigFile(path: string): Promise<unknown> {
  let text: string;
  try {
    text = await readFile(path, "utf8");
  } catch (cause) {
    throw new TreadleError("config.unreadable", `configuration file '${path}' cannot be read; give an existing file`, {
      cause,
    });
  }
  return readYaml(text, path) ?? {};
}

function readYaml(text: string, source: string): unknown {
  try {
    return parseYaml(text, { maxAliasCount: 100 });
  } catch (cause) {
    const where = cause instanceof YAMLParseError && cause.linePos ? ` at line ${cause.linePos[0].line}` : "";
    throw new TreadleError("config.unreadable", `'${source}' is not valid YAML${where}: ${(cause as Error).message}`);
  }
}

/** Validates; a failure lists every problem with its path, its value and, for unknown keys, the nearest known one. */
export function validateConfig<T>(schema: z.ZodType<T>, values: unknown): T {
  const parsed = schema.safeParse(values);
  if (parsed.success) return parsed.data;
  const problems = parsed.error.issues.flatMap((issue) => describeIssue(issue, schema, values));
  throw new TreadleError(
    "config.invalid",
    `the configuration has ${problems.length} problem(s):\n  ${problems.join("\n  ")}`,
    {
      details: { problems },
    },
  );
}

function describeIssue(issue: z.core.$ZodIssue, schema: z.ZodType, values: unknown): string[] {
  const path = issue.path.map(String);
  if (issue.code === "unrecognized_keys") {
    const known = knownKeys(schema, path, values);
    return issue.keys.map((key) => {
      const nearest = nearestOf(key, known);
      const remedy = nearest ? `did you mean '${[...path, nearest].join(".")}'?` : `known keys: ${known.join(", ")}`;
      return `${[...path, key].join(".")}: unknown key; ${remedy}`;
    });
  }
  const named = issue.code === "invalid_union" ? namedOptions(schema, path) : [];
  if (named.length > 0) {
    const value = valueAt(values, path);
    const nearest = typeof value === "string" ? nearestOf(value, named) : undefined;
    const meant = nearest === undefined ? "" : `, did you mean '${nearest}'?`;
    return [`${path.join(".")}: ${show(value)} is not one of ${named.map((name) => `'${name}'`).join(", ")}${meant}`];
  }
  if (issue.code === "invalid_union") {
    // The only one that takes such a value, as a section where a number may stand, too, says what in it is wrong.
    const [taking, ...others] = issue.errors.filter((branch) => branch.every((inner) => inner.path.length > 0));
    if (taking && others.length === 0)
      return taking.flatMap((inner) =>
        describeIssue({ ...inner, path: [...issue.path, ...inner.path] }, schema, values),
      );
    const allowed = allowedBy(issue).map((each, at) => (at === 0 ? each : each.replace(/^invalid input: /, "")));
    return [`${path.join(".")}: ${[...new Set(allowed)].join(", or ")}; got ${show(valueAt(values, path))}`];
  }
  return [`${path.join(".") || "(root)"}: ${lowerFirst(issue.message)}; got ${show(valueAt(values, path))}`];
}

/** Of a union within a union, too. */
function allowedBy(issue: z.core.$ZodIssue): string[] {
  if (issue.code !== "invalid_union") return [lowerFirst(issue.message)];
  return issue.errors.flatMap((branch) => branch.flatMap(allowedBy));
}

function knownKeys(schema: z.ZodType, path: readonly string[], values: unknown): string[] {
  const found = schemaAt(schema, path);
  const object =
    found instanceof z.ZodDiscriminatedUnion
      ? memberOf(found, valueAt(values, path))
      : found instanceof z.ZodUnion
        ? found.options.find((option) => unwrap(option) instanceof z.ZodObject)
        : found;
  return object instanceof z.ZodObject ? Object.keys(object.shape) : [];
}

/** The one that the value says it is, such as `algorithm` by its `name`. */
function memberOf(union: z.ZodDiscriminatedUnion, value: unknown): unknown {
  const { options, discriminator } = union.def;
  const name = valueAt(value, [discriminator]);
  return options.find((option) => option instanceof z.ZodObject && namesOf(option, discriminator).includes(name));
}

/** With undefined for the one that needs no name. */
const namesOf = (option: z.ZodObject, key: string): readonly unknown[] => {
  const field: unknown = option.shape[key];
  const named = unwrap(field);
  const names = named instanceof z.ZodLiteral ? [...named.values] : [];
  return field instanceof z.ZodOptional ? [...names, undefined] : names;
};

/** What may stand in the key that tells the members of a union apart, such as `algorithm.name`. */
function namedOptions(schema: z.ZodType, path: readonly string[]): string[] {
  const key = path.at(-1);
  const union = schemaAt(schema, path.slice(0, -1));
  if (!(union instanceof z.ZodDiscriminatedUnion) || key !== union.def.discriminator) return [];
  return union.def.options
    .flatMap((option) => (option instanceof z.ZodObject ? namesOf(option, key) : []))
    .flatMap((name) => (name === undefined ? [] : [String(name)]));
}

/** The schema of the key at `path`, without its defaults; undefined where there is no such key. */
function schemaAt(schema: z.ZodType, path: readonly string[]): unknown {
  return path.reduce<unknown>((current, key) => unwrap(schemaOf(current, key)), unwrap(schema));
}

/** `key`: of an object or record, or an index of an array. */
function schemaOf(schema: unknown, key: string): unknown {
  if (schema instanceof z.ZodObject) return schema.shape[key];
  if (schema instanceof z.ZodArray) return schema.element;
  return schema instanceof z.ZodRecord ? schema.valueType : undefined;
}

/** The paths of all keys that hold no further ones of the schema's own, as `cluster.links.bind`. */
export function settingsOf(schema: z.ZodType): string[] {
  const below = (at: unknown, path: readonly string[]): string[] => {
    const own = unwrap(at);
    if (!(own instanceof z.ZodObject)) return [path.join(".")];
    return Object.entries(own.shape).flatMap(([key, inner]) => below(inner, [...path, key]));
  };
  return below(schema, []);
}

function unwrap(schema: unknown): unknown {
  let current = schema;
  while (current instanceof z.ZodDefault || current instanceof z.ZodPrefault || current instanceof z.ZodOptional) {
    current = current.def.innerType;
  }
  return current;
}

export function valueAt(values: unknown, path: readonly string[]): unknown {
  let node = values;
  for (const key of path)
    node = isRecord(node) || Array.isArray(node) ? (node as Record<string, unknown>)[key] : undefined;
  return node;
}

const show = (value: unknown): string =>
  value === undefined
    ? "nothing"
    : `'${typeof value === "string" || typeof value === "number" ? value : JSON.stringify(value)}'`;

const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);
