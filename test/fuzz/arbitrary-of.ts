/** Values that fit a schema, or nearly: what only a refinement knows is left to chance, as garbage would. */
import fc from "fast-check";
import type { z } from "zod";

type Def = {
  readonly type: string;
  readonly shape?: Readonly<Record<string, z.ZodType>>;
  readonly catchall?: z.ZodType;
  readonly element?: z.ZodType;
  readonly items?: readonly z.ZodType[];
  readonly options?: readonly z.ZodType[];
  readonly values?: readonly unknown[];
  readonly entries?: Readonly<Record<string, string | number>>;
  readonly innerType?: z.ZodType;
  readonly keyType?: z.ZodType;
  readonly valueType?: z.ZodType;
  readonly in?: z.ZodType;
  readonly getter?: () => z.ZodType;
};

const maxDepth = 5;
const junk = fc.oneof(fc.string(), fc.integer(), fc.constant(null));
/** what schemas of classes may ask for */
const instances = [
  new Uint8Array([1, 2, 3]),
  new Uint32Array([1, 2]),
  new Int32Array([1, 2]),
  new Float32Array([0.5]),
  new Float64Array([1, 0.5]),
];
/** what schemas of strings may ask for */
const names = [
  "a",
  "maker/0",
  "file:///a.ts",
  "1",
  "cpu:0",
  "treadle-a.1-",
  "2026-01-01T00:00:00Z",
  crypto.randomUUID(),
];
const strings = fc.oneof(fc.constantFrom(...names), fc.string({ maxLength: 12 }));

export function arbitraryOf(schema: z.ZodType, depth = 0): fc.Arbitrary<unknown> {
  const def = schema.def as unknown as Def;
  const inner = (of: z.ZodType | undefined) => (of === undefined ? junk : arbitraryOf(of, depth + 1));
  switch (def.type) {
    case "object": {
      const fields = Object.entries(def.shape ?? {});
      const required = fields.filter(([, field]) => !field.safeParse(undefined).success).map(([name]) => name);
      const record = Object.fromEntries(fields.map(([name, field]) => [name, inner(field)]));
      return fc.record(record, { requiredKeys: required, noNullPrototype: true });
    }
    case "array":
      return depth > maxDepth ? fc.constant([]) : fc.array(inner(def.element), { maxLength: 3 });
    case "tuple":
      return fc.tuple(...(def.items ?? []).map(inner));
    case "union":
      return fc.oneof(...(def.options ?? []).map(inner));
    case "record":
      return fc.dictionary(
        strings.filter((key) => key !== "__proto__"),
        inner(def.valueType),
        { maxKeys: 3, noNullPrototype: true },
      );
    case "literal":
      return fc.constantFrom(...(def.values ?? []));
    case "enum":
      return fc.constantFrom(...Object.values(def.entries ?? {}));
    case "optional":
    case "default":
    case "prefault":
    case "readonly":
      return inner(def.innerType);
    case "nullable":
      return fc.oneof(inner(def.innerType), fc.constant(null));
    case "lazy":
      return depth > maxDepth ? junk : inner(def.getter?.());
    case "pipe":
      return inner(def.in);
    case "string": {
      const fitting = names.filter((name) => schema.safeParse(name).success);
      if (fitting.length === 0 || fitting.length === names.length) return strings;
      return fc.oneof({ arbitrary: fc.constantFrom(...fitting), weight: 9 }, strings);
    }
    case "number": {
      const { minValue, maxValue, isInt } = schema as z.ZodNumber;
      const [min, max] = [Math.max(minValue ?? 0, -1e6), Math.min(maxValue ?? 1e6, 1e6)];
      return isInt
        ? fc.integer({ min: Math.floor(min) + 1, max: Math.max(max, min + 1) })
        : fc.double({ min, max, noNaN: true });
    }
    case "boolean":
      return fc.boolean();
    case "null":
      return fc.constant(null);
    case "custom": {
      const fitting = [...instances, 1].filter((value) => schema.safeParse(value).success);
      return fitting.length === 0 ? junk : fc.constantFrom(...fitting);
    }
    default:
      return junk;
  }
}
