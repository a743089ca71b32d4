/** A plan and a profile made ready for a replay: who takes how much at a time, and how long that takes. Pure. */
import type { ComponentProfile, FlowGraph, Plan, Profile } from "@treadle/contracts";
import { layoutOf, usedBy } from "../profile/running-layout.ts";
import { asksPerTurn, type ComponentLayout } from "../profile/step-samples.ts";
import { stretchOf } from "../profile/take-stretch.ts";
import { itemSpread } from "../profile/unevenness.ts";
import { cycleOf, type Flow, turnsOf } from "./cycle-model.ts";
import { measuredSeconds, pointOf } from "./measured-time.ts";
import type { ReplayedCall, ReplayedCycle, StreamedCall } from "./plan-replay.ts";
import { drawnBy } from "./replayed-draws.ts";
import { hiddenSeconds, pieceOf, streamedParts } from "./streamed-parts.ts";

export type ReplayTarget = {
  readonly plan: Plan;
  readonly profile: Profile;
  readonly batch: number;
  /** whether the times of ranks are drawn, where these were seen to differ */
  readonly isDrawn: boolean;
};

/** In the order of their first calls. `plan` has the granularity and capacity that it runs with. */
export function replayedCalls(target: ReplayTarget): ReplayedCall[] {
  const { graph } = target.profile;
  const calls = Object.entries(graph.components).flatMap(([name, { methods }]) => {
    const flowing = Object.values(methods).filter(({ takes, puts }) => takes.length + puts.length > 0);
    return flowing.map((method) => replayedCall(target, name, method, 1 / flowing.length));
  });
  return withBeginnersFirst(calls);
}

/**
 * Who begins a cycle is called before the others of it, which have nothing to take until then. Its component may have come later,
 * behind one that was first called for something else, such as to pull weights.
 */
function withBeginnersFirst(calls: readonly ReplayedCall[]): ReplayedCall[] {
  const ordered = [...calls];
  for (const call of calls) {
    const { cycle } = call;
    if (!cycle?.turns.some(([first]) => first !== undefined && first.take === undefined)) continue;
    const from = ordered.indexOf(call);
    const first = ordered.findIndex(({ cycle: other }) =>
      [...(other?.channels ?? [])].some((c) => cycle.channels.has(c)),
    );
    if (first < from) ordered.splice(first, 0, ...ordered.splice(from, 1));
  }
  return ordered;
}

type Method = FlowGraph["components"][string]["methods"][string];

