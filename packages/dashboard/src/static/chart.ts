/** Charts as SVG text. Colours are CSS variables of the page, so both themes share one drawing. */
import { scaleLinear } from "d3-scale";
import { area, line, stack } from "d3-shape";
import { axisLabels } from "../view/axis.ts";
import { significant } from "../view/format.ts";
import { escapeHtml } from "./html.ts";

export type Series = { readonly name: string; readonly colour: string; readonly values: readonly number[] };

export type Chart = {
  readonly title: string;
  /** one x for every value of every series, ascending */
  readonly xs: readonly number[];
  readonly series: readonly Series[];
  readonly xName: string;
  readonly stacked?: boolean;
  /** a thin line under each series, where `values` are smoothed */
  readonly raw?: readonly (readonly number[])[];
  readonly yDomain?: readonly [number, number];
  readonly percent?: boolean;
  readonly unit?: string;
  readonly height?: number;
  /** false where the page has one for several charts */
  readonly legend?: boolean;
};

const width = 560;
const margin = { top: 8, right: 12, bottom: 24, left: 46 };

/** A figure with its title, legend and drawing; hovering is the page script's work, which finds its data beside it. */
export function renderChart(chart: Chart): string {
  const height = chart.height ?? 190;
  const { xs, series } = chart;
  const x = scaleLinear([xs[0] ?? 0, xs.at(-1) ?? 1], [margin.left, width - margin.right]);
  const [low, high] = chart.yDomain ?? domainOf(chart);
  const y = scaleLinear([low, high], [height - margin.bottom, margin.top]);
  if (!chart.yDomain) y.nice(5);
  const yTicks = y.ticks(4);
  const labels = axisLabels(yTicks, { percent: chart.percent });

  const grid = yTicks
    .map(
      (value, i) =>
        `<line class="grid" x1="${margin.left}" x2="${width - margin.right}" y1="${f(y(value))}" y2="${f(y(value))}"/>` +
        `<text class="tick" text-anchor="end" x="${margin.left - 6}" y="${f(y(value) + 3.5)}">${labels[i]}</text>`,
    )
    .join("");
  const xTicks = x
    .ticks(Math.min(6, Math.max(1, xs.length - 1)))
    .filter((value) => chart.xName !== "step" || Number.isInteger(value))
    .map(
      (value) =>
        `<text class="tick" text-anchor="middle" x="${f(x(value))}" y="${height - 8}">${significantTick(value)}</text>`,
    )
    .join("");
  const drawing = chart.stacked ? stackedPaths(chart, x, y) : linePaths(chart, x, y);
  const legend =
    series.length < 2 || chart.legend === false
      ? ""
      : series
          .map(({ name, colour }) => `<span><i style="background:${colour}"></i>${escapeHtml(name)}</span>`)
          .join("");
  const data = JSON.stringify({
    xs,
    xName: chart.xName,
    percent: chart.percent === true,
    unit: chart.unit ?? "",
    left: margin.left,
    right: width - margin.right,
    width,
    series: series.map(({ name, colour, values }) => ({ name, colour, values: values.map(rounded) })),
  });
  return `<figure>
<figcaption><b>${escapeHtml(chart.title)}</b><span class="legend">${legend}</span></figcaption>
<svg viewBox="0 0 ${width} ${height}" role="img" aria-label="${escapeHtml(chart.title)}">
${grid}${xTicks}<text class="tick" x="4" y="${height - 8}">${escapeHtml(chart.xName)}</text>
${drawing}
<line class="cross" y1="${margin.top}" y2="${height - margin.bottom}"/>
</svg>
<script type="application/json">${data.replaceAll("<", "\\u003c")}</script>
</figure>`;
}

type Scale = (value: number) => number;

function linePaths({ xs, series, raw }: Chart, x: Scale, y: Scale): string {
  const path = line<number>()
    .defined((value) => Number.isFinite(value))
    .x((_, index) => x(xs[index]!))
    .y((value) => y(value))
    .digits(1);
  return series
    .map(({ colour, values }, index) => {
      const thin = raw?.[index] ? `<path class="raw" stroke="${colour}" d="${path([...raw[index]!]) ?? ""}"/>` : "";
      const dots =
        values.length > 40
          ? ""
          : values
              .map((value, i) =>
                Number.isFinite(value)
                  ? `<circle r="2.4" fill="${colour}" cx="${f(x(xs[i]!))}" cy="${f(y(value))}"/>`
                  : "",
              )
              .join("");
      return `${thin}<path class="line" stroke="${colour}" d="${path([...values]) ?? ""}"/>${raw ? "" : dots}`;
    })
    .join("");
}

function stackedPaths({ xs, series }: Chart, x: Scale, y: Scale): string {
  const layers = stack<number, number>()
    .keys(series.map((_, index) => index))
    .value((position, key) => finite(series[key]!.values[position]))(xs.map((_, index) => index));
  const path = area<{ 0: number; 1: number; data: number }>()
    .x(({ data }) => x(xs[data]!))
    .y0((point) => y(point[0]))
    .y1((point) => y(point[1]))
    .digits(1);
  return layers
    .map((layer) => `<path class="area" fill="${series[layer.key]!.colour}" d="${path(layer) ?? ""}"/>`)
    .join("");
}

function domainOf({ series, stacked, raw }: Chart): [number, number] {
  if (stacked) {
    const totals = (series[0]?.values ?? []).map((_, i) =>
      series.reduce((sum, each) => sum + finite(each.values[i]), 0),
    );
    return [0, Math.max(1e-9, ...totals)];
  }
  let low = Number.POSITIVE_INFINITY;
  let high = Number.NEGATIVE_INFINITY;
  for (const values of [...series.map(({ values }) => values), ...(raw ?? [])]) {
    for (const value of values) {
      if (!Number.isFinite(value)) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  if (low > high) return [0, 1];
  return low === high
    ? [low - Math.max(1e-9, Math.abs(low) * 0.1), high + Math.max(1e-9, Math.abs(high) * 0.1)]
    : [low, high];
}

const finite = (value: number | undefined) => (value !== undefined && Number.isFinite(value) ? value : 0);
const rounded = (value: number) => (Number.isFinite(value) ? Number(value.toPrecision(5)) : null);
const f = (value: number) => value.toFixed(1);
const significantTick = (value: number) => (Number.isInteger(value) ? String(value) : significant(value));

/** Averages neighbours until at most `limit` points are left; values that are no numbers are left out of the means. */
export function thin(
  xs: readonly number[],
  values: readonly number[],
  limit: number,
): { xs: number[]; values: number[] } {
  const size = Math.max(1, Math.ceil(xs.length / limit));
  const result = { xs: [] as number[], values: [] as number[] };
  for (let from = 0; from < xs.length; from += size) {
    const part = values.slice(from, from + size).filter(Number.isFinite);
    result.xs.push(xs[Math.min(xs.length, from + size) - 1]!);
    result.values.push(part.length === 0 ? Number.NaN : part.reduce((sum, value) => sum + value, 0) / part.length);
  }
  return result;
}

/** A centred moving average over about a twentieth of the points. */
export function smooth(values: readonly number[]): number[] {
  const reach = Math.floor(values.length / 40);
  if (reach === 0) return [...values];
  return values.map((_, index) => {
    const part = values.slice(Math.max(0, index - reach), index + reach + 1).filter(Number.isFinite);
    return part.length === 0 ? Number.NaN : part.reduce((sum, value) => sum + value, 0) / part.length;
  });
}
