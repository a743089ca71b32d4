import type { TagMemory, WorkerMemory } from "@treadle/contracts";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { dealOf, expectedBusiest, expectedLongest, spreadOfRatio } from "../../src/profile/longest-item.ts";
import { ProfileBuilder } from "../../src/profile/profile-builder.ts";
import { robustMean } from "../../src/profile/robust-mean.ts";
import type { RunningLayout } from "../../src/profile/running-layout.ts";
import { fitTime, fittedSeconds } from "../../src/profile/time-fit.ts";
import { lognormals } from "./lognormals.ts";
import { observed } from "./observed-calls.ts";

const header = {
  workflow: "test",
  createdAt: "2026-01-01T00:00:00Z",
  hardware: { key: "k", description: "a machine" },
};
const traits = new Map([["rollout", { key: "r", devicesPerRank: 1, minDevices: 1, maxDevices: 4 }]]);

function layout(devices: number, ranks: number, isOnProcessors = true): RunningLayout {
  const components = new Map([["rollout", { devices, ranks, isOnProcessors }]]);
  return { mode: "temporal", granularity: "all", devices, components, name: `${devices} ${ranks}` };
}

function profileOf(steps: Parameters<ProfileBuilder["add"]>[0][], batch = 8) {
  const builder = new ProfileBuilder(batch);
  for (const step of steps) builder.add(step);
  return builder.build(header, traits);
}

