/** Labels of an axis, with as many digits as tell its ticks apart. */
import { significant } from "./format.ts";

export type AxisUnit = { readonly percent?: boolean | undefined; readonly unit?: string | undefined };

/** One text for each tick; different ticks have different texts. */
export function axisLabels(ticks: readonly number[], { percent = false, unit = "" }: AxisUnit = {}): string[] {
  const finite = ticks.filter(Number.isFinite);
  const scale = percent ? 100 : 1;
  const suffix = percent ? " %" : unit === "" ? "" : ` ${unit}`;
  const steps = finite.slice(1).map((tick, i) => Math.abs(tick - (finite[i] as number)) * scale);
  const least = Math.min(...steps.filter((step) => step > 0));
  if (!Number.isFinite(least))
    return ticks.map((tick) => `${percent ? Number((tick * 100).toPrecision(4)) : significant(tick)}${suffix}`);
  const largest = Math.max(...finite.map(Math.abs)) * scale;
  if (largest >= 1e6 || (largest < 1e-3 && largest > 0)) {
    const digits = Math.min(15, Math.max(0, Math.ceil(Math.log10(largest / least) - 1e-9)));
    return ticks.map((tick) =>
      tick === 0 ? `0${suffix}` : `${trimExponent((tick * scale).toExponential(digits))}${suffix}`,
    );
  }
  for (let digits = Math.max(0, Math.ceil(-Math.log10(least) - 1e-9)); ; digits++) {
    const labels = ticks.map((tick) => `${withoutMinusZero((tick * scale).toFixed(Math.min(20, digits)))}${suffix}`);
    if (digits >= 20 || new Set(labels).size === new Set(ticks).size) return labels;
  }
}

const withoutMinusZero = (text: string): string => (/^-0(?:\.0*)?$/.test(text) ? text.slice(1) : text);
const trimExponent = (text: string): string => text.replace(/\.?0+e/, "e").replace("e+", "e");
