/** Plans as one self-contained page: the best of each mode as lanes of devices over the time of one step, on one scale. */
import type { PlannedMode, TimelineSegment } from "@treadle/planner";
import { colourSlots } from "../view/colours.ts";
import { formatPercent, formatSeconds, plural } from "../view/format.ts";
import { escapeHtml } from "./html.ts";
import {
  componentsOf,
  describeDevices,
  experience,
  helpOf,
  type PlannedCase,
  pictureWords,
  type RefusedCase,
  standing,
  weightWords,
} from "./plan-words.ts";
import { reportPage } from "./report-page.ts";

const labelWidth = 190;
const plotWidth = 920;
const laneHeight = 26;
const mostLanes = 40;

/** The first one is planned. */
export function planPage(workflow: string, cases: readonly [PlannedCase, ...(PlannedCase | RefusedCase)[]]): string {
  const [first] = cases;
  const { predicted, alternatives } = first.found;
  const [best, second] = alternatives;
  const least = Math.min(...alternatives.map(({ stepSeconds }) => stepSeconds));
  return reportPage({
    title: `plan of ${workflow}`,
    heading: `plan of ${workflow}`,
    facts: [describeDevices(first.devices), `batch ${first.batch}`],
    tiles: [
      { name: "chosen mode", value: best!.mode, note: `predicted ${formatSeconds(predicted.stepSeconds)} a step` },
      {
        name: "next best mode",
        value: second?.mode ?? "–",
        note:
          second === undefined ? "why there is no other is told below" : `predicted ${times(second, best!)} as long`,
      },
      {
        name: "overlaps nothing",
        value: formatSeconds(predicted.serialSeconds),
        note: "of each step, such as publishing weights",
      },
      {
        name: "no plan takes less than",
        value: formatSeconds(first.found.boundSeconds),
        note:
          first.found.boundSeconds < least * (1 - 1e-6)
            ? "proven of what is searched"
            : "proven: the best of what is searched",
      },
    ],
    body: `<style>${style}</style>\n${cases.map((one) => ("refused" in one ? refusal(one) : section(one))).join("\n")}`,
  });
}

const times = (mode: PlannedMode, best: PlannedMode): string =>
  `${(mode.stepSeconds / best.stepSeconds).toFixed(2)} times`;

function refusal({ title, devices, batch, refused }: RefusedCase): string {
  return `<h2>${escapeHtml(title)}: ${escapeHtml(describeDevices(devices))}, batch ${batch}</h2>
<p>no plan: ${escapeHtml(refused.message)}</p>`;
}

function section({ title, devices, batch, found, weights }: PlannedCase): string {
  const { alternatives, missing, predicted, explanation } = found;
  const longest = Math.max(...alternatives.map((alternative) => alternative.timeline.seconds));
  const names = componentsOf(alternatives[0]!.timeline).flatMap((name) => name.split("+"));
  const slots = colourSlots(names);
  const colourOf = (component: string): string => `var(--c${slots.get(component.split("+")[0]!) ?? 0})`;
  const legend = names.map((name) => `<span><i style="background:${colourOf(name)}"></i>${escapeHtml(name)}</span>`);
  const figures = alternatives.map((alternative) => {
    const told = [...pictureWords(alternative), ...experience(alternative, alternatives), ...alternative.limits];
    const limits = told.map((limit) => `<li>${escapeHtml(limit)}</li>`).join("");
    const note = standing(alternative, alternatives);
    return `<figure class="plan"><figcaption><b>${alternative.mode}</b><span>${formatSeconds(alternative.stepSeconds)} a step, ${note}</span></figcaption>
${drawing(alternative, longest, colourOf)}
<ul>${limits}</ul></figure>`;
  });
  const { helpful, limits: helpLimits } = helpOf(found);
  const rows = helpful.map(
    ({ components, devices: count, savedSeconds }) =>
      `<tr><td>${plural(count, "more device")} for ${escapeHtml(components.join(", "))}</td><td>${formatSeconds(savedSeconds)} less</td><td>${formatPercent(savedSeconds / predicted.stepSeconds)}</td></tr>`,
  );
  const placed = Object.entries(alternatives[0]!.placement).map(
    ([name, set]) =>
      `<tr><td>${escapeHtml(name)}</td><td>${escapeHtml(set)}</td><td>${escapeHtml(chunkOf(alternatives[0]!, name))}</td></tr>`,
  );
  const ways = weights.map(weightWords).map(({ head, reasons }) => {
    return `<li>${escapeHtml(head)}<ul>${reasons.map((reason) => `<li>${escapeHtml(reason)}</li>`).join("")}</ul></li>`;
  });
  return `<h2>${escapeHtml(title)}: ${escapeHtml(describeDevices(devices))}, batch ${batch}</h2>
<p class="legend">${legend.join("")}<span><i class="swap"></i>swap</span><span><i class="serial"></i>overlaps nothing</span></p>
${figures.join("\n")}
${missing.map(({ mode, why }) => `<p><b>${mode}</b>: ${escapeHtml(why)}</p>`).join("\n")}
<h2>Where everything runs</h2>
<table><tr><th>component</th><th>devices</th><th>at a time</th></tr>${placed.join("")}</table>
${ways.length > 0 ? `<h2>How weights travel</h2>\n<ul>${ways.join("")}</ul>` : ""}
<h2>What would help</h2>
${rows.length > 0 ? `<table><tr><th>change</th><th>a step takes</th><th>share of it</th></tr>${rows.join("")}</table>` : ""}
${helpLimits.map((limit) => `<p>${escapeHtml(limit)}</p>`).join("")}
<details><summary>Why</summary><ul>${explanation.map((line) => `<li>${escapeHtml(line)}</li>`).join("")}</ul></details>`;
}

