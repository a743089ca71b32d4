import { performance } from "node:perf_hooks";
import { median } from "@treadle/contracts";
import { toChoices } from "./arrange/choices.ts";
import { arrangePool, arrangePoolByTable } from "./arrange/pool.ts";
import { actionMs, measureOverhead } from "./bench/overhead.ts";
import { replayActions } from "./bench/replay.ts";
import { type DecideOptions, decide, defaultDecideOptions } from "./decide/decide.ts";
import { elasticOf, type QueuedAction } from "./decide/queued-action.ts";
import type { ResourceState } from "./decide/resource-state.ts";
import { CgroupDriver, cgroupDriverLacks } from "./drivers/cgroup-driver.ts";
import { ProcessDriver } from "./drivers/process-driver.ts";

/** One figure. `baseline` is what `name` says it is compared with; `ratio` is baseline / value. */
export type BenchRow = {
  readonly name: string;
  readonly value: number;
  readonly unit: string;
  readonly baseline: number | null;
  readonly ratio: number | null;
  /** the most that `value` may be of `baseline` */
  readonly ratioAtMost?: number;
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

const rowOf = (name: string, unit: string, value: number, baseline: number | null = null): BenchRow => {
  return { name, value, unit, baseline, ratio: baseline === null ? null : baseline / value };
};

/** Processor time of one arrangement and one decision. */
export function benchDecisions(): BenchRow[] {
  const rows: BenchRow[] = [];
  const row = (...args: Parameters<typeof rowOf>): void => void rows.push(rowOf(...args));
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
    row(
      `arrange 1000 actions on 1280 cores, ${form}, against the whole table`,
      "ms",
      medianMs(40, () => arrangePool(tasks, 1280)),
      table,
    );
    const idle = new Map<string, ResourceState>([["cpu", { free: 1280 }]]);
    row(
      `decide 1000 waiting, 1280 free, ${form}, against paper`,
      "ms",
      medianMs(40, () => decide(waiting, idle)),
      medianMs(2, () => decide(waiting, idle, { ...defaultDecideOptions, policy: "paper" })),
    );
  }
  const many = queue(10_000, upTo32, false);
  row(
    "decide 10000 waiting, 1280 free, convex",
    "ms",
    medianMs(20, () => decide(many, new Map([["cpu", { free: 1280 }]]))),
  );
  const busy = Array.from({ length: 640 }, (_, i) => ({ units: 1, endsInSeconds: 1 + i / 10 }));
  row(
    "decide 10000 waiting, 640 free, 640 busy, convex",
    "ms",
    medianMs(20, () => decide(many, new Map([["cpu", { free: 640, busy }]]))),
  );
  return rows;
}

/** What policies are worth on a simulated step. About 20 seconds. */
export function benchPolicies(): BenchRow[] {
  const rows: BenchRow[] = [];
  const row = (...args: Parameters<typeof rowOf>): void => void rows.push(rowOf(...args));
  for (const trajectories of [64, 128, 256, 512]) {
    const step = codingStep(trajectories);
    const act = (options: Partial<DecideOptions>) => simulatedAct(step, 128, { ...defaultDecideOptions, ...options });
    const ours = act({ policy: "unit-aware" });
    const paper = act({ policy: "paper" });
    const fixed = [1, 2, 4, 8, 16, 32].map((dop) => ({ dop, ...act({ policy: "fixed-dop", dop }) }));
    const best = fixed.reduce((a, b) => (b.reward < a.reward ? b : a));
    const name = `${trajectories} trajectories on 128 cores, simulated: mean ACT of`;
    row(`${name} rewards, against paper`, "s", ours.reward, paper.reward);
    row(`${name} rewards, against the best fixed DoP (${best.dop})`, "s", ours.reward, best.reward);
    row(`${name} rewards, against fixed DoP 4`, "s", ours.reward, fixed[2]!.reward);
    row(`${name} tool calls, against paper`, "s", ours.tool, paper.tool);
    row(`${name} tool calls, against that fixed DoP`, "s", ours.tool, best.tool);
    const bestAll = fixed.reduce((a, b) => (b.all < a.all ? b : a));
    const whole = `${trajectories} trajectories on 128 cores, simulated: ACT of a whole trajectory`;
    row(`${whole}, against paper`, "s", ours.all, paper.all);
    row(`${whole}, against the best fixed DoP (${bestAll.dop})`, "s", ours.all, bestAll.all);
  }
  return rows;
}

