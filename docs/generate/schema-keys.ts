/** Tables of the keys of zod schemas: types and defaults from the schemas, meanings from their comments. */
import { fileURLToPath } from "node:url";
import { z } from "zod";
import { SchemaFile } from "./schema-comments.ts";
import { cell, code, table } from "./table.ts";

type Node = {
  readonly type?: string | string[];
  readonly properties?: Readonly<Record<string, Node>>;
  readonly additionalProperties?: Node | boolean;
  readonly items?: Node;
  readonly anyOf?: readonly Node[];
  readonly oneOf?: readonly Node[];
  readonly allOf?: readonly Node[];
  readonly enum?: readonly unknown[];
  readonly const?: unknown;
  readonly default?: unknown;
  readonly required?: readonly string[];
  readonly minimum?: number;
  readonly maximum?: number;
  readonly exclusiveMinimum?: number;
  readonly exclusiveMaximum?: number;
};

/** Of the packages. */
export const source = (path: string): string => fileURLToPath(new URL(`../../packages/${path}`, import.meta.url));

export function keysOf(schema: z.ZodType, path: string, name: string, base: z.ZodObject = z.object()): string {
  const comments = new SchemaFile(path).commentsOf(name);
  const own = leaves(jsonOf(schema), "", true).filter(({ key }) => !Object.hasOwn(base.shape, key.split(".")[0]!));
  return tableOf(own, comments);
}

export type Choice = { readonly key: string; readonly type: string; readonly table: string };

/** Of maps and lists whose values are sections of several types, a table for each type. */
export function choicesOf(schema: z.ZodType, path: string, name: string): Choice[] {
  const comments = new SchemaFile(path).commentsOf(name);
  const within = (node: Node, prefix: string): Choice[] =>
    leaves(node, prefix, true).flatMap(({ key, node: leaf }) => {
      const [each, value] = memberOf(leaf) ?? ["", undefined];
      return (value?.oneOf ?? []).flatMap((option) => {
        const at = `${key}.${each}`;
        const type = String(option.properties?.["type"]?.const);
        const own = leaves(option, `${at}.`, true).filter((one) => one.key !== `${at}.type`);
        return [{ key: at, type, table: tableOf(own, comments) }, ...within(option, `${at}.`)];
      });
    });
  return within(jsonOf(schema), "");
}

const jsonOf = (schema: z.ZodType): Node =>
  z.toJSONSchema(schema, { io: "input", unrepresentable: "any", reused: "inline" }) as Node;

function tableOf(own: readonly Leaf[], comments: ReadonlyMap<string, string>): string {
  const rows = own.map(({ key, node, required }) => [
    code(key),
    cell(typeOf(node)),
    required ?? (node.default === undefined ? "" : code(JSON.stringify(node.default))),
    cell(meaning(comments, key)),
  ]);
  return table(["key", "type", "default", "meaning"], rows);
}

/** A key without a comment means what its section's says. */
function meaning(comments: ReadonlyMap<string, string>, key: string): string {
  for (let path = key; path !== ""; path = path.slice(0, Math.max(0, path.lastIndexOf(".")))) {
    const comment = comments.get(path);
    if (comment !== undefined) return path === key ? comment : `of \`${path}\`: ${comment}`;
  }
  return "";
}

type Leaf = {
  readonly key: string;
  readonly node: Node;
  readonly required: "required" | "required in its section" | undefined;
};

/** A section is a row only where it may be left out and then means something else than its defaults. */
function leaves(node: Node, prefix: string, isPresent: boolean): Leaf[] {
  return Object.entries(node.properties ?? {}).flatMap(([name, inner]): Leaf[] => {
    const key = `${prefix}${name}`;
    const isNeeded = (node.required ?? []).includes(name);
    const own: Leaf = {
      key,
      node: inner,
      required: !isNeeded ? undefined : isPresent ? "required" : "required in its section",
    };
    if (inner.properties) {
      const isThere = inner.default !== undefined || (isNeeded && isPresent);
      return [...(isThere || isNeeded ? [] : [own]), ...leaves(inner, `${key}.`, isThere)];
    }
    const [each, value] = memberOf(inner) ?? ["", undefined];
    if (value?.properties) return [own, ...leaves(value, `${key}.${each}.`, true)];
    return [own];
  });
}

/** What a map or a list has, and how a key path names one. */
function memberOf({ additionalProperties, items }: Node): readonly [each: "<name>" | "<i>", value: Node] | undefined {
  if (typeof additionalProperties === "object") return ["<name>", additionalProperties];
  return items === undefined ? undefined : ["<i>", items];
}

function typeOf(node: Node): string {
  if (node.const !== undefined) return String(node.const);
  if (node.enum) return node.enum.join(", ");
  const choices = node.anyOf ?? node.oneOf;
  if (choices) return [...new Set(choices.map(typeOf))].join(" or ");
  if (node.allOf) return [...new Set(node.allOf.map(typeOf))].join(" and ");
  if (node.type === "array") return `list of ${typeOf(node.items ?? {})}`;
  if (node.type === "object") {
    return typeof node.additionalProperties === "object" ? `map to ${typeOf(node.additionalProperties)}` : "section";
  }
  if (node.type === "integer" || node.type === "number") return `${node.type}${bounds(node)}`;
  return typeof node.type === "string" ? node.type : "any";
}

function bounds({ minimum, maximum, exclusiveMinimum, exclusiveMaximum }: Node): string {
  const isSafe = (value: number) => Math.abs(value) < Number.MAX_SAFE_INTEGER;
  const parts = [
    ...(exclusiveMinimum !== undefined ? [`> ${exclusiveMinimum}`] : []),
    ...(minimum !== undefined && isSafe(minimum) ? [`≥ ${minimum}`] : []),
    ...(exclusiveMaximum !== undefined ? [`< ${exclusiveMaximum}`] : []),
    ...(maximum !== undefined && isSafe(maximum) ? [`≤ ${maximum}`] : []),
  ];
  return parts.length === 0 ? "" : ` ${parts.join(", ")}`;
}
