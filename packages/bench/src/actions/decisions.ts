import { decide, defaultDecideOptions, type QueuedAction, type ResourceState } from "@treadle/actions";
import { arrangePool, arrangePoolByTable } from "@treadle/actions/internal";
import { median } from "@treadle/contracts";
import { type BenchRow, row } from "../row.ts";
import { doubling, randomNumbers, reward, upTo32 } from "./workload.ts";

const notMeasured = "making what is decided on from what was submitted";

/** After as many rounds to warm up. Processor time of all threads: what else the machine does is not counted. */
function medianMs(rounds: number, run: () => unknown): number {
  const times: number[] = [];
  for (let i = 0; i < 2 * rounds; i++) {
    const before = process.cpuUsage();
    run();
    const { user, system } = process.cpuUsage(before);
    if (i >= rounds) times.push((user + system) / 1000);
  }
  return median(times);
}

/** Processor time of one arrangement and one decision. */
export function benchDecisions(): BenchRow[] {
  const rows: BenchRow[] = [];
  const add = (name: string, unit: string, value: number, baseline: number | null = null): void => {
    rows.push(row({ name, value, unit, baseline, notMeasured }));
  };
  const queue = (n: number, units: readonly number[], bend: boolean): QueuedAction[] => {
    const draw = randomNumbers(n + 1);
    return Array.from({ length: n }, (_, i) => reward(`a${i}`, draw, units, bend));
  };
  for (const [form, units, bend] of [
    ["convex, 1-32 cores", upTo32, false],
    ["1, 2, 4, ... 32 cores", doubling, false],
    ["not convex", upTo32, true],
  ] as const) {
    const waiting = queue(1000, units, bend);
    const tasks = waiting.map((w) => w.elastic!.choices);
    const table = medianMs(2, () => arrangePoolByTable(tasks, 1280));
    add(
      `arrange 1000 actions on 1280 cores, ${form}, against the whole table`,
      "ms",
      medianMs(40, () => arrangePool(tasks, 1280)),
      table,
    );
    const idle = new Map<string, ResourceState>([["cpu", { free: 1280 }]]);
    add(
      `decide 1000 waiting, 1280 free, ${form}, against paper`,
      "ms",
      medianMs(40, () => decide(waiting, idle)),
      medianMs(2, () => decide(waiting, idle, { ...defaultDecideOptions, policy: "paper" })),
    );
  }
  const many = queue(10_000, upTo32, false);
  add(
    "decide 10000 waiting, 1280 free, convex",
    "ms",
    medianMs(20, () => decide(many, new Map([["cpu", { free: 1280 }]]))),
  );
  const busy = Array.from({ length: 640 }, (_, i) => ({ units: 1, endsInSeconds: 1 + i / 10 }));
  add(
    "decide 10000 waiting, 640 free, 640 busy, convex",
    "ms",
    medianMs(20, () => decide(many, new Map([["cpu", { free: 640, busy }]]))),
  );
  return rows;
}
