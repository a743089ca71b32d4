/** What a replay found, and the state of a run at one instant, as text. */
import type { ReplayedRecording, ReplayedState } from "@treadle/runtime/runner";
import { singleLine } from "./text.ts";

const ends: Readonly<Record<ReplayedRecording["end"], string>> = {
  closed: "",
  limit: "; it ends where it had grown to observe.recordMaxMiB",
  "cut-short": "; it is cut short, as when its runner was killed",
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
  const { recording, input, seconds, ranks, devices, channels, waits, failure } = state;
  const lines = [`${seconds.toFixed(3)} s after the start, after input ${input} of recording ${recording}`];
  if (failure !== undefined) lines.push(`the run has failed: ${failure}`);
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
