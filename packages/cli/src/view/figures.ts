/** Measured figures as lines. */
import type { BenchRow } from "@treadle/bench";
import pc from "picocolors";
import { significant } from "./text.ts";

export type Figure = {
  readonly group: string;
  readonly name: string;
  /** null when it could not be measured here */
  readonly value: number | null;
  readonly unit: string;
  /** the same work done another way, in the same unit */
  readonly baseline: number | null;
  readonly against: string | null;
  /** value / baseline */
  readonly ratio: number | null;
  /** what the ratio should be */
  readonly target: string | null;
  readonly isMet: boolean | null;
  readonly notMeasured: string;
};

export function toFigure(group: string, { ratioAtMost, ratioAtLeast, ...figure }: BenchRow): Figure {
  const { ratio } = figure;
  const target = targetOf(ratioAtLeast, ratioAtMost);
  const isMet =
    ratio === null || target === null ? null : ratio <= (ratioAtMost ?? Infinity) && ratio >= (ratioAtLeast ?? 0);
  return { group, ...figure, target, isMet };
}

function targetOf(atLeast: number | undefined, atMost: number | undefined): string | null {
  if (atLeast === undefined) return atMost === undefined ? null : `at most ${atMost}×`;
  return atMost === undefined ? `at least ${atLeast}×` : `from ${atLeast}× to ${atMost}×`;
}

/** Thousands apart, so that six digits read well. */
function amount(value: number): string {
  return Math.abs(value) >= 10_000
    ? Math.round(value).toLocaleString("en-US").replaceAll(",", " ")
    : significant(value);
}

/** The figure, then what it is compared with, then what it says nothing about. */
export function renderFigure(figure: Figure, colour: boolean): string {
  const paint = pc.createColors(colour);
  const { name, value, unit, baseline, against, ratio, target, isMet, notMeasured } = figure;
  const lines = [
    `  ${name}: ${value === null ? paint.yellow("not measured") : paint.bold(`${amount(value)} ${unit}`)}`,
  ];
  if (baseline !== null && ratio !== null) {
    const verdict = isMet === null ? "" : isMet ? paint.green(" (as promised)") : paint.red(" (missed)");
    const goal = target === null ? "" : `, ${target} wanted${verdict}`;
    lines.push(`      ${significant(ratio)}× of ${amount(baseline)} ${unit}${against ? `, ${against}` : ""}${goal}`);
  } else if (against !== null) lines.push(`      nothing to compare with: ${against}`);
  if (notMeasured) lines.push(paint.dim(`      not measured: ${notMeasured}`));
  return lines.join("\n");
}
