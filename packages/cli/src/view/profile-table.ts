/** A profile as lines: what each component costs on how many devices, and how well a law fits it. */
import type { ComponentProfile, Profile, TagMemory } from "@treadle/contracts";
import { formatCount, formatPercent, formatSeconds, padCells, plural } from "./text.ts";

export function describeProfile(profile: Profile): string[] {
  const rows = Object.entries(profile.components).flatMap(([name, component]) =>
    component.samples.map((sample, index) => [
      index === 0 ? name : "",
      String(sample.devices),
      formatCount(sample.items),
      formatSeconds(sample.seconds),
      `± ${formatPercent(sample.spread, 0)}`,
      plural(sample.accepted, "step"),
      [sample.rejected > 0 ? `${sample.rejected} rejected` : "", sample.contended ? "contended" : ""]
        .filter((note) => note !== "")
        .join(", "),
    ]),
  );
  const table = alignColumns([["component", "devices", "items", "seconds", "spread", "measured", ""], ...rows]);
  const fits = Object.entries(profile.components).flatMap(
    ([name, { fit, samples, onloadSeconds, offloadSeconds, serialSeconds, memory }]) => {
      const largest = Math.max(0, ...memory.map(({ bytesPerDevice }) => bytesPerDevice));
      const tags = memory.findLast((measured) => measured.bytesPerDevice === largest)?.tags ?? [];
      return [
        fit
          ? `${name}: ${formatSeconds(fit.base)} + ${formatSeconds(fit.perItem)} an item / ${shareOf(samples, fit.alpha)}${fit.once ? ` + ${formatSeconds(fit.once.seconds)} once a step` : ""}, off by ${formatPercent(fit.relativeError)} on average`
          : `${name}: no fit`,
        `  ${[
          largest > 0 ? `${formatCount(largest)}B a device${describeTags(tags)}` : "",
          onloadSeconds + offloadSeconds > 0
            ? `onload ${formatSeconds(onloadSeconds)}, offload ${formatSeconds(offloadSeconds)}`
            : "never swapped",
          serialSeconds > 0 ? `${formatSeconds(serialSeconds)} a step before and after the flow` : "",
        ]
          .filter((part) => part !== "")
          .join("; ")}`,
      ];
    },
  );
  const steps = profile.steps.map(
    ({ mode, devices, granularity, seconds, samples }) =>
      `${mode} on ${plural(devices, "device")}, granularity ${granularity}: ${formatSeconds(seconds)} a step (${plural(samples, "step")})`,
  );
  const { overheadSeconds, baseOverheadSeconds = 0, rankOverheadSeconds = 0 } = profile;
  const others = [
    ...(baseOverheadSeconds > 0 ? [formatSeconds(baseOverheadSeconds)] : []),
    ...(rankOverheadSeconds > 0 ? [`${formatSeconds(rankOverheadSeconds)} more for each rank`] : []),
  ];
  const ofRanks = others.length > 0 ? `; otherwise ${others.join(", and ")}` : "";
  const overhead =
    overheadSeconds + baseOverheadSeconds + rankOverheadSeconds > 0
      ? [`${formatSeconds(overheadSeconds)} a step besides its components, where they take turns${ofRanks}`]
      : [];
  return [`measured on ${profile.hardware.description}`, "", ...table, "", ...fits, ...overhead, "", ...steps];
}

/** What moves by itself, with the seconds away and back. */
function describeTags(tags: readonly TagMemory[]): string {
  const told = tags.filter(({ bytes }) => bytes > 0);
  if (told.length === 0) return "";
  const each = told.map(({ tag, bytes, releaseSeconds, restoreSeconds }) => {
    return `${tag} ${formatCount(bytes)}B in ${formatSeconds(releaseSeconds + restoreSeconds)}`;
  });
  return ` (${each.join(", ")})`;
}

function alignColumns(rows: readonly (readonly string[])[]): string[] {
  const widths = (rows[0] ?? []).map((_, column) => Math.max(...rows.map((row) => (row[column] ?? "").length)));
  return rows.map((row) =>
    row
      .map((cell, column) => padCells(cell, (widths[column] ?? 0) + 2))
      .join("")
      .trimEnd(),
  );
}

/** How work spreads over devices is known only of what was measured on several counts of them. */
function shareOf(samples: ComponentProfile["samples"], alpha: number): string {
  const [first, ...others] = [...new Set(samples.map(({ devices }) => devices))];
  if (others.length > 0) return `devices^${alpha.toFixed(2)}`;
  return `device (measured on ${first} only; on others work is taken to split evenly)`;
}
