import { type DecideOptions, decide, defaultDecideOptions, type QueuedAction } from "@treadle/actions";
import { type BenchRow, row } from "../row.ts";
import { normal, randomNumbers, reward, upTo32 } from "./workload.ts";

const notMeasured = "wrong estimates of durations; memory, several nodes and the time of decisions";

/** What policies are worth on a simulated step. About 20 seconds. */
export function benchPolicies(): BenchRow[] {
  const rows: BenchRow[] = [];
  const add = (name: string, unit: string, value: number, baseline: number | null = null): void => {
    rows.push(row({ name, value, unit, baseline, notMeasured }));
  };
  for (const trajectories of [64, 128, 256, 512]) {
    const step = codingStep(trajectories);
    const act = (options: Partial<DecideOptions>) => simulatedAct(step, 128, { ...defaultDecideOptions, ...options });
    const ours = act({ policy: "unit-aware" });
    const paper = act({ policy: "paper" });
    const fixed = [1, 2, 4, 8, 16, 32].map((dop) => ({ dop, ...act({ policy: "fixed-dop", dop }) }));
    const best = fixed.reduce((a, b) => (b.reward < a.reward ? b : a));
    const name = `${trajectories} trajectories on 128 cores, simulated: mean ACT of`;
    add(`${name} rewards, against paper`, "s", ours.reward, paper.reward);
    add(`${name} rewards, against the best fixed DoP (${best.dop})`, "s", ours.reward, best.reward);
    add(`${name} rewards, against fixed DoP 4`, "s", ours.reward, fixed[2]!.reward);
    add(`${name} tool calls, against paper`, "s", ours.tool, paper.tool);
    add(`${name} tool calls, against that fixed DoP`, "s", ours.tool, best.tool);
    const bestAll = fixed.reduce((a, b) => (b.all < a.all ? b : a));
    const whole = `${trajectories} trajectories on 128 cores, simulated: ACT of a whole trajectory`;
    add(`${whole}, against paper`, "s", ours.all, paper.all);
    add(`${whole}, against the best fixed DoP (${bestAll.dop})`, "s", ours.all, bestAll.all);
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
