/** How numbers are written for a person, in a terminal and on a page alike. */

/** `7.3 s`, `1m 42s`, `2h 05m` */
export function formatSeconds(seconds: number): string {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 0.1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(2)} s`;
  if (seconds < 59.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)}m ${pad(whole % 60)}s`;
  return `${Math.floor(whole / 3600)}h ${pad(Math.floor((whole % 3600) / 60))}m`;
}

/** Whole seconds, for clocks that tick: `4s`, `1m 04s`, `2h 05m` */
export function formatClock(seconds: number): string {
  return seconds < 59.5 ? `${Math.round(seconds)}s` : formatSeconds(Math.round(seconds));
}

export const plural = (count: number, noun: string): string => `${count} ${noun}${count === 1 ? "" : "s"}`;

const pad = (value: number) => String(value).padStart(2, "0");

/** A count or rate with three significant digits: `842`, `12.3 k`, `1.05 M` */
export function formatCount(value: number): string {
  if (!Number.isFinite(value)) return "–";
  const scale = Math.abs(value) >= 999_500 ? { by: 1e6, unit: " M" } : { by: 1e3, unit: " k" };
  if (Math.abs(value) < 999.5) return Number.isInteger(value) ? String(value) : significant(value);
  return `${significant(value / scale.by)}${scale.unit}`;
}

/** Three significant digits without an exponent where that is readable. */
export function significant(value: number): string {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "-∞";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(1);
  if (size >= 100) return value.toFixed(0);
  return size >= 10 ? value.toFixed(1) : size >= 0.1 ? value.toFixed(2) : value.toFixed(3);
}

export const formatPercent = (share: number, digits = 1): string => `${(share * 100).toFixed(digits)} %`;

/** `09:12:07` in local time */
export function formatTime(atMs: number): string {
  const date = new Date(atMs);
  return `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
}

/** `cpu:0 cpu:1 cpu:2` → `cpu:0-2`; without any, `none` */
export function deviceRange(devices: readonly string[]): string {
  if (devices.length === 0) return "none";
  const parts: string[] = [];
  for (let i = 0; i < devices.length; ) {
    const [, prefix, number] = /^(.*?)(\d+)$/.exec(devices[i]!) ?? [];
    let length = 1;
    while (prefix !== undefined && devices[i + length] === `${prefix}${Number(number) + length}`) length++;
    parts.push(length > 1 ? `${devices[i]}-${Number(number) + length - 1}` : devices[i]!);
    i += length;
  }
  return parts.join(" ");
}