describe("a profile", () => {
  test("takes the busiest rank where the batch was handled whole", () => {
    const calls = [100, 140].map((busyMs, rank) =>
      observed({ component: "rollout", rank, busyMs }, { takes: [{ channel: "prompts", items: 4 }] }),
    );
    const { components } = profileOf([{ layout: layout(2, 2), seconds: 1, calls }]);
    expect(components["rollout"]?.samples).toMatchObject([{ devices: 2, items: 8, seconds: 0.14 }]);
  });

  test("says how long sequences were that a model has sampled, and nothing where none says so", () => {
    const step = (tokens: readonly number[]) => {
      const logs = tokens.map(Math.log);
      const sum = (power: number) => logs.reduce((all, each) => all + each ** power, 0);
      const sequences = {
        count: tokens.length,
        promptTokens: 10 * tokens.length,
        logResponse: [sum(1), sum(2)] as [number, number],
        longestResponse: Math.max(...tokens),
      };
      return { layout: layout(1, 1), seconds: 1, calls: [observed({ component: "rollout", sequences })] };
    };
    const lengths = [...Array.from({ length: 12 }, () => 100), ...Array.from({ length: 12 }, () => 400)];
    const { sequences } = profileOf([step(lengths.slice(0, 16)), step(lengths.slice(16))], 4);
    expect(sequences).toEqual({
      promptTokens: 10,
      responseTokens: 200,
      spread: expect.closeTo(Math.log(2), 6),
      maxResponseTokens: 400,
      perItem: 3,
    });
    expect(profileOf([{ ...step([1]), calls: [observed({ component: "rollout" })] }]).sequences).toBeUndefined();
  });

  test("knows by how much ranks differ that have as many items, and nothing of a single one or of chunks", () => {
    const unevennessOf = (ranks: readonly (readonly [busyMs: number, items: number])[]) => {
      const calls = ranks.map(([busyMs, items], rank) =>
        observed(
          { component: "rollout", rank, busyMs },
          { takes: [{ channel: "prompts", items }], puts: [{ channel: "episodes", items: 3 * items }] },
        ),
      );
      const { components } = profileOf([{ layout: layout(ranks.length, ranks.length), seconds: 1, calls }]);
      return components["rollout"]?.samples[0]?.unevenness;
    };
    expect(
      unevennessOf([
        [100, 4],
        [140, 4],
      ]),
    ).toBeCloseTo(140 / 120, 9);
    expect(
      unevennessOf([
        [100, 4],
        [50, 2],
      ]),
      "of equal shares",
    ).toBeCloseTo(4 / 3, 9);
    expect(
      unevennessOf([
        [80, 4],
        [90, 3],
      ]),
      "no more than if it had had the largest share",
    ).toBe(1);
    expect(
      unevennessOf([
        [100, 4],
        [0, 0],
      ]),
    ).toBeUndefined();
    expect(unevennessOf([[100, 8]])).toBeUndefined();
  });

  test("knows whose items go on one by one", () => {
    const streamsOf = (streamed: boolean) => {
      const call = observed({ component: "rollout" }, { takes: [{ channel: "prompts", items: 4 }] });
      const channels = call.channels.map((channel) => ({ ...channel, ...(streamed ? { streamed } : {}) }));
      const { components } = profileOf([{ layout: layout(1, 1), seconds: 1, calls: [{ ...call, channels }] }]);
      return components["rollout"]?.streams;
    };
    expect([streamsOf(true), streamsOf(false)]).toEqual([true, undefined]);
  });

  test("takes one chunk over all ranks where it was handled in chunks, with its share of what is done once", () => {
    const call = observed(
      { component: "rollout", busyMs: 100 },
      { takes: [{ channel: "prompts", items: 8 }], chunks: 4 },
    );
    const batches = [{ channel: "prompts", items: 2, times: 4, busyMs: 80 }];
    const { components } = profileOf([{ layout: layout(1, 1), seconds: 1, calls: [{ ...call, batches }] }]);
    expect(components["rollout"]?.samples).toMatchObject([{ devices: 1, items: 2, seconds: 0.025 }]);
  });

  test("where chunks are fewer than ranks, those without one have no part in what the batch took; their memory is theirs", () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 2, max: 24 }),
        fc.integer({ min: 2, max: 8 }),
        fc.integer({ min: 1, max: 60 }),
        fc.double({ min: 1, max: 50, noNaN: true }),
        (ranks, chunk, batch, perItemMs) => {
          const working = Math.ceil(batch / chunk);
          fc.pre(working < ranks);
          const step = (sizes: readonly number[]) => ({
            layout: { ...layout(ranks, ranks), name: sizes.join() },
            seconds: 1,
            calls: sizes.map((items, rank) => {
              const call = observed(
                { component: "rollout", rank, busyMs: perItemMs * items, memoryBytes: 1e9 },
                { takes: items > 0 ? [{ channel: "prompts", items }] : [] },
              );
              return items > 0 ? call : { ...call, channels: [{ ...noItems }] };
            }),
          });
          const noItems = { channel: "prompts", role: "source", items: 0, bytes: 0, times: 0, waitMs: 0 } as const;
          const inChunks = Array.from({ length: ranks }, (_, i) => Math.max(0, Math.min(chunk, batch - i * chunk)));
          const shared = Array.from({ length: ranks }, (_, i) => Math.ceil((batch - i) / ranks));
          const { samples, memory } = profileOf([step(inChunks), step(shared)], batch).components["rollout"]!;
          const secondsOn = (devices: number) => samples.find((sample) => sample.devices === devices)?.seconds;
          const busiest = Math.min(chunk, batch);
          expect(secondsOn(ranks)).toBeCloseTo((perItemMs * Math.ceil(batch / ranks)) / 1000, 9);
          if (busiest > Math.ceil(batch / ranks))
            expect(secondsOn(working)).toBeCloseTo((perItemMs * busiest) / 1000, 9);
          expect(memory).toEqual([{ devices: ranks, bytesPerDevice: 1e9 }]);
        },
      ),
      { numRuns: 100 },
    );
  });

  test("knows that ranks take whole items: odd counts do not bend the law that is fitted", () => {
    fc.assert(
      fc.property(
        fc.integer({ min: 9, max: 80 }),
        fc.double({ min: 1, max: 50, noNaN: true }),
        fc.integer({ min: 0, max: 40 }),
        (batch, perItemMs, baseMs) => {
          const steps = [2, 3, 5, 7].map((ranks, step) => {
            const calls = Array.from({ length: ranks }, (_, rank) => {
              const items = Math.floor(((rank + 1) * batch) / ranks) - Math.floor((rank * batch) / ranks);
              const busyMs = baseMs + perItemMs * items;
              return observed({ component: "rollout", rank, busyMs, step }, { takes: [{ channel: "prompts", items }] });
            });
            return { layout: layout(ranks, ranks), seconds: 1, calls };
          });
          const wide = new Map([["rollout", { key: "r", devicesPerRank: 1, minDevices: 1, maxDevices: 7 }]]);
          const builder = new ProfileBuilder(batch);
          for (const step of steps) builder.add(step);
          const { components } = builder.build(header, wide);
          expect(components["rollout"]?.fit?.relativeError).toBeLessThan(0.002);
          expect(components["rollout"]?.fit?.alpha).toBe(1);
        },
      ),
      { numRuns: 60 },
    );
  });

  test("has what it costs to ask in every sample, by the rank that waited for nothing, and by itself", () => {
    const flow = { takes: [{ channel: "prompts", items: 4 }], puts: [{ channel: "episodes", items: 4 }] };
    const calls = [3, 50].map((askMs, rank) => {
      const call = observed({ component: "rollout", rank }, flow);
      return { ...call, channels: call.channels.map((each) => ({ ...each, askMs: each.role === "sink" ? 1 : askMs })) };
    });
    const { components } = profileOf([{ layout: layout(2, 2), seconds: 1, calls }]);
    expect(components["rollout"]).toMatchObject({
      askSeconds: 0.002,
      samples: [{ seconds: expect.closeTo(0.104, 9) }],
    });
  });

  test("knows what it costs to ask where a whole batch is waited for in every step, from those in which it is not", () => {
    fc.assert(
      fc.property(
        fc.double({ min: 0.1, max: 5, noNaN: true }),
        fc.array(fc.double({ min: 20, max: 500, noNaN: true }), { minLength: 1, maxLength: 5 }),
        (askMs, waitsMs) => {
          const step = (ms: number, chunks: number) => {
            const call = observed({ component: "rollout" }, { takes: [{ channel: "prompts", items: 8 }], chunks });
            const channels = call.channels.map((each) => ({ ...each, askMs: ms }));
            return { layout: layout(1, 1), seconds: 1, calls: [{ ...call, channels }] };
          };
          const { components } = profileOf([...waitsMs.map((ms) => step(ms, 1)), step(askMs, 4)]);
          // Four times the items cost no more than four times as much.
          const isKnown = waitsMs.every((ms) => ms > 8 * askMs);
          const most = isKnown ? 4 * askMs : Math.max(...waitsMs);
          const whole = components["rollout"]?.samples.find(({ items }) => items === 8);
          expect(whole?.seconds).toBeGreaterThanOrEqual(0.1 + askMs / 1000 - 1e-9);
          expect(whole?.seconds).toBeLessThanOrEqual(0.1 + most / 1000 + 1e-9);
        },
      ),
    );
  });

  test("has the swaps of steps, which are several, and those measured on purpose of what no step swaps", () => {
    const flow = { takes: [{ channel: "prompts", items: 8 }] };
    const swaps = (
      onloadMs: number,
      offloadMs: number,
      builder = new ProfileBuilder(8),
      memory: Partial<WorkerMemory> = {},
    ) => {
      for (let step = 0; step < 3; step++)
        builder.add({
          layout: layout(2, 2),
          seconds: 1,
          calls: [observed({ component: "rollout", onloadMs, offloadMs, ...memory }, flow)],
        });
      builder.addSwap("rollout", { onloadSeconds: 0.5, offloadSeconds: 0.7 });
      return builder.build(header, traits).components.rollout;
    };
    expect(swaps(10, 20)).toMatchObject({ onloadSeconds: 0.01, offloadSeconds: 0.02 });
    expect(swaps(0, 0)).toMatchObject({ onloadSeconds: 0.5, offloadSeconds: 0.7 });
    // A step moves some tags; a profile has the seconds of all, and the memory of each.
    const tags: TagMemory[] = [
      { tag: "weights", bytes: 60, releaseSeconds: 1, restoreSeconds: 2 },
      { tag: "cache", bytes: 30, releaseSeconds: 0, restoreSeconds: 0.5 },
    ];
    expect(swaps(10, 20, new ProfileBuilder(8), { memoryBytes: 100, tags })).toMatchObject({
      memory: [{ devices: 2, bytesPerDevice: 100, tags }],
      onloadSeconds: 2.5,
      offloadSeconds: 1,
    });
  });

  test("has what steps in turns took besides their components, where nobody disturbed them", () => {
    const step = (
      seconds: number,
      cost: { mode?: RunningLayout["mode"]; devices?: number; queuedMs?: number } = {},
    ) => {
      const { mode = "temporal", devices = 2, queuedMs = 0 } = cost;
      const flow = { takes: [{ channel: "prompts", items: 8 }] };
      const call = observed({ component: "rollout", onloadMs: 10, offloadMs: 20, cpuMs: 99, queuedMs }, flow);
      const channels = call.channels.map((each) => ({ ...each, askMs: 1 }));
      const pull = observed({ component: "rollout", method: "pull", busyMs: 50, onloadMs: 10, queuedMs: 0 });
      return { layout: { ...layout(devices, devices), mode }, seconds, calls: [{ ...call, channels }, pull] };
    };
    // 100 of work, one take in it, 50 before it, a swap of 30, and three messages for the turn.
    const known = 0.1 + 0.001 + 0.05 + 0.03 + 3 * 0.001;
    const disturbed = step(3, { queuedMs: 50 });
    const others = [step(2, { mode: "spatial" }), step(2.5, { devices: 1 }), disturbed];
    const { overheadSeconds } = profileOf([...others, ...[0.9, 0.5, 0.6].map((seconds) => step(seconds))]);
    expect(overheadSeconds, "what it takes in most").toBeCloseTo(0.6 - known, 9);
    expect(profileOf([step(known / 2)]).overheadSeconds, "steps that overlap").toBe(0);
    expect(profileOf([disturbed]).overheadSeconds, "nothing else is known").toBe(0);
    const both = { takes: [{ channel: "prompts", items: 8 }], puts: [{ channel: "prompts", items: 8 }] };
    const inCycle = [
      observed({ component: "rollout" }, both),
      observed({ component: "simulator" }, { takes: both.puts, puts: both.takes }),
    ];
    expect(profileOf([{ ...step(2), calls: inCycle }]), "a cycle").toMatchObject({
      graph: { cycles: [expect.anything()] },
      overheadSeconds: 0,
    });
  });

  test("rejects samples taken while others used the processors; where all were, processor seconds count", () => {
    const step = (busyMs: number, cpuMs: number, isOnProcessors = true) => ({
      layout: layout(1, 1, isOnProcessors),
      seconds: 1,
      calls: [observed({ component: "rollout", busyMs, cpuMs }, { takes: [{ channel: "prompts", items: 8 }] })],
    });
    const mixed = profileOf([step(100, 99), step(180, 95), step(102, 101)]).components["rollout"]?.samples;
    expect(mixed).toMatchObject([{ seconds: 0.101, rejected: 1, contended: false }]);
    const busy = profileOf([step(180, 95), step(190, 96)]).components["rollout"]?.samples;
    expect(busy).toMatchObject([{ seconds: 0.0955, rejected: 0, contended: true }]);
    const asleep = profileOf([step(180, 1)]).components["rollout"]?.samples;
    expect(asleep).toMatchObject([{ seconds: 0.18, contended: false }]);
    const elsewhere = profileOf([step(180, 90, false)]).components["rollout"]?.samples;
    expect(elsewhere, "an accelerator, driven by a processor").toMatchObject([{ seconds: 0.18, contended: false }]);
  });

  test("where waiting for a processor is counted, work that waits for something else keeps its time", () => {
    const samplesOf = (cost: { busyMs: number; cpuMs: number; queuedMs: number }) => {
      const call = observed({ component: "rollout", ...cost }, { takes: [{ channel: "prompts", items: 8 }] });
      return profileOf([{ layout: layout(1, 1), seconds: 1, calls: [call] }]).components["rollout"]?.samples;
    };
    expect(samplesOf({ busyMs: 200, cpuMs: 100, queuedMs: 2 })).toMatchObject([
      { seconds: 0.2, processorShare: 0.5, contended: false },
    ]);
    expect(samplesOf({ busyMs: 400, cpuMs: 100, queuedMs: 200 })).toMatchObject([
      { seconds: 0.2, processorShare: 0.5, contended: true },
    ]);
  });

  test("slots beyond a rank's own are no devices of it, since a process computes on one; other devices are", () => {
    const flow = { takes: [{ channel: "prompts", items: 4 }] };
    const devicesOf = (isOnProcessors: boolean) => {
      const calls = [0, 1].map((rank) => observed({ component: "rollout", rank }, flow));
      const step = { layout: layout(4, 2, isOnProcessors), seconds: 1, calls };
      return profileOf([step]).components["rollout"]?.samples.map(({ devices }) => devices);
    };
    expect(devicesOf(true)).toEqual([2]);
    expect(devicesOf(false)).toEqual([4]);
  });

  test("keeps calls that use no channel apart, as serial work", () => {
    const calls = [
      observed({ component: "rollout", busyMs: 100 }, { takes: [{ channel: "prompts", items: 8 }] }),
      observed({ component: "rollout", method: "pullWeights", busyMs: 7 }),
    ];
    const { components } = profileOf([{ layout: layout(1, 1), seconds: 1, calls }]);
    expect(components["rollout"]).toMatchObject({ serialSeconds: 0.007, samples: [{ seconds: 0.1 }] });
  });
});

