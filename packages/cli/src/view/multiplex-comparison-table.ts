/** The simulated comparison of runs that share devices, as lines of Markdown tables. */
import { median } from "@treadle/contracts";
import type { MultiplexComparison, MultiplexDraw } from "@treadle/simulation";
import { markdownTable, tableHeader, tableRow } from "./markdown-table.ts";
import { significant } from "./text.ts";

export const multiplexHeader: string = tableHeader([
  "runs",
  "devices",
  "placement",
  "staleness",
  "one by one",
  "one step off",
  "on parts",
  "whole steps",
  "leases",
  "interference",
  "rollouts beside",
  "always beside",
  "beside",
  "beside, known",
  "leases / bound",
  "leases / optimum",
  "bound of the first",
  "first / alone",
  "slowest / alone",
  "deaths",
]);

export function multiplexRow(comparison: MultiplexComparison): string {
  const { runs, devices, placement, maxStaleness, maxSlowdown, interference, draws } = comparison;
  const over = (of: (draw: MultiplexDraw) => number | undefined) => medianOf(draws.map(of));
  return tableRow([
    runs.join(" + "),
    String(devices),
    placement,
    String(maxStaleness),
    significant(median(draws.map(({ serial }) => serial))),
    over(({ serial, serialOffPolicy }) => serial / serialOffPolicy),
    over(({ serial, parts }) => parts && serial / parts),
    over(({ serial, steps }) => serial / steps),
    over(({ serial, leases }) => serial / leases),
    interference === null ? "–" : String(interference),
    over(({ serial, rolloutsBeside }) => rolloutsBeside && serial / rolloutsBeside),
    over(({ serial, alwaysBeside }) => alwaysBeside && serial / alwaysBeside),
    over(({ serial, beside }) => beside && serial / beside),
    over(({ serial, besideKnown }) => besideKnown && serial / besideKnown),
    over(({ bound, leases }) => leases / bound),
    over(({ optimum, leases }) => optimum && leases / optimum),
    maxSlowdown === null ? "–" : String(maxSlowdown),
    over(({ first }) => first),
    over(({ slowdown }) => slowdown),
    String(draws.reduce((sum, { deaths }) => sum + deaths, 0)),
  ]);
}

/** Over all draws of all settings. */
export function multiplexSummary(comparisons: readonly MultiplexComparison[]): string {
  const draws = comparisons.flatMap((each) => each.draws);
  const ratios: readonly (readonly [string, readonly (number | undefined)[]])[] = [
    ["one by one", draws.map(({ serial, leases }) => serial / leases)],
    ["whole steps", draws.map(({ steps, leases }) => steps / leases)],
    ["on parts", draws.map(({ parts, leases }) => parts && parts / leases)],
    [
      "the best of these",
      draws.map((draw) => Math.min(draw.serial, draw.steps, draw.parts ?? draw.serial) / draw.leases),
    ],
    ["the bound", draws.map(({ bound, leases }) => bound / leases)],
    ["the optimum", draws.map(({ optimum, leases }) => optimum && optimum / leases)],
  ];
  const best = ({ serial, parts = serial, rolloutsBeside = serial, alwaysBeside = serial, ...draw }: MultiplexDraw) =>
    Math.min(serial, draw.serialOffPolicy, draw.steps, draw.leases, parts, rolloutsBeside, alwaysBeside);
  const besides: readonly (readonly [string, readonly (number | undefined)[]])[] = [
    ["beside each other, over one by one", draws.map(({ serial, beside }) => beside && serial / beside)],
    ["over parts", draws.map(({ parts, beside }) => beside && parts && parts / beside)],
    ["over one step off", draws.map(({ serialOffPolicy, beside }) => beside && serialOffPolicy / beside)],
    ["over rollouts alone", draws.map(({ rolloutsBeside: plain, beside }) => beside && plain && plain / beside)],
    ["over whoever comes", draws.map(({ alwaysBeside: plain, beside }) => beside && plain && plain / beside)],
    ["over leases", draws.map(({ leases, beside }) => beside && leases / beside)],
    ["over the best of all other ways", draws.map((draw) => draw.beside && best(draw) / draw.beside)],
    [
      "beside each other, slowdowns known, over one by one",
      draws.map(({ serial, besideKnown: known }) => known && serial / known),
    ],
    ["over parts", draws.map(({ parts, besideKnown: known }) => known && parts && parts / known)],
    ["over whoever comes", draws.map(({ alwaysBeside: plain, besideKnown: known }) => known && plain && plain / known)],
    ["over the best of all other ways", draws.map((draw) => draw.besideKnown && best(draw) / draw.besideKnown)],
  ];
  const rows = [...ratios, ...besides].flatMap(([name, all]) => {
    const known = all.filter((each) => each !== undefined);
    if (known.length === 0) return [];
    const range = `${Math.min(...known).toFixed(2)} to ${Math.max(...known).toFixed(2)}`;
    return [[name, medianOf(known), range, `${known.filter((ratio) => ratio >= 0.98).length} of ${known.length}`]];
  });
  return markdownTable(["leases, over", "median", "range", "at least 0.98"], rows);
}

function medianOf(ratios: readonly (number | undefined)[]): string {
  const known = ratios.filter((each) => each !== undefined);
  return known.length === 0 ? "–" : median(known).toFixed(2);
}
