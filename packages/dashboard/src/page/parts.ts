/** Small pieces that several views are made of. */
import { html, nothing, svg, type TemplateResult } from "lit-html";
import type { RunPhase } from "../view/run-status.ts";
import type { ChartSpec } from "./chart.ts";
import { styleOf } from "./style-of.ts";

export const badge = (phase: RunPhase): TemplateResult => html`<span class="badge ${phase}">${phase}</span>`;

export const tile = (name: string, value: unknown, note: unknown = nothing): TemplateResult =>
  html`<div class="tile"><span>${name}</span><b>${value}</b><small>${note}</small></div>`;

export const chip = (slot: number): TemplateResult =>
  html`<i class="chip" data-style=${styleOf({ background: `var(--c${slot % 8})` })}></i>`;

export const named = (name: string, slots: ReadonlyMap<string, number>): TemplateResult =>
  html`<span class="named">${chip(slots.get(name) ?? 7)}<span>${name}</span></span>`;

export const empty = (...lines: unknown[]): TemplateResult =>
  html`<div class="empty">${lines.map((line) => html`<div>${line}</div>`)}</div>`;

export const table = (names: readonly string[], rows: readonly (readonly unknown[])[]): TemplateResult =>
  html`<div class="scroll-x"><table><thead><tr>${names.map((name) => html`<th>${name}</th>`)}</tr></thead><tbody>${rows.map((cells) => html`<tr>${cells.map((cell) => html`<td>${cell}</td>`)}</tr>`)}</tbody></table></div>`;

/** A chart with its title, and beside it what is under the cursor. */
export function chartCard(
  title: string,
  spec: ChartSpec,
  { size = "half", small = false, note = "" } = {},
): TemplateResult {
  const onread = function (this: unknown, text: string): void {
    const output = document.getElementById(`read-${title}`);
    if (output) output.textContent = text;
  };
  return html`<section class="card ${size}">
    <div class="chart-title"><b>${title}</b><span class="dim small">${note}</span><output id=${`read-${title}`} aria-live="off"></output></div>
    <t-chart class="chart ${small ? "small" : ""}" .spec=${spec} .onread=${onread}></t-chart>
    ${
      spec.series.length > 1
        ? html`<div class="legend">${spec.series.map(({ name, colour }) => html`<span><i class="chip" data-style=${styleOf({ background: `var(${colour})` })}></i>${name}</span>`)}</div>`
        : nothing
    }
  </section>`;
}

/** A curve without axes, as wide as a word. */
export function sparkline(values: readonly number[], width = 110, height = 26): TemplateResult {
  const known = values.filter(Number.isFinite);
  if (known.length < 2) return html`<span class="dim">–</span>`;
  const low = Math.min(...known);
  const span = Math.max(...known) - low || 1;
  const points = known.map(
    (value, i) =>
      `${((i / (known.length - 1)) * width).toFixed(1)},${(height - 3 - ((value - low) / span) * (height - 6)).toFixed(1)}`,
  );
  return html`<svg class="spark" width=${width} height=${height} viewBox="0 0 ${width} ${height}" aria-hidden="true">${svg`<polyline points=${points.join(" ")} fill="none" stroke="var(--accent)" stroke-width="1.6"/>`}</svg>`;
}

/** `3 minutes ago` */
export function ago(atMs: number | undefined, nowMs: number = Date.now()): string {
  if (atMs === undefined) return "–";
  const seconds = Math.max(0, (nowMs - atMs) / 1000);
  if (seconds < 5) return "now";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 129_600) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86_400)} days ago`;
}
