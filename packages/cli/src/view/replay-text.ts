/** What a replay found, and the state of a run at one instant, as text. */
import type { ReplayedRecording, ReplayedState } from "@treadle/runtime/runner";
import { singleLine } from "./text.ts";

const ends: Readonly<Record<ReplayedRecording["end"], string>> = {
  closed: "",
  limit: "; it ends where it had grown to observe.recordMaxMiB",
  "cut-short": "; it is cut short, as when its runner was killed or its file is damaged",
};

export function renderReplay(recordings: readonly ReplayedRecording[]): string {
  return recordings
    .map(({ name, inputs, seconds, step, end }) => {
      const steps = step === undefined ? "no step" : `step ${step}`;
      return `recording ${name}: ${inputs} inputs over ${seconds.toFixed(1)} s, up to ${steps}, decided again with the same effects${ends[end]}`;
    })
    .join("\n");
}

export function renderState(state: ReplayedState): string {
  const { recording, input, seconds, ranks, shown, devices, channels, waits, failure } = state;
  const lines = [`${seconds.toFixed(3)} s after the start, after input ${input} of recording ${recording}`];
  if (failure !== undefined) lines.push(`the run has failed: ${failure}`);
  lines.push("", `Nodes: ${shown.nodes.join(", ") || "none"}`, "", "Steps");
  for (const { step, state: reached, pending, blocks } of shown.steps) {
    const ahead = blocks === undefined ? "" : `; step ${blocks} begins when it is committed`;
    lines.push(`  ${step}: ${reached}, waits for ${pending} calls${ahead}`);
  }
  if (shown.steps.length === 0) lines.push("  none is open");
  lines.push("", "Calls");
  for (const { call, worker, method, step, replied, sentMs, attempts, retry } of shown.calls) {
    const of = step === undefined ? "outside of steps" : `of step ${step}`;
    const again = retry?.culprit === undefined ? "" : ` once '${retry.culprit}' is back`;
    const how = replied
      ? "has replied, and waits for its group"
      : retry !== undefined
        ? `starts over${again}, after ${attempts} attempts`
        : sentMs === undefined
          ? "has not been sent"
          : `under way, attempt ${attempts}`;
    lines.push(`  ${call} '${method}' ${of} on ${worker}: ${how}`);
  }
  if (shown.calls.length === 0) lines.push("  none is open");
  lines.push("", "Ranks");
  for (const { worker, phase, incarnation, place } of ranks)
    lines.push(`  ${worker}: ${phase}, process ${incarnation}, on ${place.devices.join(", ") || place.node}`);
  lines.push("", "Devices");
  const loaded = (device: string) => {
    const names = ranks.filter(({ place }) => place.devices.includes(device)).map(({ worker }) => worker);
    return devices.workers.filter(({ worker, residency }) => names.includes(worker) && residency !== "unloaded");
  };
  for (const { device, holders } of devices.devices) {
    const there = loaded(device).map(({ worker, residency }) => `${worker} ${residency}`);
    lines.push(`  ${device}: held by ${holders.join(", ") || "nobody"}; ${there.join(", ") || "nobody loaded"}`);
  }
  for (const { worker, call, token, lent } of devices.holds)
    lines.push(`  ${worker} holds with token ${token} in call ${call}${lent ? ", lent while it waits" : ""}`);
  for (const { devices: of, component = "nobody", state: how } of devices.leases)
    lines.push(`  lease of ${of.join(", ")} for ${component}: ${how}`);
  lines.push("", "Channels");
  for (const { channel, streams } of channels) {
    if (streams.length === 0) lines.push(`  ${channel}: empty, no stream is open`);
    for (const stream of streams) {
      const { queuedItems, stagedItems, inFlight, producers, consumers } = stream;
      const held = inFlight.map(({ worker, items }) => `${items} with ${worker}`);
      const names = (of: readonly { readonly worker: string }[]) => of.map(({ worker }) => worker).join(", ") || "none";
      lines.push(
        `  ${channel} ${stream.stream} (${stream.state}): ${[`${queuedItems} queued`, `${stagedItems} staged`, ...held].join(", ")}; producers ${names(producers)}; consumers ${names(consumers)}`,
      );
      for (const { worker, min, key, isWorking } of stream.waitingTakes)
        lines.push(
          `    ${worker} ${isWorking ? "works, and would take" : "waits for"} ${min} items${key === undefined ? "" : ` of key '${key}'`}`,
        );
      for (const { worker, remainingItems } of stream.waitingPuts)
        lines.push(`    ${worker} waits for room for ${remainingItems} items`);
    }
  }
  lines.push("", "Waits");
  for (const { who, on } of waits) lines.push(`  ${who} waits for ${on}`);
  if (waits.length === 0) lines.push("  nobody waits");
  return lines.map((line) => `${/^ */.exec(line)?.[0]}${singleLine(line)}`).join("\n");
}
