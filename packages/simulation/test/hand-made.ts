/** Profiles and plans written by hand, so that schedules can be computed by hand as well. */
import { type DeviceSpec, type Plan, Profile, type TagMemory } from "@treadle/contracts";
import { resolvePlacement } from "@treadle/planner";

export type Stage = {
  readonly name: string;
  /** seconds for one item on one device; work splits evenly */
  readonly perItem: number;
  readonly base?: number;
  readonly spread?: number;
  readonly onloadSeconds?: number;
  readonly offloadSeconds?: number;
  readonly serialSeconds?: number;
  readonly bytes?: number;
  readonly tags?: readonly TagMemory[];
  readonly askSeconds?: number;
};

/** Stages in a row: the runner fills `to-<first>`, each stage feeds the next, the last one puts nothing. */
export function chainProfile(stages: readonly Stage[], batch: number): Profile {
  const channelTo = (at: number) => `to-${stages[at]?.name}`;
  const components: Record<string, unknown> = {};
  const methods: Record<string, unknown> = {};
  const channels: Record<string, unknown> = {};
  for (const [at, stage] of stages.entries()) {
    const { name, perItem, base = 0, spread = 0, onloadSeconds = 0, offloadSeconds = 0, serialSeconds = 0 } = stage;
    const puts = at + 1 < stages.length ? [channelTo(at + 1)] : [];
    methods[name] = { methods: { [`do-${name}`]: { callsPerStep: 1, takes: [channelTo(at)], puts } } };
    channels[channelTo(at)] = {
      producers: at === 0 ? [] : [stages[at - 1]?.name],
      consumers: [name],
      itemsPerStep: batch,
      bytesPerStep: 0,
    };
    components[name] = {
      key: name,
      devicesPerRank: 1,
      minDevices: 1,
      maxDevices: 65536,
      samples: [
        {
          devices: 1,
          items: batch,
          seconds: base + perItem * batch,
          spread,
          accepted: 5,
          rejected: 0,
          contended: false,
        },
      ],
      fit: { base, perItem, alpha: 1, relativeError: 0 },
      memory: stage.bytes === undefined ? [] : [{ devices: 1, bytesPerDevice: stage.bytes, tags: stage.tags }],
      onloadSeconds,
      offloadSeconds,
      serialSeconds,
      ...(stage.askSeconds === undefined ? {} : { askSeconds: stage.askSeconds }),
    };
  }
  const edges = stages.slice(1).map((stage, i) => ({
    from: stages[i]?.name,
    to: stage.name,
    channel: channelTo(i + 1),
    itemsPerStep: batch,
    bytesPerStep: 0,
  }));
  return Profile.parse({
    version: 1,
    workflow: "by-hand",
    createdAt: "2026-01-01T00:00:00Z",
    hardware: { key: "none", description: "imagined" },
    graph: { batch, components: methods, channels, edges, cycles: [] },
    components,
    steps: [],
  });
}

export function virtualDevices(count: number, memoryBytes = Number.MAX_SAFE_INTEGER): DeviceSpec[] {
  return Array.from({ length: count }, (_, index) => ({
    id: `gpu:${index}`,
    index,
    node: "node:0",
    kind: "gpu",
    memoryBytes,
  }));
}

export function placed(
  profile: Profile,
  mode: Plan["mode"],
  devices: number,
  options: {
    readonly granularity?: number | "all";
    readonly maxStaleness?: number;
    readonly explicit?: Readonly<Record<string, string>>;
  } = {},
): Plan {
  return resolvePlacement({
    mode,
    components: Object.keys(profile.graph.components).map((name) => ({ name })),
    devices: virtualDevices(devices),
    batchItems: profile.graph.batch,
    granularity: options.granularity ?? "auto",
    maxStaleness: options.maxStaleness ?? 0,
    ...(options.explicit ? { explicit: { ...options.explicit } } : {}),
  });
}
