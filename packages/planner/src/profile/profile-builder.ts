import {
  type ComponentProfile,
  type FlowGraph,
  median,
  type ObservedCall,
  type Profile,
  type ProfileSample,
  type SequenceSums,
  type TimeFit,
  type WorkerMemory,
} from "@treadle/contracts";
import { type PredictedWith, predictPlan } from "../auto/predict-plan.ts";
import { numRanks } from "../auto/step-overhead.ts";
import { Asks } from "./asks.ts";
import { traceFlow } from "./flow-trace.ts";
import { stepTimes } from "./plan-trials.ts";
import { type Point, robustLine } from "./robust-line.ts";
import { robustMean } from "./robust-mean.ts";
import { type RunningLayout, usedBy } from "./running-layout.ts";
import { asksPerTurn, costsOfStep, type StepCosts } from "./step-samples.ts";
import { fitTime, type OnceAStep, type UnequalItems } from "./time-fit.ts";
import { sharedOut, takenPerItem } from "./whole-items.ts";

/** What a component is, whatever it costs. */
export type ComponentTraits = Pick<
  ComponentProfile,
  "key" | "gang" | "deviceKind" | "model" | "devices" | "devicesPerRank" | "minDevices" | "maxDevices"
>;

export type PlacedOn = Pick<PredictedWith, "devices" | "components">;

export type ProfileHeader = Pick<Profile, "workflow" | "createdAt" | "hardware">;

export type SwapCost = Pick<ComponentProfile, "onloadSeconds" | "offloadSeconds">;

/** Below this items are alike. */
const smallestSpread = 0.02;

type MeasuredStep = {
  readonly layout: RunningLayout;
  readonly seconds: number;
  readonly calls: readonly ObservedCall[];
};

/** Turns observed steps into a profile. Holds observations only; pure otherwise. */
export class ProfileBuilder {
  readonly #batch: number;
  readonly #steps: MeasuredStep[] = [];
  readonly #swaps = new Map<string, SwapCost>();

  constructor(batch: number) {
    this.#batch = batch;
  }

  get numSteps(): number {
    return this.#steps.length;
  }

  add(step: MeasuredStep): void {
    this.#steps.push(step);
  }

  /** What it takes to free and to load a component, measured on purpose: steps swap only where memory is short. */
  addSwap(component: string, cost: SwapCost): void {
    this.#swaps.set(component, cost);
  }

  graph(): FlowGraph {
    return traceFlow(
      this.#steps.flatMap((step) => step.calls),
      this.#batch,
    );
  }

