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
  const busy = new Map(
    Object.entries(measured.components).map(([name, { samples }]) => [
      name,
      Math.max(...samples.map(({ items, seconds }) => (seconds * measured.graph.batch) / items)),
    ]),
  );
  const total = [...busy.values()].reduce((sum, seconds) => sum + seconds, 0);
  return Object.entries(measured.components).flatMap(([component, { samples }]) => {
    const before = expected.components[component];
    if (!before || (busy.get(component) ?? 0) < smallestShare * total) return [];
    const logs = samples.flatMap((sample) => {
      const was = workAt(before, sample, expected.graph.batch);
      const is = was === undefined ? 0 : was.kind === "processor" ? processorSeconds(sample) : sample.seconds;
      return was && was.seconds > 0 && is > 0 ? [Math.log(is / was.seconds)] : [];
    });
    if (logs.length === 0) return [];
    return [{ component, ratio: Math.exp(logs.reduce((sum, log) => sum + log, 0) / logs.length) }];
  });
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
