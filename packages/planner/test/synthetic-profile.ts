import type { ComponentProfile, DeviceSpec, FlowGraph, Profile } from "@treadle/contracts";

/** `base + perItem * items / devices^alpha` seconds, measured without noise. */
export type Costs = {
  readonly base?: number;
  readonly perItem: number;
  readonly alpha?: number;
} & Partial<Omit<ComponentProfile, "samples" | "fit" | "key">>;

export function componentProfile(costs: Costs, at: { devices: readonly number[]; items: readonly number[] }) {
  const { base = 0, perItem, alpha = 1, ...more } = costs;
  const seconds = (devices: number, items: number): number => base + (perItem * items) / devices ** alpha;
  const profile: ComponentProfile = {
    key: "k",
    devicesPerRank: 1,
    minDevices: 1,
    maxDevices: 65536,
    samples: at.devices.flatMap((devices) =>
      at.items.map((items) => ({
        devices,
        items,
        seconds: seconds(devices, items),
        spread: 0,
        accepted: 5,
        rejected: 0,
        contended: false,
      })),
    ),
    fit: { base, perItem, alpha, relativeError: 0 },
    memory: [],
    onloadSeconds: 0,
    offloadSeconds: 0,
    serialSeconds: 0,
    ...more,
  };
  return profile;
}

/** A chain in the order of the keys: the runner feeds the first, and each feeds the next through `<name>-out`. */
export function chainProfile(components: Readonly<Record<string, Costs>>, batch = 64, devices = [1, 2, 4, 8]): Profile {
  const names = Object.keys(components);
  const channels: FlowGraph["channels"] = {
    input: { producers: [], consumers: [names[0]!], itemsPerStep: batch, bytesPerStep: 0 },
  };
  const edges: FlowGraph["edges"] = [];
  for (const [i, from] of names.slice(0, -1).entries()) {
    const to = names[i + 1]!;
    // Every item becomes four on its way out of the first, as a group of responses does.
    channels[`${from}-out`] = { producers: [from], consumers: [to], itemsPerStep: 4 * batch, bytesPerStep: 0 };
    edges.push({ from, to, channel: `${from}-out`, itemsPerStep: 4 * batch, bytesPerStep: 0 });
  }
  const profile: Profile = {
    version: 1,
    workflow: "w",
    createdAt: "2026-01-01T00:00:00.000Z",
    hardware: { key: "h", description: "" },
    overheadSeconds: 0,
    graph: {
      batch,
      components: Object.fromEntries(
        names.map((name, i) => [
          name,
          {
            methods: {
              run: {
                callsPerStep: 1,
                takes: [i === 0 ? "input" : `${names[i - 1]}-out`],
                puts: i < names.length - 1 ? [`${name}-out`] : [],
              },
            },
          },
        ]),
      ),
      channels,
      edges,
      calls: [],
      cycles: [],
    },
    components: Object.fromEntries(
      Object.entries(components).map(([name, costs]) => [
        name,
        componentProfile(costs, { devices, items: [batch / 8, batch] }),
      ]),
    ),
    steps: [],
  };
  return profile;
}

/** `count` devices of a kind, eight a node. */
export function cluster(count: number, kind = "gpu", memoryGiB = 80): DeviceSpec[] {
  return Array.from({ length: count }, (_, index) => ({
    id: `${kind}:${index}`,
    index,
    node: `n${Math.floor(index / 8)}`,
    kind,
    memoryBytes: memoryGiB * 2 ** 30,
  }));
}
