import type { UtilisationShares } from "@treadle/contracts";
import { componentOf, type SpanBatch, type SpanCategory, type SpanRecord } from "@treadle/contracts";

export type Activity = Exclude<keyof UtilisationShares, "idle">;

/**
 * What a category counts as. `call`, `step` and `evaluation` only frame other spans, an episode is part of what a rank
 * computes, and a failure is a moment, so none of them is work by itself. Moving a model on or off a device, and writing a checkpoint, is moving data.
 */
export const activityOf: Readonly<Record<SpanCategory, Activity | undefined>> = {
  compute: "compute",
  transfer: "transfer",
  onload: "transfer",
  offload: "transfer",
  checkpoint: "transfer",
  "lock-wait": "lockWait",
  "channel-wait": "channelWait",
  call: undefined,
  step: undefined,
  evaluation: undefined,
  episode: undefined,
  failure: undefined,
};

/** Of several activities at once the first here is counted: a wait that work hides costs nothing. */
export const precedence: readonly Activity[] = ["compute", "transfer", "lockWait", "channelWait"];

export type UtilisationWindow = { readonly fromMs?: number | undefined; readonly toMs?: number | undefined };

/**
 * Shares of a window of time that each component spent on what, averaged over its ranks; each row adds up to 1.
 *
 * The window defaults to the stretch from the first span's start to the last one's end. A rank counts as soon as any
 * record of it is in the batches, so an idle rank is seen as idle. Overlapping spans of one rank are counted once.
 */
export function utilisation(
  batches: readonly SpanBatch[],
  window: UtilisationWindow = {},
): Record<string, UtilisationShares> {
  const ranks = new Map<string, SpanRecord[]>();
  let first = Number.POSITIVE_INFINITY;
  let last = Number.NEGATIVE_INFINITY;
  for (const { worker, records } of batches) {
    let spans = ranks.get(worker);
    if (spans === undefined) {
      spans = [];
      ranks.set(worker, spans);
    }
    for (const record of records) {
      if (record.kind !== "span") continue;
      first = Math.min(first, record.startMs);
      last = Math.max(last, record.startMs + record.durationMs);
      if (activityOf[record.category] !== undefined) spans.push(record);
    }
  }
  const fromMs = window.fromMs ?? first;
  const toMs = window.toMs ?? last;
  if (!(toMs > fromMs)) return {};

  const components = new Map<string, { ranks: number; busyMs: Record<Activity, number> }>();
  for (const [worker, spans] of ranks) {
    const component = componentOf(worker);
    let total = components.get(component);
    if (total === undefined) {
      total = { ranks: 0, busyMs: { compute: 0, transfer: 0, lockWait: 0, channelWait: 0 } };
      components.set(component, total);
    }
    total.ranks++;
    const busyMs = busyTime(spans, fromMs, toMs);
    for (const activity of precedence) total.busyMs[activity] += busyMs[activity];
  }

  const result: Record<string, UtilisationShares> = {};
  for (const [component, { ranks: numRanks, busyMs }] of components) {
    const share = (activity: Activity) => Math.min(1, busyMs[activity] / (numRanks * (toMs - fromMs)));
    const compute = share("compute");
    const transfer = share("transfer");
    const lockWait = share("lockWait");
    const channelWait = share("channelWait");
    const idle = Math.max(0, 1 - compute - transfer - lockWait - channelWait);
    result[component] = { compute, lockWait, channelWait, transfer, idle };
  }
  return result;
}

/** Milliseconds of each activity of one rank within the window, every instant counted at most once. */
function busyTime(spans: readonly SpanRecord[], fromMs: number, toMs: number): Record<Activity, number> {
  const edges: { atMs: number; activity: Activity; change: 1 | -1 }[] = [];
  for (const { category, startMs, durationMs } of spans) {
    const activity = activityOf[category];
    const start = Math.max(startMs, fromMs);
    const end = Math.min(startMs + durationMs, toMs);
    if (activity === undefined || end <= start) continue;
    edges.push({ atMs: start, activity, change: 1 }, { atMs: end, activity, change: -1 });
  }
  edges.sort((a, b) => a.atMs - b.atMs);
  const busyMs: Record<Activity, number> = { compute: 0, transfer: 0, lockWait: 0, channelWait: 0 };
  const active: Record<Activity, number> = { compute: 0, transfer: 0, lockWait: 0, channelWait: 0 };
  let previousMs = fromMs;
  for (const { atMs, activity, change } of edges) {
    const current = precedence.find((candidate) => active[candidate] > 0);
    if (current !== undefined) busyMs[current] += atMs - previousMs;
    active[activity] += change;
    previousMs = atMs;
  }
  return busyMs;
}
