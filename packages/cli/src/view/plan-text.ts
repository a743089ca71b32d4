/** Plans on a terminal: lanes of devices over the time of one step, and what the best of each mode would take. */
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
} from "@treadle/dashboard";
import { colourSlots } from "@treadle/dashboard/view";
import type { PlanTimeline, TimelineSegment } from "@treadle/planner";
import pc from "picocolors";
import { fit, formatPercent, formatSeconds, padCells, plural, wrap } from "./text.ts";

export type PlanTextOptions = { readonly columns: number; readonly colour?: boolean };

const backgrounds = [pc.bgBlue, pc.bgYellow, pc.bgGreen, pc.bgMagenta, pc.bgRed, pc.bgCyan, pc.bgWhite] as const;
const mostLanes = 16;

/** `before` is what the case is compared with. */
export function renderPlan(
  { title, devices, batch, maxStaleness, found, searchMs, weights }: PlannedCase,
  before: PlannedCase | undefined,
  { columns, colour = pc.isColorSupported }: PlanTextOptions,
): string[] {
  const { predicted, alternatives, boundSeconds } = found;
  const [best] = alternatives;
  const bold = (text: string): string => (colour ? pc.bold(text) : text);
  const dim = (text: string): string => (colour ? pc.dim(text) : text);
  const text = (line: string, indent = "  "): string[] =>
    wrap(line, columns - indent.length, "  ").map((part) => `${indent}${part}`);
  const faster = before === undefined ? "" : `, ${ratio(before.found.predicted.stepSeconds / predicted.stepSeconds)}`;
  const staleness = maxStaleness > 0 ? `, up to ${maxStaleness + 1} steps at once` : "";
  const lines = [
    `${bold(title)}: ${best!.mode}, ${formatSeconds(predicted.stepSeconds)} a step${faster}`,
    dim(`  ${describeDevices(devices)}, batch ${batch}${staleness}; searched in ${formatSeconds(searchMs / 1000)}`),
    "",
    ...renderTimeline(best!.timeline, columns, colour).map((line) => `  ${line}`),
    ...pictureWords(best!)
      .flatMap((line) => text(line))
      .map(dim),
    "",
    ...Object.entries(best!.placement).map(([name, set]) => `  ${padCells(name, nameWidth(best!.placement))}  ${set}`),
  ];
  const { channels } = best!.plan.granularity;
  const chunks = Object.entries(channels).map(([channel, items]) => `'${channel}' ${items} at a time`);
  if (chunks.length > 0) lines.push(...text(`channels: ${chunks.join(", ")}; the others whole batches`));
  if (weights.length > 0) lines.push("", bold("  how weights travel"));
  for (const { head, reasons } of weights.map(weightWords))
    lines.push(...text(head), ...reasons.flatMap((reason) => text(reason, "    ").map(dim)));
  lines.push("", bold("  the best of each mode"));
  for (const alternative of alternatives) {
    const [seconds, times] = [formatSeconds(alternative.stepSeconds), standing(alternative, alternatives)];
    lines.push(`  ${padCells(alternative.mode, 10)}${padCells(seconds, 10)}${times}`);
    if (!alternative.proven) {
      const { boundSeconds: bound } = alternative;
      const least = bound > 0 ? `, which takes at least ${formatSeconds(bound)}` : "";
      lines.push(...text(`not proven to be the best of its mode${least}`, "    ").map(dim));
    }
    for (const limit of [...experience(alternative, alternatives), ...alternative.limits])
      lines.push(...text(limit, "    ").map(dim));
  }
  for (const { mode, why } of found.missing) {
    const parts = wrap(why, columns - 12, "");
    lines.push(...parts.map((part, i) => `  ${padCells(i === 0 ? mode : "", 10)}${dim(part)}`));
  }
  const { helpful, limits } = helpOf(found);
  lines.push("", bold("  what would help"));
  for (const { components, devices: count, savedSeconds } of helpful) {
    const names = components.map((name) => `'${name}'`).join(", ");
    const share = formatPercent(savedSeconds / predicted.stepSeconds);
    lines.push(...text(`${plural(count, "more device")} for ${names}: ${formatSeconds(savedSeconds)} less, ${share}`));
  }
  for (const limit of limits) lines.push(...text(limit));
  const least = Math.min(...alternatives.map(({ stepSeconds }) => stepSeconds));
  const isMoved = alternatives.some(
    ({ stepSeconds, movedFromSeconds, refinedFromSeconds }) =>
      stepSeconds === least && (movedFromSeconds ?? refinedFromSeconds) !== undefined,
  );
  if (boundSeconds > 0 && boundSeconds < least * (1 - 1e-6)) {
    const gap = formatPercent(1 - boundSeconds / least);
    const of = isMoved
      ? "by the work alone, wherever components are: no plan"
      : "proven of the schedules that are searched, as they are counted there: none";
    lines.push(...text(`${of} takes less than ${formatSeconds(boundSeconds)}, ${gap} less than this`));
  }
  const notes = found.explanation.filter((line) => line.includes("extrapolated") || line.includes("measured"));
  for (const note of notes) lines.push(...text(note).map(dim));
  return [...lines, ""];
}