/** `part`: of the component's seconds. */
function replayedCall(
  { plan, profile, batch, isDrawn }: ReplayTarget,
  name: string,
  { takes, puts }: Method,
  part: number,
): ReplayedCall {
  const { graph, components } = profile;
  const { onceSeconds = 0, askSeconds = 0, gang = false } = components[name]!;
  const ranks = plan.components[name]!.ranks.map(({ devices }) => devices);
  const itemsOf = (channel: string, role: "producers" | "consumers"): number => {
    const moved = graph.channels[channel]!;
    return (moved.itemsPerStep * batch) / graph.batch / Math.max(1, moved[role].length);
  };
  const taken = takes.map((channel) => {
    const items = itemsOf(channel, "consumers");
    const most = plan.granularity.channels[channel] ?? plan.granularity.default;
    return { channel, items, most };
  });
  const { devices, concurrency } = widthOf(layoutOf(plan).components.get(name)!, ranks, profile.components[name]!);
  const itemsPerStep = Math.max(1, ...taken.map(({ items }) => items));
  const isChunked = taken.some(({ items, most }) => most !== "all" && most < items / ranks.length);
  const once = part * onceSeconds;
  const hidden = part * (taken.length === 1 ? hiddenSeconds(components[name]!, taken[0]!.most) : 0);
  const known = new Map<number, number>();
  const secondsOf = (share: number): number => {
    const key = Math.round(1e9 * share);
    const seconds = known.get(key) ?? part * takeSeconds(share);
    known.set(key, seconds);
    if (!isChunked) return seconds;
    const ofRank = Math.min(1, share * ranks.length);
    return Math.max(0, seconds - once * share * ranks.length - hidden * (1 - ofRank));
  };
  const pointAt = (share: number) =>
    pointOf(profile.components[name]!, {
      ...{ share, itemsPerStep, ranks: ranks.length, concurrency, devices, batch },
    });
  const takeSeconds = (share: number): number => {
    const point = pointAt(share);
    return measuredSeconds(profile.components[name]!, point.devices, point.items, batch, graph.batch);
  };
  const lengthSpread = components[name]!.fit?.longest ? (components[name]!.lengthSpread ?? 0) : 0;
  const differing = { profile: components[name]!, lengthSpread, itemSpread: itemSpread(components[name]!, devices) };
  const stretch = isDrawn ? stretchOf({ ...differing, concurrency }) : undefined;
  const drawnStretch = (share: number, uniform: number): number => {
    const taken = Math.max(1, share * itemsPerStep);
    const work = { taken, itemsPerStep, seconds: secondsOf(share), ...pointAt(share), batch };
    return stretch!(work, drawnBy(uniform, taken, lengthSpread));
  };
  const put = puts.map((channel) => ({
    channel,
    items: itemsOf(channel, "producers"),
    capacity: plan.capacity?.[channel] ?? Number.POSITIVE_INFINITY,
  }));
  const streamedOf = (): StreamedCall | undefined => {
    const [[source], [sink]] = [taken, put];
    if (!components[name]!.streams || gang || !source || !sink || taken.length + put.length > 2) return undefined;
    // Who takes turns with its consumer is done with a chunk before it gives its devices away.
    if (Number.isFinite(sink.capacity)) return undefined;
    const share = source.items / ranks.length;
    const granularity = plan.granularity.channels[sink.channel] ?? plan.granularity.default;
    const piece = pieceOf({ items: sink.items, granularity }, share);
    if (piece === undefined) return undefined;
    const ofRank = (items: number) => {
      const places = source.most === "all" ? items : Math.min(items, source.most);
      const partOf = streamedParts(components[name]!, { items, places, ranks: ranks.length, devices });
      return { items, secondsUntil: (part: number) => ofTake(places) * (items / places) * partOf(part) };
    };
    const ofTake = (items: number): number => secondsOf(items / source.items);
    const whole = new Map<number, ReturnType<typeof ofRank>>();
    const inChunks = ofRank(share);
    return {
      piece,
      ofTake: (taken) => {
        if (taken < Math.floor(share + 1e-9)) return inChunks;
        const known = whole.get(taken) ?? ofRank(taken);
        whole.set(taken, known);
        return known;
      },
    };
  };
  const cycledOf = (): ReplayedCycle | undefined => {
    const moved = { takes: taken.map(asWhole), puts: put.map(asWhole) };
    const scaled = {
      ...graph,
      channels: Object.fromEntries(Object.entries(graph.channels).map(scaledTo(batch / graph.batch))),
    };
    const cycle = cycleOf(name, moved.takes, moved.puts, scaled);
    if (cycle === undefined) return undefined;
    // Profiles have cycles as wholes: an item takes its part of the whole time.
    const whole = part * measuredSeconds(components[name]!, devices, batch, batch, graph.batch);
    return {
      channels: cycle.channels,
      turns: ranks.map((_, rank) => turnsOf(cycle, moved, { rank, ranks: ranks.length })),
      secondsPerItem: (channel) => {
        const { items } = taken.find((each) => each.channel === channel)!;
        return (whole * concurrency) / Math.max(1, items) / taken.length;
      },
    };
  };
  return {
    component: name,
    ranks,
    isGang: gang,
    takes: taken,
    puts: put,
    secondsOf,
    stretchOf: stretch && drawnStretch,
    streamed: streamedOf(),
    cycle: cycledOf(),
    onceSeconds: isChunked ? once : 0,
    turnSeconds: asksPerTurn * askSeconds,
  };
}

const asWhole = ({ channel, items }: Flow): Flow => ({ channel, items: Math.round(items) });

type Channels = FlowGraph["channels"];

/** Of a step of another size. */
function scaledTo(factor: number) {
  return ([name, moved]: [string, Channels[string]]): [string, Channels[string]] => [
    name,
    { ...moved, itemsPerStep: moved.itemsPerStep * factor },
  ];
}

/** Devices that count, and how many ranks can compute at the same time on them. */
function widthOf(layout: ComponentLayout, ranks: readonly (readonly string[])[], { devicesPerRank }: ComponentProfile) {
  const concurrency = Math.min(ranks.length, layout.devices / Math.max(1, ranks[0]!.length));
  return { devices: usedBy(layout, devicesPerRank), concurrency };
}
