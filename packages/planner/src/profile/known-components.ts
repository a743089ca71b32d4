/**
 * What other workflows have measured of the components of this one. A component's key says what it is and how it is
 * configured; where it also takes as much of a step, and its items have about as many bytes, what it costs is the same, whatever it works
 * with. Where it is not, what this run has measured of it says so (`disagreements`). Pure.
 */
import type { ComponentProfile, FlowGraph, Profile } from "@treadle/contracts";
import type { ComponentTraits } from "./profile-builder.ts";
import { takenPerItem } from "./whole-items.ts";

export type KnownComponent = {
  readonly profile: ComponentProfile;
  readonly measuredBy: NonNullable<ComponentProfile["measuredBy"]>;
  readonly flow: PartInFlow;
};

/** How a component takes part in a flow, as far as its costs depend on it. */
type PartInFlow = {
  readonly methods: string;
  readonly takenPerItem: number;
  /** bytes of an item of each channel that it uses, all together */
  readonly itemBytes: number;
};

/** What flows differs from step to step, and an average of some from that of others. */
const sameAmount = 0.05;

/** Items of one kind have about as many bytes. */
const sameBytes = 0.25;

/** Of one step, or of a few, seconds are known no better than this. */
export const sameSeconds = 0.25;

/** Components that a profile of the same machines and batch knows, as they were measured last. */
export function knownComponents(
  profiles: readonly Profile[],
  wanted: {
    readonly traits: ReadonlyMap<string, ComponentTraits>;
    readonly hardwareKey: string;
    readonly batch: number;
  },
): Map<string, KnownComponent> {
  const known = new Map<string, KnownComponent>();
  const fitting = profiles.filter(
    ({ hardware, graph }) => hardware.key === wanted.hardwareKey && graph.batch === wanted.batch,
  );
  for (const [name, { key }] of wanted.traits) {
    for (const { workflow, createdAt, components, graph } of fitting) {
      const [there, profile] = Object.entries(components).find(([, component]) => component.key === key) ?? [];
      if (there === undefined || profile === undefined) continue;
      const measuredBy = profile.measuredBy ?? { workflow, createdAt };
      const last = known.get(name);
      if (last !== undefined && last.measuredBy.createdAt >= measuredBy.createdAt) continue;
      known.set(name, { profile, measuredBy, flow: partIn(graph, there) });
    }
  }
  return known;
}

/** Those that do in this flow what they did where they were measured. */
export function knownIn(
  graph: FlowGraph,
  known: ReadonlyMap<string, KnownComponent>,
): ReadonlyMap<string, KnownComponent> {
  const isNear = (a: number, b: number, part: number): boolean => Math.abs(a - b) <= part * Math.max(a, b);
  const isSame = (a: PartInFlow, b: PartInFlow): boolean =>
    a.methods === b.methods &&
    isNear(a.takenPerItem, b.takenPerItem, sameAmount) &&
    isNear(a.itemBytes, b.itemBytes, sameBytes);
  return new Map([...known].filter(([name, { flow }]) => isSame(flow, partIn(graph, name))));
}

/** Calls that use no channel are the workflow's, and where a component may run is what is asked for now. */
export function withKnown(
  profile: Profile,
  known: ReadonlyMap<string, KnownComponent>,
  traits: ReadonlyMap<string, ComponentTraits>,
): Profile {
  const components = Object.entries(profile.components).map(([name, measured]) => {
    const found = known.get(name);
    if (found === undefined) return [name, measured] as const;
    const { profile, measuredBy } = found;
    return [name, { ...profile, ...traits.get(name), measuredBy, serialSeconds: measured.serialSeconds }] as const;
  });
  return { ...profile, components: Object.fromEntries(components) };
}

function partIn(graph: FlowGraph, name: string): PartInFlow {
  const uses = Object.entries(graph.components[name]?.methods ?? {});
  const methods = uses.map(([method, { takes, puts }]) => `${method} ${takes.length} ${puts.length}`);
  const isInCycle = graph.cycles.some((members) => members.includes(name));
  const used = new Set(uses.flatMap(([, { takes, puts }]) => [...takes, ...puts]));
  const bytes = [...used].map((channel) => {
    const { itemsPerStep = 0, bytesPerStep = 0 } = graph.channels[channel] ?? {};
    return itemsPerStep > 0 ? bytesPerStep / itemsPerStep : 0;
  });
  return {
    methods: [...methods.toSorted(), isInCycle].join("; "),
    takenPerItem: takenPerItem(name, graph),
    itemBytes: bytes.reduce((sum, each) => sum + each, 0),
  };
}
