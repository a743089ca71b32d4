import { performance } from "node:perf_hooks";
import { toChoices } from "./arrange/choices.ts";
import { arrangePool, arrangePoolByTable } from "./arrange/pool.ts";
import { type DecideOptions, decide, defaultDecideOptions } from "./decide/decide.ts";
import { elasticOf, type QueuedAction } from "./decide/queued-action.ts";
import type { ResourceState } from "./decide/resource-state.ts";

/** One figure. `baseline` is what `name` says it is compared with; `ratio` is baseline / value. */
export type BenchRow = {
  readonly name: string;
  readonly value: number;
  readonly unit: string;
  readonly baseline: number | null;
  readonly ratio: number | null;
};

type Draw = () => number;

/** The same numbers at every call. */
function randomNumbers(seed: number): Draw {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return (state + 0.5) / 2 ** 32;
  };
}

const upTo32 = Array.from({ length: 32 }, (_, i) => i + 1);
const doubling = [1, 2, 4, 8, 16, 32];

const normal = (draw: Draw): number => Math.sqrt(-2 * Math.log(draw())) * Math.cos(2 * Math.PI * draw());
const serialShare = (draw: Draw): number => 0.005 * 60 ** draw();

/** A reward of a coding task: median 120 s on one core, serial share 0.5-30 %. `bend` makes durations not convex. */
function reward(id: string, draw: Draw, units: readonly number[], bend = false): QueuedAction {
  const one = 120 * Math.exp(0.6 * normal(draw));
  const serial = serialShare(draw);
  const seconds = units.map((m) => one * (serial + (1 - serial) / m) * (bend ? 0.6 + 0.8 * draw() : 1));
  const choices = toChoices(id, units, seconds);
  return { id, demands: [["cpu", 1]], elastic: elasticOf("cpu", choices), seconds: choices.seconds[0] };
}

function medianMs(rounds: number, run: () => unknown): number {
  const times: number[] = [];
  for (let i = 0; i <= rounds; i++) {
    const startedMs = performance.now();
    run();
    if (i > 0) times.push(performance.now() - startedMs);
  }
  return times.sort((a, b) => a - b)[rounds >> 1]!;
}

/** Speed of one arrangement and one decision, then what policies are worth on a simulated step. About 30 seconds. */
export function bench(): BenchRow[] {
  const rows: BenchRow[] = [];
  const row = (name: string, unit: string, value: number, baseline: number | null = null): void => {
    rows.push({ name, value, unit, baseline, ratio: baseline === null ? null : baseline / value });
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
    const table = medianMs(3, () => arrangePoolByTable(tasks, 1280));
    row(
      `arrange 1000 actions on 1280 cores, ${form}, against the whole table`,
      "ms",
      medianMs(15, () => arrangePool(tasks, 1280)),
      table,
    );
    const idle = new Map<string, ResourceState>([["cpu", { free: 1280 }]]);
    row(
      `decide 1000 waiting, 1280 free, ${form}, against paper`,
      "ms",
      medianMs(15, () => decide(waiting, idle)),
      medianMs(3, () => decide(waiting, idle, { ...defaultDecideOptions, policy: "paper" })),
    );
  }
  const many = queue(10_000, upTo32, false);
  row(
    "decide 10000 waiting, 1280 free, convex",
    "ms",
    medianMs(9, () => decide(many, new Map([["cpu", { free: 1280 }]]))),
  );
  const busy = Array.from({ length: 640 }, (_, i) => ({ units: 1, endsInSeconds: 1 + i / 10 }));
  row(
    "decide 10000 waiting, 640 free, 640 busy, convex",
    "ms",
    medianMs(9, () => decide(many, new Map([["cpu", { free: 640, busy }]]))),
  );

  for (const [trajectories, cores] of [
    [128, 256],
    [256, 256],
    [512, 256],
    [1024, 256],
  ] as const) {
    const act = (options: Partial<DecideOptions>): number =>
      simulatedAct(trajectories, cores, { ...defaultDecideOptions, ...options });
    const ours = act({ policy: "unit-aware" });
    const fixed = [1, 4, 8, 16, 32].map((dop) => ({ dop, seconds: act({ policy: "fixed-dop", dop }) }));
    const best = fixed.reduce((a, b) => (b.seconds < a.seconds ? b : a));
    const name = `mean reward ACT, ${trajectories} trajectories on ${cores} cores (simulated)`;
    row(`${name}, against paper`, "s", ours, act({ policy: "paper" }));
    row(`${name}, against the best fixed DoP (${best.dop})`, "s", ours, best.seconds);
    row(`${name}, against fixed DoP 4`, "s", ours, fixed[1]!.seconds);
  }
  return rows;
}

/**
 * Mean completion time of the rewards of one step of a coding task. All trajectories start together; each has 25-46
 * turns of 5 s generation with one-core tool calls between them (p50 0.05 s, mean 3 s), then one reward on 1-32 cores.
 * It leaves out memory, several nodes and wrong estimates: durations are known exactly.
 */
function simulatedAct(trajectories: number, cores: number, options: DecideOptions): number {
  const draw = randomNumbers(trajectories * 7 + cores);
  type Event = { at: number; trajectory: number; kind: "submit" | "done"; units: number };
  const turnsLeft = Array.from({ length: trajectories }, () => Math.round(25 + 21 * draw()));
  const waiting: { action: QueuedAction; trajectory: number; since: number }[] = [];
  const running: Event[] = [];
  const events: Event[] = turnsLeft.map((_, trajectory) => ({ at: 5 * draw(), trajectory, kind: "submit", units: 0 }));
  let now = 0;
  let free = cores;
  let sum = 0;
  let rewards = 0;
  while (rewards < trajectories) {
    let next = 0;
    for (let i = 1; i < events.length; i++) if (events[i]!.at < events[next]!.at) next = i;
    const event = events.splice(next, 1)[0]!;
    now = event.at;
    const { trajectory } = event;
    if (event.kind === "done") {
      free += event.units;
      running.splice(running.indexOf(event), 1);
      if (turnsLeft[trajectory]! >= 0)
        events.push({ at: now + 5 * (0.5 + draw()), trajectory, kind: "submit", units: 0 });
    } else {
      const id = `${trajectory}/${turnsLeft[trajectory]}`;
      const tool = 0.05 * Math.exp(2.86 * normal(draw));
      const action =
        turnsLeft[trajectory]! > 0
          ? { id, demands: [["cpu", 1]] as const, elastic: undefined, seconds: Math.min(tool, 120) }
          : reward(id, draw, upTo32);
      turnsLeft[trajectory]!--;
      waiting.push({ action, trajectory, since: now });
    }
    const cpu = { free, busy: running.map((r) => ({ units: r.units, endsInSeconds: r.at - now })) };
    const { selected } = decide(
      waiting.map((w) => w.action),
      new Map([["cpu", cpu]]),
      options,
    );
    for (const { id, allocation, seconds } of selected) {
      const at = waiting.findIndex((w) => w.action.id === id);
      const started = waiting.splice(at, 1)[0]!;
      const done: Event = { at: now + seconds!, trajectory: started.trajectory, kind: "done", units: allocation.cpu! };
      free -= done.units;
      running.push(done);
      events.push(done);
      if (started.action.elastic === undefined) continue;
      sum += done.at - started.since;
      rewards++;
    }
  }
  return sum / rewards;
}