/** What one trajectory does: generation and a one-core tool call by turns, then a reward. Seconds. */
type CodingTrajectory = { readonly generations: number[]; readonly tools: number[]; readonly reward: QueuedAction };

/** Drawn before any policy runs, so that all policies meet the same step. */
function codingStep(trajectories: number): CodingTrajectory[] {
  const draw = randomNumbers(trajectories * 7 + 1);
  return Array.from({ length: trajectories }, (_, i) => {
    const turns = Math.round(25 + 21 * draw());
    return {
      generations: Array.from({ length: turns + 1 }, () => 5 * (0.5 + draw())),
      tools: Array.from({ length: turns }, () => Math.min(120, 0.05 * Math.exp(2.86 * normal(draw)))),
      reward: reward(`${i}/reward`, draw, upTo32),
    };
  });
}

/**
 * Mean completion times of one step of a coding task. All trajectories start together; each has 25-46 turns of about
 * 5 s generation with one-core tool calls between them (p50 0.05 s, mean about 2 s), then one reward on 1-32 cores.
 * It leaves out memory, several nodes, the time of decisions, and wrong estimates: durations are known exactly.
 */
function simulatedAct(
  step: readonly CodingTrajectory[],
  cores: number,
  options: DecideOptions,
): { reward: number; tool: number; all: number } {
  type Event = { at: number; trajectory: number; kind: "submit" | "done"; units: number; fixed: boolean };
  const turn = new Int32Array(step.length);
  const waiting: { action: QueuedAction; trajectory: number; since: number }[] = [];
  const running: Event[] = [];
  // Latest first, so that the next one is taken from the end.
  const events: Event[] = [];
  const schedule = (event: Event): void => {
    let low = 0;
    let high = events.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (events[middle]!.at > event.at) low = middle + 1;
      else high = middle;
    }
    events.splice(low, 0, event);
  };
  const generate = (trajectory: number, now: number): void => {
    const seconds = step[trajectory]!.generations[turn[trajectory]!];
    if (seconds !== undefined) schedule({ at: now + seconds, trajectory, kind: "submit", units: 0, fixed: true });
  };
  for (let i = 0; i < step.length; i++) generate(i, 0);
  let free = cores;
  const sums = { reward: 0, tool: 0 };
  const counts = { reward: 0, tool: 0 };
  while (counts.reward < step.length) {
    const event = events.pop()!;
    const now = event.at;
    const { trajectory } = event;
    if (event.kind === "done") {
      free += event.units;
      running.splice(running.indexOf(event), 1);
      generate(trajectory, now);
    } else {
      const { tools, reward } = step[trajectory]!;
      const seconds = tools[turn[trajectory]!];
      const id = `${trajectory}/${turn[trajectory]!++}`;
      const action =
        seconds === undefined ? reward : { id, demands: [["cpu", 1]] as const, elastic: undefined, seconds };
      waiting.push({ action, trajectory, since: now });
    }
    const busy = running.map((r) => ({ units: r.units, endsInSeconds: r.at - now, fixed: r.fixed }));
    const cpu = { free, busy };
    const { selected } = decide(
      waiting.map((w) => ({ ...w.action, waitedSeconds: now - w.since })),
      new Map([["cpu", cpu]]),
      options,
    );
    for (const { id, allocation, seconds } of selected) {
      const at = waiting.findIndex((w) => w.action.id === id);
      const started = waiting.splice(at, 1)[0]!;
      const fixed = started.action.elastic === undefined;
      const done: Event = {
        at: now + seconds!,
        trajectory: started.trajectory,
        kind: "done",
        units: allocation.cpu!,
        fixed,
      };
      free -= done.units;
      running.push(done);
      schedule(done);
      const kind = fixed ? "tool" : "reward";
      sums[kind] += done.at - started.since;
      counts[kind]++;
    }
  }
  const all = (sums.reward + sums.tool) / step.length;
  return { reward: sums.reward / counts.reward, tool: sums.tool / Math.max(1, counts.tool), all };
}