/** What a component handles at a time, as its node of the schedule has it. */
function chunkOf({ schedule }: PlannedMode, component: string): string {
  const find = (part: PlannedMode["schedule"]): number | undefined => {
    if (part.op === "node") return part.node.split("+").includes(component) ? part.items : undefined;
    for (const inner of "stages" in part ? part.stages : [part.first, part.second]) {
      const items = find(inner);
      if (items !== undefined) return items;
    }
    return undefined;
  };
  return `${find(schedule) ?? "–"} items of ${schedule.items}`;
}

function drawing({ timeline }: PlannedMode, longest: number, colourOf: (component: string) => string): string {
  const lanes = timeline.lanes.slice(0, mostLanes);
  const hidden = timeline.lanes.length - lanes.length;
  const height = lanes.length * laneHeight + 24;
  const x = (seconds: number): number => labelWidth + (seconds / longest) * plotWidth;
  const rows = lanes.map((lane, i) => {
    const top = i * laneHeight;
    const label = lane.label.length > 24 ? `${lane.label.slice(0, 23)}…` : lane.label;
    return `<g><title>${escapeHtml(lane.label)}</title><text class="tick" x="${labelWidth - 8}" y="${top + 17}" text-anchor="end">${escapeHtml(label)}</text></g>
<rect class="lane" x="${labelWidth}" y="${top + 3}" width="${plotWidth}" height="${laneHeight - 6}"/>
${lane.segments.map((segment) => bar(segment, x, top, colourOf)).join("")}`;
  });
  const ticks = Array.from({ length: 6 }, (_, i) => (longest * i) / 5).map(
    (seconds) =>
      `<line class="grid" x1="${x(seconds)}" x2="${x(seconds)}" y1="0" y2="${height - 22}"/><text class="tick" x="${x(seconds)}" y="${height - 7}" text-anchor="middle">${formatSeconds(seconds)}</text>`,
  );
  const note = hidden > 0 ? `<p>and ${plural(hidden, "more lane")}</p>` : "";
  return `<svg viewBox="0 0 ${labelWidth + plotWidth + 30} ${height}" role="img">${rows.join("")}${ticks.join("")}</svg>${note}`;
}

function bar(
  { component, kind, startSeconds, endSeconds, chunks, busyShare }: TimelineSegment,
  x: (seconds: number) => number,
  top: number,
  colourOf: (component: string) => string,
): string {
  const width = Math.max(0.4, x(endSeconds) - x(startSeconds) - 0.3);
  const seconds = formatSeconds(endSeconds - startSeconds);
  const what =
    kind === "swap" ? `swap of ${component}` : kind === "serial" ? `${component}, overlapping nothing` : component;
  const many = chunks > 1 ? `, ${chunks} chunks, busy ${formatPercent(busyShare, 0)}` : "";
  const fill =
    kind === "swap" ? "" : ` fill="${colourOf(component)}" fill-opacity="${(0.25 + 0.75 * busyShare).toFixed(2)}"`;
  const words = width > component.length * 7.5 + 10 && kind === "run" ? component : "";
  const label =
    words === ""
      ? ""
      : `<text class="name" x="${(x(startSeconds) + 5).toFixed(1)}" y="${top + 17}">${escapeHtml(words)}</text>`;
  return `<g><title>${escapeHtml(`${what}: ${seconds}, from ${formatSeconds(startSeconds)}${many}`)}</title><rect class="${kind}" x="${x(startSeconds).toFixed(1)}" y="${top + 3}" width="${width.toFixed(1)}" height="${laneHeight - 6}"${fill}/>${label}</g>`;
}

const style = `
.plan { margin-bottom: 12px; } .plan ul { margin: 6px 0 8px; padding-left: 20px; color: var(--dim); font-size: 13px; }
.plan figcaption b { font-size: 15px; } .lane { fill: var(--idle); } .run, .serial, .swap { stroke: none; }
rect.swap { fill: var(--lock-wait); } rect.serial { opacity: 0.55; } .name { fill: #ffffff; font-size: 11.5px; pointer-events: none; }
.legend i.swap { background: var(--lock-wait); } .legend i.serial { background: var(--dim); opacity: 0.55; }`;
