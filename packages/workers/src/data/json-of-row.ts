/** What a row of a module's says as JSON, or what in it JSON cannot say. Pure. */

/** What JSON has not, and where: `at` is its path, as `level.0`; empty for the row itself. */
type NoJson = { readonly at: string; readonly value: unknown; readonly what: string };

/** The row as JSON, where a field that is undefined is none. */
export function jsonOf(row: unknown): string | NoJson {
  return firstWrong(row, [], []) ?? JSON.stringify(row);
}

/** JSON.stringify leaves some of these out, and writes others as something else. */
function firstWrong(value: unknown, path: readonly string[], within: readonly unknown[]): NoJson | undefined {
  const wrong = (what: string): NoJson => ({ at: path.join("."), value, what });
  if (value === null || typeof value === "string" || typeof value === "boolean") return undefined;
  if (typeof value === "number") return Number.isFinite(value) ? undefined : wrong("a number");
  if (typeof value !== "object") return wrong(value === undefined ? "a place of a list" : `a ${typeof value}`);
  if (within.includes(value)) return wrong("a cycle");
  if (within.length >= maxDepth) return wrong(`more than ${maxDepth} deep`);
  const inner = [...within, value];
  if (Array.isArray(value)) return firstOf(value.entries(), path, inner);
  const prototype: unknown = Object.getPrototypeOf(value);
  if (prototype !== null && Object.getPrototypeOf(prototype) !== null)
    return wrong(`an instance of ${value.constructor?.name}`);
  return firstOf(
    Object.entries(value).filter(([, field]) => field !== undefined),
    path,
    inner,
  );
}

const maxDepth = 256;

function firstOf(
  entries: Iterable<readonly [string | number, unknown]>,
  path: readonly string[],
  within: readonly unknown[],
): NoJson | undefined {
  for (const [key, value] of entries) {
    const wrong = firstWrong(value, [...path, String(key)], within);
    if (wrong) return wrong;
  }
  return undefined;
}
