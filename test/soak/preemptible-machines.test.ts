import { expect, test } from "vitest";
import { SimulatedCluster } from "./simulated-cluster.ts";
import { randomOf } from "./virtual-network.ts";

const hourMs = 3_600_000;
/** The shipped ones: the fourth crash within ten minutes ends a run. */
const limits = { maxRestarts: 3, restartWindowMs: 600_000 };
const scenario = {
  numNodes: 3,
  layouts: [{ numMakers: 1, numTrainers: 1, shift: 0 }],
  numSteps: 1e9,
  numPrompts: 2,
  overlapsSteps: false,
  restMs: 1000,
};

/** The last pause is one, too, though no step ends it. */
function anHourOf({ network, journal }: SimulatedCluster): { readonly steps: number; readonly longestPauseMs: number } {
  let [lastMovedMs, longestPauseMs, steps] = [0, 0, 0];
  while (network.nowMs < hourMs) {
    expect(network.step()).toBe(true);
    longestPauseMs = Math.max(longestPauseMs, network.nowMs - lastMovedMs);
    if (journal.length === steps) continue;
    steps = journal.length;
    lastMovedMs = network.nowMs;
  }
  return { steps, longestPauseMs };
}

test("S2: an hour on machines that are taken away every half minute, and given back, ends no run", () => {
  const seed = 1 + Number(process.env.TREADLE_SEED);
  const cluster = new SimulatedCluster(seed, scenario, limits);
  const random = randomOf(seed);
  let numLost = 0;
  for (let atMs = 5000; atMs < hourMs; atMs += 60_000 * random()) {
    cluster.inject({
      kind: "kill-agent",
      atMs,
      durationMs: 2000 + 30_000 * random(),
      target: Math.floor(3 * random()),
    });
    numLost++;
  }
  // A worker of its own accord, more often than the limit allows within its window, but never without a step in between.
  for (let atMs = 60_000; atMs < hourMs; atMs += 100_000)
    cluster.inject({ kind: "kill-worker", atMs, durationMs: 1, target: Math.floor(8 * random()) });
  const { steps, longestPauseMs } = anHourOf(cluster);
  const told = `seed ${seed}: ${numLost} nodes lost, ${steps} steps, ${longestPauseMs} ms without one`;
  expect(numLost, told).toBeGreaterThan(80);
  expect(steps, told).toBeGreaterThan(2000);
  expect(longestPauseMs, told).toBeLessThan(30_000);
}, 240_000);

test("S2: nodes lost again and again within one step, more often than a worker may crash, end no run", () => {
  const seed = 1 + Number(process.env.TREADLE_SEED);
  // A step that rests longer than machines last: nothing is forgiven by progress in between.
  const cluster = new SimulatedCluster(seed, { ...scenario, restMs: 120_000 }, limits);
  const random = randomOf(seed);
  let numLost = 0;
  for (let atMs = 5000; atMs < hourMs; atMs += 5000 + 20_000 * random()) {
    cluster.inject({ kind: "kill-agent", atMs, durationMs: 2000 + 5000 * random(), target: Math.floor(3 * random()) });
    numLost++;
  }
  const { steps, longestPauseMs } = anHourOf(cluster);
  const told = `seed ${seed}: ${numLost} nodes lost, ${steps} steps, ${longestPauseMs} ms without one`;
  expect(numLost, told).toBeGreaterThan(200);
  expect(steps, told).toBeGreaterThan(10);
  expect(longestPauseMs, told).toBeLessThan(600_000);
}, 240_000);