test("outliers are rejected and the rest is summed up", () => {
  expect(robustMean([10, 11, 9, 10, 50])).toEqual({ mean: 10, spread: 0.05, accepted: 4, rejected: 1 });
  // Three alike by chance make no outlier of a fourth that differs as steps do.
  expect(robustMean([10, 10, 10, 12])).toMatchObject({ mean: 10.5, rejected: 0 });
});

test("how ranks differ is known by how much longer the busiest takes than all do on average", () => {
  fc.assert(
    fc.property(fc.integer({ min: 2, max: 64 }), fc.double({ min: 0, max: 1, noNaN: true }), (ranks, spread) => {
      const ratio = expectedLongest(ranks, spread) / expectedLongest(1, spread);
      expect(spreadOfRatio(ranks, ratio)).toBeCloseTo(spread, 2);
    }),
  );
  expect([spreadOfRatio(1, 1.5), spreadOfRatio(8, 1)]).toEqual([0, 0]);
});

test("the busiest rank is expected to take what it takes on average, as drawn, of items that divide well or badly", () => {
  const drawn = lognormals(9);
  for (const [items, ranks, spread] of [
    [66, 13, 0.3],
    [3, 2, 0.5],
    [22, 4, 0.2],
    [5, 8, 0.4],
    [64, 8, 0.3],
  ] as const) {
    const deal = dealOf(items, ranks);
    const counts = Array.from({ length: deal.ranks }, (_, rank) => deal.most - (rank < deal.numMost ? 0 : 1));
    expect(counts.reduce((sum, each) => sum + each, 0)).toBe(items);
    const rounds = 10_000;
    let sum = 0;
    for (let i = 0; i < rounds; i++)
      sum += Math.max(
        ...counts.map((count) => (count / deal.most) * drawn(spread * Math.sqrt(deal.most / Math.max(1, count)))),
      );
    expect(Math.abs(expectedBusiest(deal, spread) / (sum / rounds) - 1), `${items} on ${ranks}`).toBeLessThan(0.02);
  }
});

