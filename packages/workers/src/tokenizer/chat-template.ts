/** Chat templates, rendered as `transformers` renders them. */
import { createRequire } from "node:module";

/** Takes long to load, and most processes have no template. */
const jinja = (): typeof import("@huggingface/jinja") => createRequire(import.meta.url)("@huggingface/jinja");

/** Throws for what is no template. */
export function parseTemplate(text: string): { render(variables: Record<string, unknown>): string } {
  const { Template } = jinja();
  const template = new Template(text);
  mendStrips(template.parsed);
  return { render: (variables) => template.render({ ...variables, ...strips }) };
}

/** What Jinja's `strip`, `lstrip` and `rstrip` do with an argument, which the library ignores: they strip these characters alone. */
const strips: Record<string, (text: string, characters: string) => string> = {
  treadle_strip: (text, characters) => stripEnd(stripStart(text, characters), characters),
  treadle_lstrip: stripStart,
  treadle_rstrip: stripEnd,
};

function stripStart(text: string, characters: string): string {
  const points = [...text];
  const from = points.findIndex((point) => !characters.includes(point));
  return from < 0 ? "" : points.slice(from).join("");
}

function stripEnd(text: string, characters: string): string {
  const points = [...text];
  return points.slice(0, points.findLastIndex((point) => !characters.includes(point)) + 1).join("");
}

type Node = { [key: string]: unknown };
const isNode = (value: unknown): value is Node => typeof value === "object" && value !== null;

/** `text.lstrip(characters)` becomes `treadle_lstrip(text, characters)`, in place. */
function mendStrips(node: unknown): void {
  if (!isNode(node)) return;
  for (const value of Object.values(node)) mendStrips(value);
  const { type, callee, args } = node;
  if (type !== "CallExpression" || !isNode(callee) || callee["type"] !== "MemberExpression" || !Array.isArray(args))
    return;
  const { property, object, computed } = callee;
  if (computed === true || !isNode(property) || args.length === 0) return;
  const name = `treadle_${String(property["value"])}`;
  if (!Object.hasOwn(strips, name)) return;
  property["value"] = name;
  node["callee"] = property;
  node["args"] = [object, ...args];
}
