/** What was estimated for a plan, and by what arithmetic. */
import {
  type Correction,
  figuresOf,
  formatBytes,
  type KindOfWork,
  type Rehearsal,
  type RehearsalSetting,
  type RehearsedPart,
} from "@treadle/planner";
import { formatPercent, formatSeconds, padCells, plural, wrap } from "./text.ts";

/** What an estimate takes for granted that the shipped engine does in part. */
function trainerNote(parts: readonly RehearsedPart[]): string {
  const trainers = parts.filter(({ work }) => work === "training").map(({ component }) => `'${component}'`);
  if (trainers.length === 0) return "";
  return `Training is estimated for a trainer that shards over all of its devices (FSDP) and makes activations again. The shipped trainer on PyTorch shards over the devices of a rank, on one node: give ${trainers.join(", ")} ranks of as many in placement.components, as '0-7 /8'.`;
}

const saidOf: Readonly<Record<KindOfWork, string>> = {
  batches: "its batches",
  once: "what it does once a step",
  weights: "to give it weights",
  swaps: "to swap it",
};

const kindsOf = (corrections: RehearsedPart["corrections"]): [KindOfWork, Correction][] =>
  Object.entries(corrections) as [KindOfWork, Correction][];

function describeCorrection({ factor, numPoints, errorBefore, errorAfter }: Correction): string {
  const left =
    errorAfter === undefined ? "" : `; each of them by ${formatPercent(errorAfter)}, once the others correct it`;
  return `estimate was ${formatPercent(errorBefore)} off ${plural(numPoints, "measurement")}, and is taken × ${factor.toPrecision(3)}${left}`;
}

/** Lines of `columns` characters at most. */
export function renderRehearsal(
  { parts, others, calibratedBy }: Rehearsal,
  { device, devices, batch, samples, lengths }: RehearsalSetting,
  columns: number,
): string[] {
  const { memoryBytes, flops, memoryRate } = figuresOf(device);
  const { promptTokens, responseTokens, maxResponseTokens, spread } = lengths;
  const text = (line: string, indent: string): string[] =>
    wrap(line, columns - indent.length, "  ").map((each) => `${indent}${each}`);
  const width = Math.max(...parts.map(({ component }) => component.length)) + 2;
  const isCalibrated = parts.some(({ corrections }) => kindsOf(corrections).length > 0);
  const quoted = others.map((name) => `'${name}'`).join(", ");
  return [
    ...text(
      `Estimated on ${devices} × ${device} (${formatBytes(memoryBytes)}, ${flops / 1e12} Tflop/s, ${memoryRate / 1e12} TB/s), ${calibratedBy && isCalibrated ? `calibrated by ${plural(calibratedBy.steps, "step")} on ${calibratedBy.hardware}` : "where nothing was measured"}.`,
      "",
    ),
    ...text(
      `${plural(batch, "prompt")} of ${promptTokens} tokens, ${plural(samples, "response")} each, of ${responseTokens} tokens (median; log-sd ${spread}; ${maxResponseTokens} at most).`,
      "",
    ),
    ...text(trainerNote(parts), ""),
    ...parts.flatMap(({ component, work, devicesPerRank, seconds, bytesPerDevice, arithmetic, corrections }) => [
      "",
      `  ${padCells(component, width)}${work}, ${plural(devicesPerRank, "device")} a rank: ${formatSeconds(seconds)} alone, ${formatBytes(bytesPerDevice)} of each device`,
      ...arithmetic.flatMap((line) => text(line, "    ")),
      ...kindsOf(corrections).flatMap(([kind, correction]) =>
        text(`${saidOf[kind]}: ${describeCorrection(correction)}`, "    "),
      ),
      ...[calibratedBy?.refused[component]].flatMap((why) =>
        why === undefined ? [] : text(`not calibrated: ${why}`, "    "),
      ),
    ]),
    ...(others.length === 0 ? [] : ["", ...text(`${quoted}: as measured here.`, "  ")]),
  ];
}
