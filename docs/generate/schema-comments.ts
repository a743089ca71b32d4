/**
 * What the comments of zod schemas say of their keys: a schema carries types and defaults to run time, its comments stay in
 * the source, where editors show them.
 */
import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import ts from "typescript";

/** Properties of the object literals that make a schema. */
type Literal = { readonly property: ts.PropertyAssignment | ts.ShorthandPropertyAssignment; readonly file: SchemaFile };

export class SchemaFile {
  readonly path: string;
  readonly #source: ts.SourceFile;
  readonly #imported = new Map<string, string>();

  constructor(path: string) {
    this.path = path;
    this.#source = ts.createSourceFile(path, readFileSync(path, "utf8"), ts.ScriptTarget.ES2022, true);
    for (const statement of this.#source.statements) {
      if (!ts.isImportDeclaration(statement) || !ts.isStringLiteral(statement.moduleSpecifier)) continue;
      const bindings = statement.importClause?.namedBindings;
      const from = statement.moduleSpecifier.text;
      const target = fileOf(path, from);
      if (!bindings || !ts.isNamedImports(bindings) || target === undefined) continue;
      for (const { name } of bindings.elements) this.#imported.set(name.text, target);
    }
  }

  /** By key path, as `cluster.nats.url`; a record's keys are `<name>`, an array's `<i>`. */
  commentsOf(schema: string): ReadonlyMap<string, string> {
    const comments = new Map<string, string>();
    const note = (literals: readonly Literal[], prefix: string): void => {
      for (const { property, file } of literals) {
        const path = `${prefix}${property.name.getText()}`;
        const comment = commentOf(property);
        if (comment !== undefined) comments.set(path, comment);
        const value = ts.isPropertyAssignment(property) ? property.initializer : property.name;
        note(file.#literalsIn(value), `${path}.`);
        note(file.#literalsOfEach("record", value), `${path}.<name>.`);
        note(file.#literalsOfEach("array", value), `${path}.<i>.`);
      }
    };
    note(this.#literalsNamed(schema), "");
    return comments;
  }

  #literalsNamed(name: string): Literal[] {
    for (const statement of this.#source.statements) {
      if (ts.isExportDeclaration(statement) && isOf(statement, name) && statement.moduleSpecifier) {
        const target = fileOf(this.path, (statement.moduleSpecifier as ts.StringLiteral).text);
        if (target !== undefined) return new SchemaFile(target).#literalsNamed(name);
      }
      if (!ts.isVariableStatement(statement)) continue;
      for (const declaration of statement.declarationList.declarations) {
        if (declaration.name.getText() === name && declaration.initializer)
          return this.#literalsIn(declaration.initializer);
      }
    }
    const from = this.#imported.get(name);
    return from === undefined ? [] : new SchemaFile(from).#literalsNamed(name);
  }

  /** `z.object({ … })`, `Base.extend({ … })`, `Base.extend(Other.shape)`, and each with `.optional()` and its like behind it. */
  #literalsIn(node: ts.Expression): Literal[] {
    if (ts.isIdentifier(node)) return this.#literalsNamed(node.text);
    if (ts.isAsExpression(node)) return this.#literalsIn(node.expression);
    if (ts.isObjectLiteralExpression(node)) return this.#literalsOf(node);
    if (!ts.isCallExpression(node) || !ts.isPropertyAccessExpression(node.expression)) return [];
    const { expression: on, name } = node.expression;
    const [argument] = node.arguments;
    // `z.union([A, B])`, `z.discriminatedUnion("kind", [A, B])`: of keys that several have, the first says what they mean.
    const options = node.arguments.find(ts.isArrayLiteralExpression);
    if (on.getText() === "z" && /^(union|discriminatedUnion)$/.test(name.text) && options !== undefined)
      return options.elements.flatMap((option) => this.#literalsIn(option)).reverse();
    const own =
      argument && ts.isObjectLiteralExpression(argument) && /^(strictObject|looseObject|object|extend)$/.test(name.text)
        ? this.#literalsOf(argument)
        : [];
    // `Base.extend(Other.shape)`
    const others =
      name.text === "extend" && argument && ts.isPropertyAccessExpression(argument) && argument.name.text === "shape"
        ? this.#literalsIn(argument.expression)
        : [];
    return on.getText() === "z" ? own : [...this.#literalsIn(on), ...others, ...own];
  }

  /** Its own, and those of what is spread into it, as `...common` or `...Other.shape`; its own count for more. */
  #literalsOf({ properties }: ts.ObjectLiteralExpression): Literal[] {
    return properties
      .flatMap((property): Literal[] => {
        if (ts.isPropertyAssignment(property) || ts.isShorthandPropertyAssignment(property))
          return [{ property, file: this }];
        if (!ts.isSpreadAssignment(property)) return [];
        const { expression } = property;
        return ts.isPropertyAccessExpression(expression) && expression.name.text === "shape"
          ? this.#literalsIn(expression.expression)
          : this.#literalsNamed(expression.getText());
      })
      .sort((a, b) => Number(properties.includes(a.property)) - Number(properties.includes(b.property)));
  }

  /** Of the values of `z.record(key, value)`, and of `z.array(value)`. */
  #literalsOfEach(of: "record" | "array", node: ts.Expression): Literal[] {
    if (!ts.isCallExpression(node) || !ts.isPropertyAccessExpression(node.expression)) return [];
    if (node.expression.expression.getText() !== "z") return this.#literalsOfEach(of, node.expression.expression);
    const value = node.expression.name.text === of ? node.arguments.at(-1) : undefined;
    return value ? this.#literalsIn(value) : [];
  }
}

const packages = fileURLToPath(new URL("../../packages", import.meta.url));

/** The source that is imported, where it is one of this repository. */
function fileOf(importer: string, specifier: string): string | undefined {
  if (specifier.startsWith(".")) return join(dirname(importer), specifier);
  const name = /^@treadle\/([a-z]+)$/.exec(specifier)?.[1];
  return name === undefined ? undefined : join(packages, name, "src/index.ts");
}

const isOf = ({ exportClause }: ts.ExportDeclaration, name: string): boolean =>
  exportClause !== undefined &&
  ts.isNamedExports(exportClause) &&
  exportClause.elements.some((element) => element.name.text === name);

function commentOf(node: ts.Node): string | undefined {
  const text = node.getFullText();
  const range = ts.getLeadingCommentRanges(text, 0)?.findLast(({ pos }) => text.startsWith("/**", pos));
  if (!range) return undefined;
  const body = text.slice(range.pos + 3, range.end - 2);
  return body
    .replace(/^\s*\*/gm, "")
    .replace(/\s+/g, " ")
    .trim();
}