/** A case without a plan. */
export function renderRefused(
  { title, devices, batch, refused }: RefusedCase,
  { columns, colour = pc.isColorSupported }: PlanTextOptions,
): string[] {
  const [bold, dim] = colour ? [pc.bold, pc.dim] : [String, String];
  const head = dim(`  ${describeDevices(devices)}, batch ${batch}`);
  const reason = wrap(refused.message, columns - 2, "  ").map((part) => `  ${part}`);
  return [`${bold(title)}: no plan`, head, ...reason, ""];
}

const ratio = (value: number): string =>
  value >= 1 ? `${value.toFixed(2)} times as fast` : `${(1 / value).toFixed(2)} times as long`;

const nameWidth = (placement: Readonly<Record<string, string>>): number =>
  Math.max(...Object.keys(placement).map((name) => name.length));

/** Lanes of equal time; a cell shows who has most of it. Without colours a letter says who; with them, both do. */
export function renderTimeline(timeline: PlanTimeline, columns: number, colour: boolean): string[] {
  const names = componentsOf(timeline);
  const slots = colourSlots(names.flatMap((name) => name.split("+")));
  const letters = lettersOf(names);
  const lanes = timeline.lanes.slice(0, mostLanes);
  const labels = lanes.map((lane) => `${fit(lane.label, 22)}${lane.numDevices > 1 ? ` ×${lane.numDevices}` : ""}`);
  const labelWidth = Math.max(...labels.map((label) => label.length));
  const width = Math.max(20, columns - labelWidth - 6);
  const paint = (name: string, text: string): string =>
    colour ? backgrounds[(slots.get(name.split("+")[0] as string) ?? 0) % backgrounds.length]!(pc.black(text)) : text;
  const rows = lanes.map((lane, i) => {
    const cells = Array.from({ length: width }, (_, column) =>
      cellOf(lane.segments, (column / width) * timeline.seconds, ((column + 1) / width) * timeline.seconds),
    );
    const bar = cells.map((segment, column) => {
      if (segment === undefined) return colour ? " " : "·";
      if (segment.kind === "swap") return colour ? pc.bgBlack(pc.white("░")) : "%";
      const begins = cells[column - 1] !== segment;
      const letter = letters.get(segment.component) ?? "?";
      if (!colour) return letter;
      return paint(segment.component, segment.kind === "serial" ? "░" : begins ? letter : " ");
    });
    return `${padCells(labels[i]!, labelWidth)} │${bar.join("")}│`;
  });
  const hidden = timeline.lanes.length - lanes.length;
  if (hidden > 0) rows.push(`${" ".repeat(labelWidth)}  and ${plural(hidden, "more lane")}`);
  const end = formatSeconds(timeline.seconds);
  const legend = names.map((name) => `${paint(name, ` ${letters.get(name)} `)} ${name}`).join("   ");
  const swaps = timeline.lanes.some((lane) => lane.segments.some((segment) => segment.kind === "swap"));
  return [
    ...rows,
    `${" ".repeat(labelWidth)}  0${" ".repeat(Math.max(1, width - 1 - end.length))}${end}`,
    `${legend}${swaps ? `   ${colour ? "░" : "%"} swap` : ""}${colour ? "" : "   · idle"}`,
  ];
}

/** The first letter of each, or the next that nobody has yet. */
function lettersOf(names: readonly string[]): Map<string, string> {
  const taken = new Set<string>();
  const letters = new Map<string, string>();
  for (const name of names) {
    const candidates = [...name.toUpperCase(), ..."ABCDEFGHIJKLMNOPQRSTUVWXYZ"];
    const letter = candidates.find((c) => /[A-Z]/.test(c) && !taken.has(c)) ?? "?";
    taken.add(letter);
    letters.set(name, letter);
  }
  return letters;
}

/** What fills most of a stretch of time; nothing where idling does. */
function cellOf(segments: readonly TimelineSegment[], from: number, to: number): TimelineSegment | undefined {
  let best: TimelineSegment | undefined;
  let [most, covered] = [0, 0];
  for (const segment of segments) {
    const overlap = Math.min(to, segment.endSeconds) - Math.max(from, segment.startSeconds);
    if (overlap <= 0) continue;
    covered += overlap * segment.busyShare;
    if (overlap > most) [best, most] = [segment, overlap];
  }
  return covered >= (to - from) / 2 ? best : undefined;
}
