/** A plan as a picture: what every device does in one step, by the same seconds that predict it. */
import type { DeviceSpec } from "@treadle/contracts";
import { formatDeviceNumbers } from "../placement-grammar.ts";
import type { Cost } from "../plan/evaluate.ts";
import type { ReplayedStep } from "./plan-replay.ts";
import type { Share } from "./schedule-placement.ts";

export type TimelineSegment = {
  /** one, or those of a cycle that run as one */
  readonly component: string;
  /** `swap`: the devices change hands; `serial`: calls that overlap nothing */
  readonly kind: "run" | "swap" | "serial";
  readonly startSeconds: number;
  readonly endSeconds: number;
  /** chunks handled meanwhile */
  readonly chunks: number;
  /** share of the stretch in which it works; the rest waits for other stages */
  readonly busyShare: number;
};

export type TimelineLane = {
  /** devices that do the same, as `gpu 0-3` */
  readonly label: string;
  readonly numDevices: number;
  readonly segments: readonly TimelineSegment[];
};

export type PlanTimeline = { readonly seconds: number; readonly lanes: readonly TimelineLane[] };

/** Chunks of one stage that are drawn one by one; more are drawn in groups, and in a replay those between which is less than such a part of it. */
const mostChunksDrawn = 32;

type Drawn = TimelineSegment & { readonly components: readonly string[] };

type Beside = {
  readonly shares: readonly Share[];
  /** by component; they come first */
  readonly serialSeconds: ReadonlyMap<string, number>;
};

/** Of a schedule, whose parts have the devices that they own for as long as they last. */
export function planTimeline(cost: Cost, { shares, serialSeconds }: Beside): PlanTimeline {
  const { drawn, seconds: at } = drawnSerial(serialSeconds);
  draw(cost, { start: at, scale: 1, chunks: 1, busyShare: 1 }, drawn);
  return { seconds: at + cost.step, lanes: lanesOf(shares, (_, components) => among(drawn, components)) };
}

/** Of a step that was replayed: what the busiest of the devices with the same components does. `stepSeconds`: of all that is predicted. */
export function replayedTimeline(
  { seconds, lastSeconds, stretches }: ReplayedStep,
  { shares, serialSeconds, stepSeconds }: Beside & { readonly stepSeconds: number },
): PlanTimeline {
  const { drawn, seconds: at } = drawnSerial(serialSeconds);
  const scale = lastSeconds > 0 ? seconds / lastSeconds : 1;
  const onDevice = new Map<string, Drawn[]>();
  for (const { component, devices, kind, startSeconds, endSeconds } of stretches) {
    for (const device of devices) {
      const own = onDevice.get(device) ?? [];
      onDevice.set(device, own);
      const stretch = { startSeconds: at + startSeconds * scale, endSeconds: at + endSeconds * scale };
      own.push({ component, kind, ...stretch, chunks: 1, busyShare: 1, components: [component] });
    }
  }
  const isShort = seconds / mostChunksDrawn;
  const busySeconds = (device: DeviceSpec): number =>
    (onDevice.get(device.id) ?? []).reduce((sum, each) => sum + each.endSeconds - each.startSeconds, 0);
  const lanes = lanesOf(shares, (devices, components) => {
    const busiest = devices.reduce((most, each) => (busySeconds(each) > busySeconds(most) ? each : most));
    return [...among(drawn, components), ...joined(onDevice.get(busiest.id) ?? [], isShort)];
  });
  return { seconds: stepSeconds, lanes };
}

/** What a device does without a longer pause, or at the same time, as one stretch. */
function joined(stretches: readonly Drawn[], isShort: number): Drawn[] {
  const found: Drawn[] = [];
  let [busy, span] = [0, 0];
  for (const next of [...stretches].sort((a, b) => a.startSeconds - b.startSeconds)) {
    const last = found.at(-1);
    const own = next.endSeconds - next.startSeconds;
    const isSame = last?.kind === next.kind && (next.kind === "swap" || last.component === next.component);
    const pause = next.startSeconds - (last?.endSeconds ?? 0);
    if (!last || !isSame || pause > (next.kind === "swap" ? 0 : isShort)) {
      [busy, span] = [own, own];
      found.push(next);
      continue;
    }
    const components = [...new Set([...last.components, ...next.components])];
    const endSeconds = Math.max(last.endSeconds, next.endSeconds);
    busy += own;
    span = endSeconds - last.startSeconds;
    const busyShare = span > 0 ? Math.min(1, busy / span) : 1;
    const chunks = last.chunks + (next.kind === "swap" ? 0 : 1);
    found[found.length - 1] = { ...last, component: components.join("+"), components, endSeconds, busyShare, chunks };
  }
  return found;
}

