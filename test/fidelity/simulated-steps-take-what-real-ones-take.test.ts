/**
 * The same plan run by processes and simulated. What sleeps cannot end early, so a real step is never shorter; on a
 * machine that does nothing else it is about as long, and the bound leaves room for one that does. The figures are
 * printed, and `packages/simulation/README.md` has them.
 */
import { Profile } from "@treadle/contracts";
import { simulate } from "@treadle/simulation";
import { expect, test } from "vitest";
import { startCluster } from "../support/cluster.ts";
import * as workers from "../support/workers/sleeping.ts";

const stages = [
  { name: "rollout", itemMs: 80 },
  { name: "inference", itemMs: 30 },
  { name: "actor", itemMs: 50 },
];
const batch = 24;
const measuredSteps = 3;
const channelTo = (at: number) => `to-${stages[at]?.name}`;

function profile(): Profile {
  const channels = stages.map(({ name }, at) => ({
    name: channelTo(at),
    producers: at === 0 ? [] : [stages[at - 1]?.name],
    consumers: [name],
    itemsPerStep: batch,
    bytesPerStep: 0,
  }));
  return Profile.parse({
    version: 1,
    workflow: "sleeping",
    createdAt: "2026-01-01T00:00:00Z",
    hardware: { key: "none", description: "sleep" },
    graph: {
      batch,
      components: Object.fromEntries(
        stages.map(({ name }, at) => {
          const puts = at + 1 < stages.length ? [channelTo(at + 1)] : [];
          return [name, { methods: { pass: { callsPerStep: 1, takes: [channelTo(at)], puts } } }];
        }),
      ),
      channels: Object.fromEntries(channels.map(({ name, ...channel }) => [name, channel])),
      edges: [],
      cycles: [],
    },
    components: Object.fromEntries(
      stages.map(({ name, itemMs }) => [
        name,
        {
          key: name,
          devicesPerRank: 1,
          minDevices: 1,
          maxDevices: 64,
          samples: [
            {
              devices: 1,
              items: batch,
              seconds: (batch * itemMs) / 1000,
              spread: 0,
              accepted: 1,
              rejected: 0,
              contended: false,
            },
          ],
          fit: { base: 0, perItem: itemMs / 1000, alpha: 1, relativeError: 0 },
          memory: [],
          onloadSeconds: 0,
          offloadSeconds: 0,
          serialSeconds: 0,
        },
      ]),
    ),
    steps: [],
  });
}

test.each([
  { mode: "temporal" as const, devices: 2, components: {}, granularity: "auto" as const },
  { mode: "spatial" as const, devices: 4, components: { rollout: "0-1", inference: "2", actor: "3" }, granularity: 2 },
  { mode: "hybrid" as const, devices: 3, components: { rollout: "0-1", "inference,actor": "2" }, granularity: 4 },
])("$mode", async ({ mode, devices, components, granularity }) => {
  const url = new URL("../support/workers/sleeping.ts", import.meta.url).href;
  const config = { cluster: { devices }, placement: { mode, components }, batch, flow: { granularity } };
  const { cluster, close } = await startCluster(config, { url, exports: workers });
  try {
    const groups = [];
    for (const { name, itemMs } of stages)
      groups.push(await cluster.launch(workers.SleepingWorker, { itemMs }, { name }));
    const channels = stages.map((_, at) => cluster.channel(channelTo(at), workers.Piece));
    const plan = cluster.place();
    await cluster.start();
    const seconds: number[] = [];
    for (let step = 0; step <= measuredSteps; step++) {
      cluster.step = step;
      const startedMs = performance.now();
      await channels[0]?.put(...Array.from({ length: batch }, (_, id) => ({ id })));
      const calls = groups.map((group, at) => {
        const source = channels[at]?.source as NonNullable<(typeof channels)[number]>["source"];
        return group.pass(
          source,
          channels.slice(at + 1, at + 2).map((channel) => channel.sink),
        );
      });
      const counts = await Promise.all(calls);
      expect(counts.at(-1)?.reduce((sum, count) => sum + count, 0)).toBe(batch);
      if (step > 0) seconds.push((performance.now() - startedMs) / 1000);
    }
    const real = Math.min(...seconds);
    const simulated = simulate({ profile: profile(), plan, steps: measuredSteps, seed: 1 }).stepSeconds.mean;
    const percent = (100 * (simulated - real)) / real;
    process.stderr.write(
      `${mode}: ${simulated.toFixed(3)} s simulated, ${real.toFixed(3)} s real (${percent.toFixed(1)} %)\n`,
    );
    expect(real).toBeGreaterThan(simulated * 0.98);
    expect(real).toBeLessThan(simulated * 1.3);
  } finally {
    await close();
  }
});