  /**
   * Components that flow nothing, or were never called, cost the flow nothing: they have to be placed all the same.
   * `placed`: where the measured plans have their ranks. Throws as `predictPlan` does.
   */
  build(header: ProfileHeader, traits: ReadonlyMap<string, ComponentTraits>, placed?: PlacedOn): Profile {
    const traced = this.graph();
    const silent = [...traits.keys()].filter((name) => !traced.components[name]);
    const graph = {
      ...traced,
      components: { ...traced.components, ...Object.fromEntries(silent.map((name) => [name, { methods: {} }])) },
    };
    const asked = new Asks(this.#steps.flatMap((step) => step.calls));
    const costs = this.#steps.map(({ calls, layout }) => {
      const used = [...layout.components].map(([name, own]) => {
        const { devicesPerRank = 1 } = traits.get(name) ?? {};
        return [name, { ...own, devices: usedBy(own, devicesPerRank) }] as const;
      });
      return costsOfStep(calls, new Map(used), graph, asked);
    });
    const components: Profile["components"] = {};
    for (const [name, own] of traits) {
      components[name] = profileOf(name, own, costs, graph, this.#swaps.get(name));
    }
    const measured = { ...header, graph, ...this.#sequences(), components, steps: this.wholeSteps() };
    const profile: Profile = { version: 1, ...measured, overheadSeconds: 0 };
    return { ...profile, ...this.#overheads(profile, costs, placed) };
  }

  /** What is left of steps when all that they cost is taken away. */
  #overheads(
    profile: Profile,
    costs: readonly StepCosts[],
    placed: PlacedOn | undefined,
  ): Pick<Profile, "overheadSeconds" | "rankOverheadSeconds" | "baseOverheadSeconds"> {
    const quiet = this.#steps.flatMap((step, at) =>
      costs[at]!.samples.every(({ isContended }) => !isContended) ? [{ ...step, costs: costs[at]! }] : [],
    );
    const replays = new Map<string, number>();
    const left: Point[] = [];
    for (const name of new Set(quiet.map(({ layout }) => layout.name))) {
      const steps = quiet.filter(({ layout }) => layout.name === name);
      const { plan } = steps[0]!.layout;
      const replayed = plan && placed && predictPlan(profile, plan, { ...placed, batch: this.#batch });
      if (plan === undefined || replayed === undefined) continue;
      replays.set(name, replayed);
      const took = stepTimes(steps.map(({ seconds }) => seconds)).seconds;
      left.push({ x: numRanks(plan), y: took - replayed, weight: Math.sqrt(steps.length) });
    }
    const { base, slope } = robustLine(left);
    return {
      overheadSeconds: overheadInTurn(quiet, replays, profile.graph.cycles.length > 0),
      ...(left.length > 0 && { baseOverheadSeconds: base, rankOverheadSeconds: slope }),
    };
  }

  #sequences(): Pick<Profile, "sequences"> {
    const sums = this.#steps.flatMap(({ calls }) => calls.flatMap(({ sequences }) => sequences ?? []));
    const total = (of: (sums: SequenceSums) => number): number => sums.reduce((sum, each) => sum + of(each), 0);
    const count = total((each) => each.count);
    if (count === 0) return {};
    const [log, squares] = [total((each) => each.logResponse[0]), total((each) => each.logResponse[1])];
    const center = log / count;
    return {
      sequences: {
        promptTokens: Math.max(1, Math.round(total(({ promptTokens }) => promptTokens) / count)),
        responseTokens: Math.max(1, Math.round(Math.exp(center))),
        spread: Math.sqrt(Math.max(0, squares / count - center ** 2)),
        maxResponseTokens: sums.reduce((most, { longestResponse }) => Math.max(most, longestResponse), 1),
        perItem: count / (this.#steps.length * this.#batch),
      },
    };
  }

  /** What steps took, by how they ran. */
  wholeSteps(): Profile["steps"] {
    const byLayout = new Map<string, { layout: RunningLayout; seconds: number[] }>();
    for (const { layout, seconds } of this.#steps) {
      const found = byLayout.get(layout.name) ?? { layout, seconds: [] };
      byLayout.set(layout.name, found);
      found.seconds.push(seconds);
    }
    return [...byLayout.values()].map(({ layout: { name, mode, devices, granularity }, seconds }) => ({
      layout: name,
      mode,
      devices,
      granularity,
      ...stepTimes(seconds),
    }));
  }
}

const asShared = <T extends { readonly items: number; readonly wholeItems?: number | undefined }>(sample: T): T => ({
  ...sample,
  items: sample.wholeItems ?? sample.items,
});

/**
 * Of what ranks take on average, of which the busiest one's share in a whole batch is known. Where a batch waits for its longest item,
 * the fit tells that one apart itself.
 */
function fitOf(
  samples: readonly Pick<ProfileSample, "devices" | "items" | "seconds" | "unevenness">[],
  unequal: UnequalItems | undefined,
  once: OnceAStep,
): TimeFit | null {
  const tailed = unequal && fitTime(samples, unequal, once);
  if (tailed?.longest) return tailed;
  return fitTime(
    samples.map(({ seconds, unevenness = 1, ...at }) => ({ ...at, seconds: seconds / unevenness })),
    undefined,
    once,
  );
}

/**
 * Of steps in which components took turns, on most devices: what their replay leaves, as it is what predicts them. Without one, what is left
 * of one component after the other, which says nothing of a cycle.
 */
function overheadInTurn(
  steps: readonly (MeasuredStep & { readonly costs: StepCosts })[],
  replays: ReadonlyMap<string, number>,
  hasCycle: boolean,
): number {
  const inTurn = steps.filter(({ layout }) => layout.mode === "temporal" && layout.granularity === "all");
  const most = Math.max(...inTurn.map(({ layout }) => layout.devices));
  const left = inTurn
    .filter(({ layout }) => layout.devices === most)
    .flatMap(({ seconds, layout, costs }) => {
      const known = replays.get(layout.name) ?? (hasCycle ? undefined : secondsInTurn(costs));
      return known === undefined ? [] : [seconds - known];
    });
  return left.length > 0 ? Math.max(0, median(left)) : 0;
}

/** One component after the other. */
function secondsInTurn(costs: StepCosts): number {
  const { samples, serialSeconds, onloadSeconds, offloadSeconds, askSeconds } = costs;
  const sum = (seconds: Iterable<number>): number => [...seconds].reduce((total, each) => total + each, 0);
  return (
    sum(samples.map(({ seconds }) => seconds)) +
    sum([...serialSeconds.values(), ...onloadSeconds.values(), ...offloadSeconds.values()]) +
    asksPerTurn * sum(askSeconds.values())
  );
}

function profileOf(
  name: string,
  traits: ComponentTraits,
  costs: readonly StepCosts[],
  graph: FlowGraph,
  swap: SwapCost | undefined,
): ComponentProfile {
  const { batch } = graph;
  const perItem = graph.cycles.some((members) => members.includes(name)) ? 0 : takenPerItem(name, graph);
  const own = costs.flatMap((cost) => cost.samples.filter((sample) => sample.component === name));
  const byPoint = new Map<string, typeof own>();
  for (const sample of own) {
    const key = `${sample.devices} ${sample.items}`;
    byPoint.set(key, [...(byPoint.get(key) ?? []), sample]);
  }
  const samples = [...byPoint.values()]
    .map((measured) => {
      const { devices, items } = measured[0] as (typeof own)[number];
      const free = measured.filter((sample) => !sample.isContended);
      const used = free.length > 0 ? free : measured;
      const { mean: seconds, spread, accepted, rejected } = robustMean(used.map((sample) => sample.seconds));
      const contended = free.length === 0;
      const processorShare = median(used.map((sample) => sample.processorShare));
      const uneven = used.flatMap((sample) => sample.unevenness ?? []);
      const wholeItems = perItem > 0 ? sharedOut({ devices, items }, traits.devicesPerRank, perItem).items : items;
      return {
        devices,
        items,
        ...(wholeItems > items ? { wholeItems } : {}),
        seconds,
        spread,
        accepted,
        rejected: rejected + measured.length - used.length,
        contended,
        processorShare,
        ...(uneven.length > 0 ? { unevenness: robustMean(uneven).mean } : {}),
      };
    })
    .toSorted((a, b) => a.devices - b.devices || a.items - b.items);
  if (samples.length === 0) {
    const nothing = {
      items: batch,
      seconds: 0,
      spread: 0,
      accepted: 1,
      rejected: 0,
      contended: false,
      processorShare: 0,
    };
    samples.push({ devices: traits.minDevices, ...nothing });
  }
  const memory = new Map<number, WorkerMemory>();
  for (const cost of costs) {
    const isUsed = cost.samples.some((sample) => sample.component === name);
    const measured = cost.memory.get(name);
    if (!isUsed || !measured) continue;
    const { devices } = measured;
    const known = memory.get(devices);
    if (known === undefined || measured.memoryBytes >= known.memoryBytes) memory.set(devices, measured);
  }
  const middle = (of: (cost: StepCosts) => number | undefined): number => {
    const values = costs.map(of).filter((value) => value !== undefined);
    return values.length > 0 ? median(values) : 0;
  };
  // Chunks cost processors more besides their items than batches do.
  const largest = Math.max(...samples.map(({ items }) => items));
  const isLargest = (cost: StepCosts): boolean =>
    cost.samples.some((sample) => sample.component === name && sample.items === largest);
  const lengthSpread = middle((cost) => cost.lengthSpread.get(name));
  const isUnequal = lengthSpread > smallestSpread;
  const onceSeconds = middle((cost) => cost.onceSeconds.get(name));
  const streams = costs.some((cost) => cost.streams.has(name));
  return {
    ...traits,
    samples,
    fit: fitOf(
      samples.map(asShared),
      isUnequal ? { lengthSpread, devicesPerRank: traits.devicesPerRank, batch, streams } : undefined,
      { seconds: onceSeconds, batch },
    ),
    memory: [...memory].map(([devices, { memoryBytes, tags }]) => {
      return { devices, bytesPerDevice: memoryBytes, ...(tags?.length && { tags }) };
    }),
    ...swapOf([...memory.values()], {
      // Steps in which it was swapped are several; on purpose it is measured once, and for the first time.
      onloadSeconds: middle((cost) => cost.onloadSeconds.get(name)) || (swap?.onloadSeconds ?? 0),
      offloadSeconds: middle((cost) => cost.offloadSeconds.get(name)) || (swap?.offloadSeconds ?? 0),
    }),
    onceSeconds,
    serialSeconds: middle((cost) => cost.serialSeconds.get(name)),
    askSeconds: middle((cost) => cost.askSeconds.get(name)),
    processorSeconds: middle((cost) => (isLargest(cost) ? cost.processorSeconds.get(name) : undefined)),
    ...(isUnequal ? { lengthSpread } : {}),
    ...(streams ? { streams } : {}),
  };
}

/** A step moves some tags only: of all of them the engine says how long it takes. */
function swapOf(memory: readonly WorkerMemory[], measured: SwapCost): SwapCost {
  const tags = memory.at(-1)?.tags;
  if (!tags?.length) return measured;
  return {
    onloadSeconds: tags.reduce((sum, { restoreSeconds }) => sum + restoreSeconds, 0),
    offloadSeconds: tags.reduce((sum, { releaseSeconds }) => sum + releaseSeconds, 0),
  };
}
