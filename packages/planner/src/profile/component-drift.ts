import type { ComponentProfile, Profile, ProfileSample } from "@treadle/contracts";
import { processorBoundShare } from "./step-samples.ts";
import { fittedSeconds } from "./time-fit.ts";

/** How one component's work has changed. */
export type ComponentDrift = {
  readonly component: string;
  /** measured over expected */
  readonly ratio: number;
};

/** Components with less than this share of all busy seconds decide nothing: clocks say too little of them. */
const smallestShare = 0.05;

/**
 * What each component takes now over what it took, where both profiles say. Seconds of work that keeps a processor busy
 * are processor seconds: others who use the machine stretch the former and not the latter. Pure.
 */
export function componentDrifts(expected: Profile, measured: Profile): ComponentDrift[] {
  const { busy, total } = busyIn(measured);
  return Object.entries(measured.components).flatMap(([component, { samples }]) => {
    const before = expected.components[component];
    if (!before || (busy.get(component) ?? 0) < smallestShare * total) return [];
    const ratio = ratioOf(before, samples, expected.graph.batch);
    return ratio === undefined ? [] : [{ component, ratio }];
  });
}

/**
 * Of components whose profiles come from elsewhere, how many times the seconds that they say was measured here, where that
 * is more or less by more than `threshold`: `Infinity` where they say nothing of it. What is small by both decides nothing.
 */
export function disagreements(
  elsewhere: ReadonlyMap<string, ComponentProfile>,
  measured: Profile,
  threshold: number,
): Map<string, number> {
  const { busy, total } = busyIn(measured);
  const { batch } = measured.graph;
  const found = new Map<string, number>();
  for (const [name, profile] of elsewhere) {
    const ratio = ratioOf(profile, measured.components[name]?.samples ?? [], batch);
    const here = busy.get(name) ?? 0;
    const there = ratio === undefined ? Math.min(...perBatch(profile, batch)) : here / ratio;
    if (Math.max(here, there) <= smallestShare * total) continue;
    if (ratio === undefined) found.set(name, Number.POSITIVE_INFINITY);
    else if (Math.max(ratio, 1 / ratio) > 1 + threshold) found.set(name, ratio);
  }
  return found;
}

const perBatch = ({ samples }: ComponentProfile, batch: number): number[] =>
  samples.map(({ items, seconds }) => (seconds * batch) / items);

/** Seconds of a batch by component, on what it took longest on, and of all together. */
function busyIn({ components, graph }: Profile): {
  readonly busy: ReadonlyMap<string, number>;
  readonly total: number;
} {
  const busy = new Map(
    Object.entries(components).map(([name, profile]) => [name, Math.max(...perBatch(profile, graph.batch))]),
  );
  return { busy, total: [...busy.values()].reduce((sum, seconds) => sum + seconds, 0) };
}

/** What a component took in these samples over what its profile says; undefined where that says nothing of them. */
function ratioOf(before: ComponentProfile, samples: readonly ProfileSample[], batch: number): number | undefined {
  const logs = samples.flatMap((sample) => {
    const was = workAt(before, sample, batch);
    const is = was === undefined ? 0 : was.kind === "processor" ? processorSeconds(sample) : sample.seconds;
    return was && was.seconds > 0 && is > 0 ? [Math.log(is / was.seconds)] : [];
  });
  return logs.length === 0 ? undefined : Math.exp(logs.reduce((sum, log) => sum + log, 0) / logs.length);
}

/**
 * How far components have left their proportions: the largest ratio over the smallest, 1 when all changed alike. What a
 * plan takes is, but for constants, proportional to what its components take, so a change that they share makes no other
 * plan the best one.
 */
export function disproportion(drifts: readonly ComponentDrift[]): number {
  if (drifts.length === 0) return 1;
  const ratios = drifts.map(({ ratio }) => ratio);
  return Math.max(...ratios) / Math.min(...ratios);
}

type Work = { readonly kind: "processor" | "busy"; readonly seconds: number };

function workAt(component: ComponentProfile, { devices, items }: ProfileSample, batch: number): Work | undefined {
  const sample = component.samples.find((each) => each.devices === devices && each.items === items);
  if (!sample) {
    const seconds = fittedSeconds(component, { devices, items, isWhole: items >= batch });
    return seconds === undefined ? undefined : { kind: "busy", seconds };
  }
  return (sample.processorShare ?? 0) > processorBoundShare
    ? { kind: "processor", seconds: processorSeconds(sample) }
    : { kind: "busy", seconds: sample.seconds };
}

const processorSeconds = ({ seconds, processorShare = 1 }: ProfileSample): number => seconds * processorShare;
