/** A plan, a flow graph and a profile made ready to run: who has which ranks, takes and puts how much, in which order. */
import { type ComponentProfile, type Granularity, type Plan, type Profile, TreadleError } from "@treadle/contracts";
import {
  type ComponentLayout,
  type CycleModel,
  cycleOf,
  type Flow,
  itemSpread,
  layoutOf,
  overheadOf,
  usedBy,
} from "@treadle/planner";

export type MethodModel = {
  readonly name: string;
  readonly takes: readonly Flow[];
  readonly puts: readonly Flow[];
  /** of the component's seconds */
  readonly share: number;
  readonly cycle: CycleModel | undefined;
};

export type RankModel = { readonly worker: string; readonly devices: readonly string[] };

export type ComponentModel = {
  readonly name: string;
  readonly profile: ComponentProfile;
  readonly ranks: readonly RankModel[];
  /** distinct devices that its ranks use, all together */
  readonly numDevices: number;
  /** ranks that can compute at the same time: devices, in units of what a rank spans */
  readonly concurrency: number;
  /** its ranks get their devices together, and a call ends on all of them at once */
  readonly isGang: boolean;
  /** of what an item takes, as the standard deviation of its logarithm, where the longest of a batch rules */
  readonly lengthSpread: number;
  /** the same where sums do, as of ranks of one item: by how much ranks differ that have as many */
  readonly itemSpread: number;
  readonly serialMs: number;
  readonly methods: readonly MethodModel[];
};

export type WorkflowModel = {
  readonly batch: number;
  /** in the order of their first call in a step */
  readonly components: readonly ComponentModel[];
  readonly channels: readonly string[];
  /** channels that the runner fills at the start of a step */
  readonly inputs: readonly Flow[];
  /** channels that nobody but the runner empties */
  readonly outputs: readonly string[];
  /** of a step, besides its components */
  readonly overheadMs: number;
  readonly hasCycles: boolean;
  /** true when every order between calls is one of producers and consumers, so L2 can be judged strictly */
  readonly isOrderPlain: boolean;
  granularityOf(channel: string): Granularity;
  /** whether it may be full, so that its ends take turns chunk by chunk */
  isBounded(channel: string): boolean;
};

/** What is assumed of a component instead of what its profile says. */
export type ComponentTraits = {
  readonly gang?: boolean | undefined;
  readonly lengthSpread?: number | undefined;
  /** false: its methods lock no devices, as tools on processors */
  readonly locks?: boolean | undefined;
};

/** `capacity`: of each channel. Throws `problem.invalid` where plan, graph and profile do not fit together. */
export function modelWorkflow(
  plan: Plan,
  profile: Profile,
  traits: Readonly<Record<string, ComponentTraits>>,
  capacity = Number.POSITIVE_INFINITY,
): WorkflowModel {
  const { graph } = profile;
  const names = Object.keys(graph.components);
  checkNames(plan, profile, Object.keys(traits));
  const layouts = layoutOf(plan).components;
  const components = names.map((name): ComponentModel => {
    const measured = profile.components[name] as ComponentProfile;
    const ranks = (plan.components[name] as Plan["components"][string]).ranks;
    const layout = layouts.get(name) as ComponentLayout;
    const numDevices = usedBy(layout, measured.devicesPerRank);
    return {
      name,
      profile: measured,
      ranks: ranks.map(({ devices }, index) => {
        return { worker: `${name}/${index}`, devices: traits[name]?.locks === false ? [] : devices };
      }),
      numDevices,
      concurrency: Math.min(
        ranks.length,
        layout.devices / Math.max(1, (ranks[0] as { devices: string[] }).devices.length),
      ),
      isGang: traits[name]?.gang ?? measured.gang ?? false,
      lengthSpread: traits[name]?.lengthSpread ?? (measured.fit?.longest ? (measured.lengthSpread ?? 0) : 0),
      itemSpread: itemSpread(measured, layout.devices),
      serialMs: measured.serialSeconds * 1000,
      methods: methodsOf(name, profile),
    };
  });
  const channels = Object.entries(graph.channels);
  return {
    batch: graph.batch,
    components,
    channels: channels.map(([name]) => name),
    inputs: channels
      .filter(([, { producers }]) => producers.length === 0)
      .map(([channel, { itemsPerStep }]) => ({ channel, items: Math.round(itemsPerStep) })),
    outputs: channels.filter(([, { consumers }]) => consumers.length === 0).map(([channel]) => channel),
    overheadMs: overheadOf(profile, plan) * 1000,
    hasCycles: graph.cycles.length > 0,
    isOrderPlain: graph.cycles.length === 0 && components.every((component) => !component.isGang),
    isBounded: (channel) =>
      plan.capacity?.[channel] !== undefined || (graph.channels[channel]?.itemsPerStep ?? 0) > capacity,
    granularityOf: (channel) => plan.granularity.channels[channel] ?? plan.granularity.default,
  };
}

function checkNames(plan: Plan, { graph, components, workflow }: Profile, described: readonly string[]): void {
  const again = `measure again with 'treadle profile ${workflow}'`;
  const list = (names: readonly string[]) => names.map((name) => `'${name}'`).join(", ") || "none";
  const known = Object.keys(graph.components);
  const invalid = (message: string) => new TreadleError("problem.invalid", message);
  if (known.length === 0) throw invalid(`the profile of '${workflow}' has no component that flows anything; ${again}`);
  const unmeasured = known.filter((name) => !Object.hasOwn(components, name));
  if (unmeasured.length > 0)
    throw invalid(`the profile of '${workflow}' has no times of ${list(unmeasured)}; ${again}`);
  const strange = [...Object.keys(plan.components), ...described].filter((name) => !known.includes(name));
  if (strange.length > 0)
    throw invalid(`the profile of '${workflow}' does not know ${list(strange)}; it has ${list(known)}; ${again}`);
  const unplaced = known.filter((name) => !Object.hasOwn(plan.components, name));
  if (unplaced.length > 0)
    throw invalid(`the plan has no place for ${list(unplaced)} of the profile of '${workflow}'; plan again`);
}

function methodsOf(component: string, { graph }: Profile): MethodModel[] {
  const methods = Object.entries(graph.components[component]?.methods ?? {}).filter(
    ([, { takes, puts }]) => takes.length + puts.length > 0,
  );
  return methods.map(([name, { takes, puts }]) => {
    const flows = (channels: readonly string[], role: "producers" | "consumers"): Flow[] =>
      channels.map((channel) => {
        const moved = graph.channels[channel];
        if (!moved)
          throw new TreadleError(
            "problem.invalid",
            `graph: '${component}.${name}' uses no known channel by '${channel}'`,
          );
        return { channel, items: Math.round(moved.itemsPerStep / Math.max(1, moved[role].length)) };
      });
    const model = { name, takes: flows(takes, "consumers"), puts: flows(puts, "producers"), share: 1 / methods.length };
    return { ...model, cycle: cycleOf(component, model.takes, model.puts, graph) };
  });
}