function drawnSerial(serialSeconds: ReadonlyMap<string, number>): { drawn: Drawn[]; seconds: number } {
  const drawn: Drawn[] = [];
  let at = 0;
  for (const [component, seconds] of serialSeconds) {
    if (seconds <= 0) continue;
    const stretch = { startSeconds: at, endSeconds: at + seconds, chunks: 1, busyShare: 1 };
    drawn.push({ component, kind: "serial", ...stretch, components: [component] });
    at += seconds;
  }
  return { drawn, seconds: at };
}

const among = (drawn: readonly Drawn[], names: ReadonlySet<string>): Drawn[] =>
  drawn.filter(({ components }) => components.some((component) => names.has(component)));

/** One for all devices that have the same components. */
function lanesOf(
  shares: readonly Share[],
  drawnOn: (devices: readonly DeviceSpec[], components: ReadonlySet<string>) => readonly Drawn[],
): TimelineLane[] {
  const lanes = new Map<string, { devices: DeviceSpec[]; components: ReadonlySet<string> }>();
  const users = new Map<DeviceSpec, string[]>();
  for (const { component, devices } of shares) {
    for (const device of devices) users.set(device, [...(users.get(device) ?? []), component]);
  }
  for (const [device, components] of users) {
    const key = `${device.kind} ${components.join(" ")}`;
    const lane = lanes.get(key) ?? { devices: [], components: new Set(components) };
    lanes.set(key, lane);
    lane.devices.push(device);
  }
  return [...lanes.values()].map(({ devices, components }) => ({
    label: `${devices[0]!.kind} ${formatDeviceNumbers(devices.map((device) => device.index))}`,
    numDevices: devices.length,
    segments: drawnOn(devices, components).map(({ components: _, ...segment }) => segment),
  }));
}

type Stretch = {
  readonly start: number;
  /** seconds drawn for a second of work */
  readonly scale: number;
  readonly chunks: number;
  readonly busyShare: number;
};

function draw(cost: Cost, { start, scale, chunks, busyShare }: Stretch, into: Drawn[]): void {
  const { schedule, parts } = cost;
  if (schedule.op === "node") {
    const stretch = { startSeconds: start, endSeconds: start + cost.step * scale, chunks, busyShare };
    into.push({ component: schedule.node, kind: "run", ...stretch, components: schedule.node.split("+") });
    return;
  }
  if (schedule.op === "parallel") {
    for (const part of parts) draw(part, { start, scale, chunks, busyShare }, into);
    return;
  }
  if (schedule.op === "temporal") {
    const [first, second] = [parts[0]!, parts[1]!];
    const components = membersOf(cost);
    const swap = (from: number, seconds: number): void => {
      if (seconds <= 0) return;
      const stretch = { startSeconds: from, endSeconds: from + seconds * scale, chunks, busyShare: 1 };
      into.push({ component: components.join("+"), kind: "swap", ...stretch, components });
    };
    draw(first, { start, scale, chunks, busyShare }, into);
    swap(start + first.step * scale, cost.swap);
    const secondStart = start + (first.step + cost.swap) * scale;
    draw(second, { start: secondStart, scale, chunks, busyShare }, into);
    swap(secondStart + second.step * scale, cost.swapBack);
    return;
  }
  // Chunk i of a stage starts when those before it in the row have had chunk i, and the bottleneck i chunks.
  const count = schedule.items / schedule.chunk;
  const group = Math.ceil(count / mostChunksDrawn);
  const slowest = Math.max(...parts.map((part) => part.step));
  let before = 0;
  for (const part of parts) {
    for (let chunk = 0; chunk < count; chunk += group) {
      const together = Math.min(group, count - chunk);
      const span = (together - 1) * slowest + part.step;
      const share = span > 0 ? (together * part.step) / span : 1;
      const stretch = part.step > 0 ? span / part.step : 1;
      draw(
        part,
        {
          start: start + (before + chunk * slowest) * scale,
          scale: scale * stretch,
          chunks: chunks * together,
          busyShare: busyShare * share,
        },
        into,
      );
    }
    before += part.step;
  }
}

function membersOf({ schedule, parts }: Cost): string[] {
  return schedule.op === "node" ? schedule.node.split("+") : parts.flatMap(membersOf);
}
