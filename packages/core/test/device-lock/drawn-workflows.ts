/** Workflows drawn at random: components of any shape, on any of three devices. */
import fc from "fast-check";
import { type LeaseEffect, type Program, WorkflowWorld } from "./workflow-world.ts";

export const capacityBytes = 100;

/** Small, fast and seeded: the interleaving of one run. */
export function randomOf(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

type Style = "whole" | "per-batch" | "around-work";

/** How a worker may use its devices; the channel and the lock are not told which. */
export function* component(
  style: Style,
  hasDevices: boolean,
  source: string,
  sinks: readonly string[],
  max: number,
): Program {
  const holdsAll = hasDevices && style === "whole";
  if (holdsAll) yield { op: "lock" };
  for (;;) {
    if (hasDevices && style === "per-batch") yield { op: "lock" };
    const batch = yield { op: "take", channel: source, max };
    if (batch && hasDevices && style === "around-work") yield { op: "lock" };
    if (batch) {
      yield { op: "work" };
      for (const channel of sinks) yield { op: "put", channel, items: batch };
    }
    if (hasDevices && (style === "per-batch" || (batch && style === "around-work"))) yield { op: "release" };
    if (!batch) break;
  }
  if (holdsAll) yield { op: "release" };
}

/** A trainer whose ranks run collectives when they begin and when they end, while they hold their devices. */
function* collective(source: string, max: number, name: string, size: number): Program {
  yield { op: "lock" };
  yield { op: "barrier", name: `${name} begins`, size };
  for (;;) {
    const batch = yield { op: "take", channel: source, max };
    if (!batch) break;
    yield { op: "work" };
  }
  yield { op: "barrier", name: `${name} ends`, size };
  yield { op: "release" };
}

const componentSpec = fc.record({
  style: fc.constantFrom<Style>("whole", "per-batch", "around-work"),
  feeds: fc.array(fc.nat(20), { minLength: 1, maxLength: 2 }),
  placement: fc.array(fc.array(fc.nat(2), { maxLength: 2 }), { minLength: 1, maxLength: 2 }),
  residentBytes: fc.integer({ min: 10, max: 90 }),
  max: fc.integer({ min: 1, max: 4 }),
  isGang: fc.boolean(),
});

export const workflowSpec = fc.record({
  seed: fc.integer(),
  components: fc.array(componentSpec, { minLength: 2, maxLength: 5 }),
  numItems: fc.integer({ min: 0, max: 12 }),
  numSteps: fc.integer({ min: 1, max: 2 }),
  channelItems: fc.constantFrom(1, 2, 5, 1000),
});
export type WorkflowSpec = typeof workflowSpec extends fc.Arbitrary<infer T> ? T : never;

/** Builds the workflow and returns the world with how often each final channel must see each item. */
export function build(spec: WorkflowSpec, allowGangs: boolean, onLease?: (effect: LeaseEffect) => void) {
  const { components, numItems, numSteps } = spec;
  const last = components.length - 1;
  const inputOf = (i: number) => `input of ${i}`;
  const feedsOf = components.map(({ feeds }, i) =>
    i === last ? [] : [...new Set(feeds.map((to) => i + 1 + (to % (last - i))))],
  );
  const world = new WorkflowWorld({
    random: randomOf(spec.seed),
    devices: ["d0", "d1", "d2"],
    capacityBytes,
    channelItems: spec.channelItems,
    channels: components.map((_, i) => inputOf(i)),
    ...(onLease ? { onLease } : {}),
  });
  const isFed = (i: number): boolean => i === 0 || feedsOf.some((targets, from) => targets.includes(i) && isFed(from));
  const expected: string[] = [];
  const numPaths = components.map(() => 0);
  numPaths[0] = 1;
  for (const [i, targets] of feedsOf.entries())
    for (const to of targets) numPaths[to] = (numPaths[to] ?? 0) + (numPaths[i] ?? 0);
  const items = Array.from({ length: numItems }, (_, i) => `item ${i}`);
  for (const [i, { placement, residentBytes }] of components.entries()) {
    for (const [rank, devices] of placement.entries())
      world.addWorker(`c${i}/${rank}`, [...new Set(devices.map((d) => `d${d}`))], residentBytes);
  }
  for (let step = 0; step < numSteps; step++) {
    world.feed(inputOf(0), step, items);
    for (const [i, { style, placement, residentBytes, max, isGang }] of components.entries()) {
      if (!isFed(i)) continue;
      const sinks = (feedsOf[i] ?? []).map(inputOf);
      const sets = placement.map((devices) => [...new Set(devices.map((d) => `d${d}`))]);
      const runsCollectives = allowGangs && isGang && sinks.length === 0 && sets.every((set) => set.length > 0);
      const overflows =
        sets.length === 2 && sets[0]?.some((device) => sets[1]?.includes(device)) && 2 * residentBytes > capacityBytes;
      const gang = runsCollectives && !overflows ? `gang ${i} of step ${step}` : undefined;
      for (const [rank, devices] of sets.entries()) {
        world.call({
          worker: `c${i}/${rank}`,
          devices,
          residentBytes,
          sequence: step * components.length + i,
          stream: step,
          source: inputOf(i),
          sinks,
          gang,
          program: () =>
            gang
              ? collective(inputOf(i), max, gang, sets.length)
              : component(style, devices.length > 0, inputOf(i), sinks, max),
        });
      }
      if (sinks.length > 0) continue;
      for (const item of items)
        for (let path = 0; path < (numPaths[i] ?? 0); path++) expected.push(`${inputOf(i)}/${step}/${item}`);
    }
  }
  return { world, expected: expected.sort() };
}
