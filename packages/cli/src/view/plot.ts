/** Curves and bars in characters; each one cell wide. */
import type { CurvePoint } from "@treadle/dashboard/view";

const eighths = " ▁▂▃▄▅▆▇█";

/** One row of bars as high as the values, newest at the right; a flat curve is drawn at half height. */
export function sparkline(
  points: readonly CurvePoint[],
  columns: number,
  scale?: { readonly low: number; readonly high: number },
): string {
  if (points.length === 0 || columns <= 0) return "";
  const values = resample(points, Math.min(columns, points.length));
  const { low, high } = scale ?? range(values);
  return values.map((value) => eighths[high > low ? 1 + Math.round(((value - low) / (high - low)) * 7) : 4]).join("");
}

export type Plot = { readonly lines: readonly string[]; readonly low: number; readonly high: number };

/** A line in a raster of 2 × 4 dots a cell. Steps run along the full width; values from `low` at the bottom to `high`. */
export function dotPlot(points: readonly CurvePoint[], columns: number, rows: number): Plot {
  const width = columns * 2;
  const height = rows * 4;
  const cells = new Uint8Array(columns * rows);
  const values = points.length > width ? resample(points, width) : points.map(({ value }) => value);
  const { low, high } = range(values);
  const yOf = (value: number) =>
    high > low ? Math.round(((high - value) / (high - low)) * (height - 1)) : Math.floor(height / 2);
  const xOf = (index: number) => (values.length === 1 ? 0 : Math.round((index / (values.length - 1)) * (width - 1)));
  const set = (x: number, y: number) => {
    const index = (y >> 2) * columns + (x >> 1);
    cells[index] = (cells[index] ?? 0) | dots[y & 3]![x & 1]!;
  };
  for (let i = 0; i < values.length; i++) {
    const [x, y] = [xOf(i), yOf(values[i]!)];
    if (i === 0) set(x, y);
    else drawLine(xOf(i - 1), yOf(values[i - 1]!), x, y, set);
  }
  const lines = Array.from({ length: rows }, (_, row) =>
    String.fromCodePoint(...Array.from(cells.subarray(row * columns, (row + 1) * columns), (bits) => 0x2800 + bits)),
  );
  return { lines, low, high };
}

/** bit of the dot in row, column of a braille cell */
const dots = [
  [0x01, 0x08],
  [0x02, 0x10],
  [0x04, 0x20],
  [0x40, 0x80],
] as const;

function drawLine(x0: number, y0: number, x1: number, y1: number, set: (x: number, y: number) => void): void {
  const length = Math.max(1, Math.abs(x1 - x0), Math.abs(y1 - y0));
  for (let i = 0; i <= length; i++) {
    set(Math.round(x0 + ((x1 - x0) * i) / length), Math.round(y0 + ((y1 - y0) * i) / length));
  }
}

function range(values: readonly number[]): { low: number; high: number } {
  let low = Number.POSITIVE_INFINITY;
  let high = Number.NEGATIVE_INFINITY;
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  return { low, high };
}

/** Means over `count` equal stretches of the points. */
function resample(points: readonly CurvePoint[], count: number): number[] {
  return Array.from({ length: count }, (_, i) => {
    const from = Math.floor((i * points.length) / count);
    const to = Math.max(from + 1, Math.floor(((i + 1) * points.length) / count));
    let sum = 0;
    for (let j = from; j < to; j++) sum += points[j]!.value;
    return sum / (to - from);
  });
}

/** A bar of `columns` cells, filled to the eighth of a cell. */
export function bar(share: number, columns: number): { filled: string; rest: number } {
  const units = Math.round(Math.min(1, Math.max(0, share)) * columns * 8);
  const partial = units % 8 === 0 ? "" : "▏▎▍▌▋▊▉"[(units % 8) - 1]!;
  const filled = "█".repeat(Math.floor(units / 8)) + partial;
  return { filled, rest: columns - filled.length };
}

/** Splits `columns` cells among shares that add up to 1, so that the cells add up too (largest remainders first). */
export function apportion(shares: readonly number[], columns: number): number[] {
  const exact = shares.map((share) => Math.max(0, share) * columns);
  const cells = exact.map(Math.floor);
  const byRemainder = exact
    .map((value, index) => ({ index, remainder: value - Math.floor(value) }))
    .sort((a, b) => b.remainder - a.remainder || a.index - b.index);
  let left = columns - cells.reduce((sum, value) => sum + value, 0);
  for (const { index } of byRemainder) {
    if (left-- <= 0) break;
    cells[index] = cells[index]! + 1;
  }
  return cells;
}