/** What a sandbox costs here, by driver. Drivers that this machine lacks give no rows. */
export async function benchSandboxes(): Promise<BenchRow[]> {
  const rows: BenchRow[] = [];
  const rounds = 30;
  const timed = async (run: () => Promise<unknown>): Promise<number> => {
    const startedMs = performance.now();
    await run();
    return performance.now() - startedMs;
  };
  for (const make of [
    () => new ProcessDriver(),
    ...(cgroupDriverLacks() === undefined ? [() => new CgroupDriver()] : []),
  ]) {
    const driver = make();
    const first = await driver.open();
    await first.exec({ command: ["true"] });
    const opens: number[] = [];
    const closes: number[] = [];
    const execs: number[] = [];
    const writes: number[] = [];
    const asks: number[] = [];
    for (let i = 0; i < rounds; i++) {
      let sandbox = first;
      opens.push(
        await timed(async () => {
          sandbox = await driver.open({ memoryBytes: 2 ** 28 });
        }),
      );
      execs.push(await timed(() => sandbox.exec({ command: ["true"], cores: [0] })));
      writes.push(await timed(() => sandbox.writeFile("file", "text")));
      const shell = sandbox.holdShell();
      await shell.ask({ program: ":", cores: [0] });
      asks.push(await timed(() => shell.ask({ program: ":", cores: [0] })));
      closes.push(await timed(() => sandbox.close()));
    }
    await driver.close();
    for (const [what, times] of Object.entries({
      open: opens,
      "exec true on one core": execs,
      "an action of a held shell": asks,
      "write a file": writes,
      close: closes,
    }))
      rows.push({
        name: `${driver.name} driver: ${what}`,
        value: median(times),
        unit: "ms",
        baseline: null,
        ratio: null,
      });
  }
  return rows;
}

/** What the system adds to an action of 100 ms, by driver; on the fast paths below 3 % of it. */
export async function benchOverhead(): Promise<BenchRow[]> {
  return (await measureOverhead()).flatMap(
    ({ name, beyondByHandMs, beyondNominalMs, byHandBeyondNominalMs, isPromised }) => [
      {
        ...rowOf(`${name}: what an action takes beyond the same by hand`, "ms", beyondByHandMs, actionMs),
        ...(isPromised ? { ratioAtMost: 0.03 } : {}),
      },
      rowOf(
        `${name}: beyond 100 ms, of which by hand ${byHandBeyondNominalMs.toFixed(1)} ms`,
        "ms",
        beyondNominalMs,
        actionMs,
      ),
    ],
  );
}

/** Real commands in real sandboxes under each way of giving out cores, against a core reserved for each trajectory. */
export async function benchReplay(): Promise<BenchRow[]> {
  const { driver, cores, ways } = await replayActions();
  const [reservation] = ways;
  const rows: BenchRow[] = [];
  const figures = {
    act: ["mean ACT", "s"],
    reward: ["mean ACT of a reward", "s"],
    step: ["step", "s"],
    heldCoreSeconds: ["held", "core-s"],
    busyCoreSeconds: ["spent in actions", "core-s"],
    overheadShare: ["system overhead by execution", ""],
  } as const;
  for (const { name, figures: own } of ways) {
    for (const [key, [what, unit]] of Object.entries(figures) as [keyof typeof figures, readonly [string, string]][]) {
      const value = own[key];
      const isCompared = name !== reservation!.name && key !== "overheadShare";
      const baseline = isCompared ? reservation!.figures[key] : null;
      const ratio = baseline === null ? null : baseline / value;
      rows.push({ name: `${name}, ${driver} driver, ${cores} cores: ${what}`, value, unit, baseline, ratio });
    }
  }
  return rows;
}
