/** What differs between the configurations of runs. Pure. */

export type Difference = { readonly path: string; readonly values: readonly (string | undefined)[] };

/** Every key whose value is not the same in all of them, by path; a key that a run lacks is undefined there. */
export function differences(configs: readonly unknown[]): Difference[] {
  const flat = configs.map((config) => {
    const values = new Map<string, string>();
    flatten(config, "", values);
    return values;
  });
  const paths = [...new Set(flat.flatMap((values) => [...values.keys()]))].sort();
  return paths
    .map((path) => ({ path, values: flat.map((values) => values.get(path)) }))
    .filter(({ values }) => new Set(values).size > 1);
}

function flatten(value: unknown, path: string, into: Map<string, string>): void {
  if (typeof value === "object" && value !== null && !Array.isArray(value) && Object.keys(value).length > 0) {
    for (const [key, inner] of Object.entries(value)) flatten(inner, path === "" ? key : `${path}.${key}`, into);
  } else if (value !== undefined) into.set(path, typeof value === "string" ? value : JSON.stringify(value));
}

export type Overlay = { readonly xs: readonly number[]; readonly values: readonly (readonly (number | null)[])[] };

/** One metric of several runs over the steps that any of them has. */
export function overlay(
  runs: readonly (readonly { readonly step: number; readonly [name: string]: number }[])[],
  name: string,
): Overlay {
  const bySteps = runs.map(
    (rows) =>
      new Map(rows.flatMap((row) => (Number.isFinite(row[name]) ? [[row.step, row[name] as number] as const] : []))),
  );
  const xs = [...new Set(bySteps.flatMap((steps) => [...steps.keys()]))].sort((a, b) => a - b);
  return { xs, values: bySteps.map((steps) => xs.map((step) => steps.get(step) ?? null)) };
}
