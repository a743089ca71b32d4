import { readFile } from "node:fs/promises";
import { expect, test, vi } from "vitest";
import { benchEmbedded } from "../src/embedded.ts";
import type { BenchRow } from "../src/row.ts";

const operations = ["generation", "scoring", "training"];

test("without PyTorch its own times have no ratio, and the committed table is the README's", async () => {
  vi.stubEnv("TREADLE_PYTHON", "/nonexistent/python");
  const rows: BenchRow[] = [];
  for await (const row of benchEmbedded(1)) rows.push(row);
  vi.unstubAllEnvs();
  const own = rows.slice(0, 6);
  const committed = rows.slice(6, 12);
  const packed = rows.slice(12);
  for (const { value, ...rest } of own) {
    expect(value).toBeGreaterThan(0);
    expect(rest).toMatchObject({ baseline: null, against: null, ratio: null });
    expect(rest.ratioAtMost).toBeUndefined();
  }
  expect(packed.map(({ name, unit }) => [name.split(",")[0], unit])).toEqual([
    ["training", "tokens/s"],
    ["scoring", "tokens/s"],
  ]);
  for (const { value, baseline } of packed) expect(value).toBeGreaterThan(baseline as number);
  expect(committed.map(({ name }) => name)).toEqual(own.map(({ name }) => `${name}, committed`));
  const readme = await readFile(new URL("../../engines/README.md", import.meta.url), "utf8");
  const lines = [...readme.matchAll(/^\| (\w+), .*?\| ([\d.]+) ms *\| ([\d.]+) ms *\| ([\d.]+) *\|$/gm)];
  expect(lines.map(([, operation]) => operation)).toEqual([...operations, ...operations]);
  for (const [index, [, operation, value, baseline, ratio]] of lines.entries()) {
    const row = committed[index]!;
    expect(row).toMatchObject({ value: Number(value), baseline: Number(baseline) });
    expect(row.name).toContain(operation);
    // The README rounds what was measured, not the quotient of what it rounded.
    expect(Math.abs(row.ratio! - Number(ratio))).toBeLessThan(0.015);
    expect(row.notMeasured).toContain("a 2-core Intel Xeon of 2.8 GHz with AVX-512");
  }
}, 240_000);