test("a fit finds the law that made the points", () => {
  const law = fc.record({
    base: fc.double({ min: 0, max: 10, noNaN: true }),
    perItem: fc.double({ min: 0.01, max: 5, noNaN: true }),
    alpha: fc.integer({ min: 0, max: 50 }).map((n) => n / 50),
  });
  fc.assert(
    fc.property(law, ({ base, perItem, alpha }) => {
      const at = (devices: number, items: number) => base + (perItem * items) / devices ** alpha;
      const points = [1, 2, 4].flatMap((devices) =>
        [4, 16].map((items) => ({ devices, items, seconds: at(devices, items) })),
      );
      const fit = fitTime(points);
      expect(fit?.relativeError).toBeLessThan(1e-6);
      const beyond = (fit?.base ?? 0) + ((fit?.perItem ?? 0) * 64) / 8 ** (fit?.alpha ?? 0);
      expect(beyond / at(8, 64)).toBeCloseTo(1, 3);
    }),
  );
});

test("a single point is taken for work that splits evenly, of items as of devices", () => {
  const fit = fitTime([{ devices: 3, items: 12, seconds: 0.6 }]);
  expect(fit).toMatchObject({ base: 0, alpha: 1 });
  expect(fittedSeconds({ fit, devicesPerRank: 1 }, { devices: 1, items: 4, isWhole: false })).toBeCloseTo(0.6);
});

