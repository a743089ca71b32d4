/** Where everything runs, as a picture, with what a step takes of each component: predicted, and measured beside it. */
import type { Plan } from "@treadle/contracts";
import { html, nothing, svg, type TemplateResult } from "lit-html";
import { deviceRange, formatPercent, formatSeconds, plural } from "../view/format.ts";
import { measuredByStep, medianStep } from "../view/measured.ts";
import { api } from "./api.ts";
import { empty, named, tile } from "./parts.ts";
import type { RunStore } from "./run-store.ts";

const [labelWidth, cellWidth, laneHeight] = [120, 128, 30];
const maxDevices = 64;

export function planTab(store: RunStore): TemplateResult {
  const { facts } = store;
  if (facts === undefined) return empty("reading the plan");
  const { plan, prediction } = facts;
  if (plan === undefined) return empty("no plan yet", "it is made when the first component is called");
  const measured = measuredByStep(store.spans);
  const { channels } = plan.granularity;
  return html`${steps(prediction?.stepSeconds, medianStep(store.metrics))}<div class="grid">
    <section class="card"><header><h2>${plan.mode}</h2><span class="dim small">devices, and whose turn they are in; components in one lane take turns</span></header><div class="plan-svg">${picture(plan, store)}</div></section>
    <section class="card two-thirds"><header><h2>Components</h2><span class="dim small">seconds of a step: the median of measured ones${prediction ? ", and what the profile predicts" : ""}</span></header><div class="scroll-x"><table><thead><tr><th>component</th><th class="right">ranks</th><th>devices</th><th class="right">predicted</th><th class="right">computes</th><th class="right">waits</th></tr></thead><tbody>
      ${Object.entries(plan.components).map(([component, { ranks }]) => {
        const devices = [...new Set(ranks.flatMap((rank) => rank.devices))];
        const seconds = measured.get(component);
        return html`<tr><td>${named(component, store.slots)}</td><td class="right num">${ranks.length}</td><td class="mono">${deviceRange(devices)}</td><td class="right num dim">${shown(prediction?.components[component])}</td><td class="right num">${seconds ? formatSeconds(seconds.compute) : "–"}</td><td class="right num">${seconds ? formatSeconds(seconds.wait) : "–"}</td></tr>`;
      })}</tbody></table></div></section>
    <section class="card third"><header><h2>Granularity</h2></header><table><tbody><tr><td>by default</td><td class="right">${plan.granularity.default}</td></tr>${Object.entries(channels).map(([channel, items]) => html`<tr><td>channel ${channel}</td><td class="right">${items}</td></tr>`)}<tr><td>staleness at most</td><td class="right">${plan.maxStaleness}</td></tr></tbody></table></section>
    ${facts.graph === undefined ? nothing : html`<section class="card"><header><h2>What flows</h2><span class="dim small">in a step, as it was measured</span></header><div class="plan-svg"><img src=${api.flowPicture(store.runId)} alt="components and the channels between them"></div></section>`}
    <section class="card"><header><h2>Why this plan</h2></header>${plan.explanation.length === 0 ? empty("nothing was said") : html`<ul>${plan.explanation.map((line) => html`<li>${line}</li>`)}</ul>`}</section></div>`;
}

const shown = (seconds: number | undefined): string => (seconds === undefined ? "–" : formatSeconds(seconds));

/** What was predicted of a whole step, and how far that is off. */
function steps(predicted: number | undefined, measured: number | undefined): unknown {
  if (predicted === undefined && measured === undefined) return nothing;
  const off = predicted === undefined || measured === undefined ? undefined : predicted / measured - 1;
  const note =
    off === undefined
      ? ""
      : Math.abs(off) < 0.005
        ? "as measured"
        : `${formatPercent(Math.abs(off), 0)} too ${off > 0 ? "long" : "short"}`;
  return html`<div class="tiles">${tile("a step was predicted to take", shown(predicted), predicted === undefined ? html`<code>treadle profile</code> makes that known` : note)}
    ${tile("and takes", shown(measured), measured === undefined ? "" : "median of the last 20")}</div>`;
}

function picture(plan: Plan, store: RunStore): TemplateResult {
  const all = [
    ...new Set(Object.values(plan.components).flatMap(({ ranks }) => ranks.flatMap(({ devices }) => devices))),
  ];
  const devices = all.sort(new Intl.Collator("en", { numeric: true }).compare).slice(0, maxDevices);
  const users = devices.map((device) =>
    Object.entries(plan.components).filter(([, { ranks }]) => ranks.some((rank) => rank.devices.includes(device))),
  );
  const most = Math.max(1, ...users.map((list) => list.length));
  const [width, height] = [labelWidth + most * cellWidth, devices.length * laneHeight + 4];
  return html`<svg width=${width} height=${height} viewBox="0 0 ${width} ${height}" role="img" aria-label="devices and their components">${devices.map(
    (device, i) => {
      const list = users[i] ?? [];
      const each = (most * cellWidth) / Math.max(1, list.length);
      return svg`<text x=${labelWidth - 10} y=${i * laneHeight + 19} text-anchor="end" font-size="12" fill="var(--dim)">${device}</text>
      ${list.map(([name, { ranks }], at) => {
        const rank = ranks.findIndex(({ devices: own }) => own.includes(device));
        return svg`<rect x=${labelWidth + at * each + 1} y=${i * laneHeight + 3} width=${each - 2} height=${laneHeight - 6} rx="4" fill="var(--c${(store.slots.get(name) ?? 7) % 8})"/><text x=${labelWidth + at * each + 9} y=${i * laneHeight + 19} font-size="12" fill="#fff">${name}/${rank}</text>`;
      })}`;
    },
  )}</svg>${all.length > maxDevices ? html`<div class="dim small">and ${plural(all.length - maxDevices, "more device")}</div>` : nothing}`;
}
