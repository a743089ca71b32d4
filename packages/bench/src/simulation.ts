/** What deciding and simulating cost: up to a thousand devices, three components. */
import { type Plan, Profile } from "@treadle/contracts";
import { resolvePlacement } from "@treadle/planner";
import { simulate } from "@treadle/simulation";
import { type BenchRow, row } from "./row.ts";

const steps = 10;
const numDevices = 1024;
const stages = [
  { name: "rollout", perItem: 40, base: 2 },
  { name: "inference", perItem: 10, base: 1 },
  { name: "actor", perItem: 30, base: 3 },
];

const placements = {
  temporal: {},
  spatial: { rollout: "0-511", inference: "512-639", actor: "640-1023" },
  hybrid: { rollout: "0-511", "inference,actor": "512-1023" },
} as const;

/** What a run's decisions cost, whoever asks for them: `RunnerState` and the simulated processes that feed it. */
export function* benchCore(): Generator<BenchRow> {
  const inTurn = (count: number) => placed("temporal", count, {});
  const inFlow = (count: number) => {
    const [second, third] = [count / 2, (count * 3) / 4];
    const explicit = {
      rollout: `0-${second - 1}`,
      inference: `${second}-${third - 1}`,
      actor: `${third}-${count - 1}`,
    };
    return placed("spatial", count, explicit);
  };
  for (const [mode, plan, few, many] of [
    ["temporal", inTurn, 22, 342],
    ["spatial", inFlow, 64, 1024],
  ] as const) {
    const [profile, small] = plan(few);
    stepOf(profile, small); // compiled code, as in a run that lasts
    const fewer = stepOf(profile, small);
    const more = stepOf(...plan(many));
    yield row({
      name: `a step of ${fewer.ranks} ranks decided, ${mode}`,
      value: fewer.ms,
      unit: "ms",
      notMeasured: "messages",
    });
    yield row({
      name: `a step of ${more.ranks} ranks decided, ${mode}`,
      value: more.ms,
      unit: "ms",
      baseline: (fewer.ms * more.ranks) / fewer.ranks,
      against: `${more.ranks} ranks at what each of ${fewer.ranks} costs`,
      notMeasured: "messages; ranks that hold one state together",
    });
  }
}

/** Milliseconds of processor time a step. */
function stepOf(profile: Profile, plan: Plan): { readonly ms: number; readonly ranks: number } {
  const before = process.cpuUsage();
  const { components } = simulate({ profile, plan, steps, seed: 1 });
  const { user, system } = process.cpuUsage(before);
  const ranks = Object.values(components).reduce((sum, component) => sum + component.ranks, 0);
  return { ms: (user + system) / 1e3 / steps, ranks };
}

function placed(mode: "temporal" | "spatial" | "hybrid", count: number, explicit: Readonly<Record<string, string>>) {
  const profile = chainOf(count * 4);
  const devices = Array.from({ length: count }, (_, index) => {
    return { id: `gpu:${index}`, index, node: "virtual", kind: "gpu", memoryBytes: Number.MAX_SAFE_INTEGER };
  });
  const plan = resolvePlacement({
    mode,
    components: stages.map(({ name }) => ({ name })),
    ...(mode === "temporal" ? {} : { explicit }),
    devices,
    batchItems: profile.graph.batch,
    granularity: mode === "temporal" ? "all" : 1,
    maxStaleness: 0,
  });
  return [profile, plan] as const;
}

/** Processor time, so that what else runs here counts less. Some seconds in all. */
export function* benchSimulation(): Generator<BenchRow> {
  for (const mode of ["temporal", "spatial", "hybrid"] as const) {
    const [profile, plan] = placed(mode, numDevices, placements[mode]);
    const before = process.cpuUsage();
    const { totalSeconds, components } = simulate({ profile, plan, steps, seed: 1 });
    const { user, system } = process.cpuUsage(before);
    const value = (user + system) / 1e6;
    const ranks = Object.values(components).reduce((sum, component) => sum + component.ranks, 0);
    yield row({
      name: `${steps} steps of rollout, inference and actor on ${numDevices} devices (${ranks} ranks), ${mode}`,
      value,
      unit: "s",
      baseline: totalSeconds,
      against: "the run that it stands for",
      notMeasured: "planning; what the figures mean, see test/fidelity",
    });
  }
}

function chainOf(batch: number): Profile {
  const channelTo = (at: number) => `to-${stages[at]?.name}`;
  const moved = { itemsPerStep: batch, bytesPerStep: 0 };
  const sample = { accepted: 5, rejected: 0, contended: false, spread: 0.05 };
  return Profile.parse({
    version: 1,
    workflow: "bench",
    createdAt: "2026-01-01T00:00:00Z",
    hardware: { key: "none", description: "imagined" },
    graph: {
      batch,
      components: Object.fromEntries(
        stages.map(({ name }, at) => {
          const puts = at + 1 < stages.length ? [channelTo(at + 1)] : [];
          return [name, { methods: { run: { callsPerStep: 1, takes: [channelTo(at)], puts } } }];
        }),
      ),
      channels: Object.fromEntries(
        stages.map(({ name }, at) => [
          channelTo(at),
          { producers: stages.slice(at - 1, at).map((stage) => stage.name), consumers: [name], ...moved },
        ]),
      ),
      edges: stages
        .slice(1)
        .map(({ name }, i) => ({ from: stages[i]?.name, to: name, channel: channelTo(i + 1), ...moved })),
      cycles: [],
    },
    components: Object.fromEntries(
      stages.map(({ name, perItem, base }) => [
        name,
        {
          key: name,
          devicesPerRank: 1,
          minDevices: 1,
          maxDevices: 65536,
          samples: [1, 64].map((devices) => ({
            ...sample,
            devices,
            items: batch,
            seconds: base + (perItem * batch) / devices,
          })),
          fit: { base, perItem, alpha: 1, relativeError: 0 },
          memory: [],
          onloadSeconds: 1,
          offloadSeconds: 1,
          serialSeconds: 0.5,
        },
      ]),
    ),
    steps: [],
  });
}