test("what is done once a step is no cost of every chunk", () => {
  const once = { seconds: 0.2, batch: 16 };
  // Whole batches alone: without it, the law would take the optimiser's step for a base.
  const points = [1, 2, 4].map((devices) => ({ devices, items: 16, seconds: 16 / devices + 0.2 }));
  const fit = fitTime(points, undefined, once);
  const seconds = fittedSeconds({ fit, devicesPerRank: 1 }, { devices: 2, items: 4, isWhole: false });
  expect(seconds).toBeCloseTo(4 / 2 + 0.2 / 4, 6);
});

test("a fit is never negative, whatever the points", () => {
  const point = fc.record({
    devices: fc.constantFrom(1, 2, 4, 8),
    items: fc.integer({ min: 1, max: 100 }),
    seconds: fc.double({ min: 0.001, max: 100, noNaN: true }),
  });
  fc.assert(
    fc.property(fc.array(point, { minLength: 1, maxLength: 8 }), (points) => {
      const fit = fitTime(points);
      expect(fit?.base).toBeGreaterThanOrEqual(0);
      expect(fit?.perItem).toBeGreaterThanOrEqual(0);
      expect(Number.isFinite(fit?.relativeError)).toBe(true);
    }),
  );
});

test("a fit tells what the longest item takes from what all of them take, and what a chunk of any size will", () => {
  const law = fc.record({
    perItem: fc.double({ min: 0, max: 0.1, noNaN: true }),
    perLength: fc.double({ min: 0.5, max: 2, noNaN: true }),
    lengthSpread: fc.double({ min: 0.3, max: 1, noNaN: true }),
    /** the longest of all, over what it was expected to be */
    luck: fc.double({ min: 0.7, max: 1.2, noNaN: true }),
  });
  fc.assert(
    fc.property(law, ({ perItem, perLength, lengthSpread, luck }) => {
      const batch = 64;
      const ofAll = luck * perLength * expectedLongest(batch, lengthSpread);
      const at = (devices: number, items: number) =>
        (perItem * items) / devices +
        (items >= batch ? ofAll : Math.min(ofAll, perLength * expectedLongest(items / devices, lengthSpread)));
      const points = [
        [1, 64],
        [2, 64],
        [4, 64],
        [4, 4],
        [4, 16],
      ].map(([devices = 1, items = 1]) => ({ devices, items, seconds: at(devices, items) }));
      const fit = fitTime(points, { lengthSpread, devicesPerRank: 1, batch, streams: false });
      const profile = { fit, lengthSpread, devicesPerRank: 1 };
      for (const point of points) {
        const fitted = fittedSeconds(profile, { ...point, isWhole: point.items >= batch }) ?? 0;
        expect(Math.abs(fitted / point.seconds - 1)).toBeLessThan(0.25);
      }
      // Where the points happen to lie near a simpler law as well, that one is taken.
      if (fit?.longest === undefined) return;
      const predicted = fittedSeconds(profile, { devices: 2, items: 32, isWhole: false }) ?? 0;
      expect(Math.abs(predicted / at(2, 32) - 1)).toBeLessThan(0.01);
    }),
  );
});

test("the expected longest is the mean of the largest, as drawn", () => {
  const drawn = lognormals(5);
  for (const [count, spread] of [
    [1, 0.6],
    [4, 0.6],
    [64, 0.3],
  ] as const) {
    const rounds = 20_000;
    let sum = 0;
    for (let i = 0; i < rounds; i++) sum += Math.max(...Array.from({ length: count }, () => drawn(spread)));
    expect(Math.abs(expectedLongest(count, spread) / (sum / rounds) - 1)).toBeLessThan(0.02);
  }
});
