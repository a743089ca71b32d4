/**
 * Who starts now, and on how many units, among the actions that scale on one resource.
 *
 * PL1 the actions that start are the first of the group, in queue order.
 * PL2 on a resource where nothing runs, the first action starts: nothing waits for a completion that cannot come.
 * PL3 each gets an allowed number of units, and together they fit.
 * PL4 under `unit-aware`, the first action is not left waiting for more units once it has waited as long as it would have taken on
 *    its least (`waitedSeconds`). Actions behind it have no bound: they get it when they are first. If it held for all, each queue
 *    that is long would start on one unit each.
 */
import { UnitConvexArrangement } from "../arrange/marginal-gain.ts";
import { PrefixTable } from "../arrange/prefix-table.ts";
import { arrangeGroup, arrangeGroupPriced, type Group, type GroupDecision } from "./group.ts";
import { choiceUpTo } from "./queued-action.ts";
import { Room } from "./resource-state.ts";
import { estimateBySlots } from "./slot-estimate.ts";
import { UnitEstimate } from "./unit-estimate.ts";

export const policies = ["unit-aware", "paper", "fixed-dop", "fcfs-min"] as const;
export type Policy = (typeof policies)[number];

export type PolicyOptions = {
  /** choices of the first action left behind that `paper` tries */
  readonly depth: number;
  /** units that `fixed-dop` gives */
  readonly dop: number;
};

export function decideGroup(policy: Policy, group: Group, options: PolicyOptions): GroupDecision {
  switch (policy) {
    case "paper":
      return decideByEviction(group, options.depth);
    case "unit-aware":
      return decideUnitAware(group);
    case "fixed-dop":
      return decideFixed(group, options.dop);
    case "fcfs-min":
      return decideMinimum(group);
  }
}

/** Evictions after which one table of all prefixes is cheaper than arranging each prefix. */
const evictionsBeforeTable = 32;

/**
 * ARL-Tangram Algorithm 1, lines 8-13: evict the last candidate while that lowers the estimated sum.
 *
 * Repairs: the arrangement is exact and of at most the free units (Algorithm 3 demands exactly n); all evictions
 * share one arrangement, since what stays is a prefix; and the first candidate is never evicted (PL2), where the
 * pseudo code may evict everything on an idle machine.
 */
function decideByEviction(group: Group, depth: number): GroupDecision {
  const { actions, candidates, busy } = group;
  const prefixes = prefixArrangement(group);
  const objectiveOf = (length: number, bound: number): number => {
    const { index, total } = prefixes(length);
    if (total >= bound) return total;
    const completions = new Float64Array(busy.length + length);
    for (let i = 0; i < busy.length; i++) completions[i] = busy[i]!.endsInSeconds;
    for (let i = 0; i < length; i++) completions[busy.length + i] = actions[i]!.choices.seconds[index(i)]!;
    return total + estimateBySlots(completions, actions.slice(length), depth, bound - total);
  };
  let started = candidates;
  let objective = objectiveOf(candidates, Number.POSITIVE_INFINITY);
  let evaluations = 1;
  while (started > 1) {
    evaluations++;
    const shorter = objectiveOf(started - 1, objective);
    if (shorter >= objective) break;
    objective = shorter;
    started--;
  }
  return { started, index: arrangeGroup(group, started), objective, evaluations };
}

type PrefixResult = { readonly index: (action: number) => number; readonly total: number };

/** Arrangements of ever shorter prefixes. */
function prefixArrangement(group: Group): (length: number) => PrefixResult {
  const { actions, candidates, free, chunks } = group;
  if (chunks === undefined && actions.slice(0, candidates).every((a) => a.unitConvex)) {
    const all = actions.slice(0, candidates).map((a) => a.choices);
    const greedy = new UnitConvexArrangement(all, free);
    return (length) => {
      while (greedy.length > length) greedy.evictLast();
      return { index: (i) => greedy.choiceOf(i), total: greedy.total };
    };
  }
  let table: PrefixTable | undefined;
  return (length) => {
    if (chunks === undefined && candidates - length >= evictionsBeforeTable) {
      table ??= new PrefixTable(
        actions.slice(0, length).map((a) => a.choices),
        free,
      );
      const index = table.indices(length);
      return { index: (i) => index[i]!, total: table.total(length) };
    }
    const index = arrangeGroup(group, length);
    let total = 0;
    for (let i = 0; i < length; i++) total += actions[i]!.choices.seconds[index[i]!]!;
    return { index: (i) => index[i]!, total };
  };
}

/**
 * Starting nothing leaves units idle for certain; what that gains is an estimate. So it has to gain this share of all completion
 * times: with a few waiting that is soon reached, in a long queue hardly ever.
 */
const leastGainOfWaiting = 0.02;

/**
 * Counts units where Algorithm 2 counts completions, and charges for holding them.
 *
 * With q actions left behind and a capacity of c units, a unit held for a second delays them by q/c seconds in sum.
 * Under that price every action has a DoP of its own beyond which it costs the others more than it gains; the prefix
 * that fits at these DoPs, all candidates, and a few between are compared by what they and the rest will take
 * (`UnitEstimate`). Where something runs, starting nothing and waiting for it is compared as well (PL2), and has to gain some.
 * Those who will come while it runs are delayed by it, too. By Little's law they are as many as run now, so the units of
 * those who start are arranged under that price as well; there, whoever waits or runs on the resource counts, scaling or
 * not, against all of its units: a tool call waits for a unit as a reward does, and each trajectory makes many. Of those who
 * come, only those are delayed who find the units held: by PASTA as great a share as is held once these have started.
 * Who starts is decided without that: the estimate knows only those who are here, and would find it better to wait than to
 * start on as few units as the price allows.
 * With nobody behind and nobody running the price is zero and the arrangement is the exact least sum.
 *
 * Units held by actions of a fixed number are none of what scales: counting their completions would promise units
 * that the next tool call takes.
 */
function decideUnitAware(group: Group): GroupDecision {
  if (group.candidates > 0) return chooseUnitAware(group);
  // Where nothing can start, how long they will take is for those who ask.
  let all: GroupDecision | undefined;
  return {
    started: 0,
    index: new Int32Array(0),
    evaluations: 1,
    get objective() {
      all ??= chooseUnitAware(group);
      return all.objective;
    },
  };
}

function chooseUnitAware(group: Group): GroupDecision {
  const { actions, candidates, impatient, free } = group;
  const busy = group.busy.filter((b) => !b.fixed);
  const total = actions.length;
  const capacity = Math.max(1, free + busy.reduce((sum, b) => sum + b.units, 0));
  const lengths = new Set([candidates]);
  let rest: UnitEstimate | undefined;
  if (candidates > 1 || total > candidates || busy.length > 0) {
    rest = new UnitEstimate(actions, candidates, capacity);
    const fitting = fittingAtOwnDop(group, capacity);
    for (const length of [fitting, fitting + 1, (fitting + candidates) >> 1])
      if (length >= 1 && length < candidates) lengths.add(length);
    if (busy.length > 0 && !impatient) lengths.add(0);
  }
  let best: GroupDecision | undefined;
  for (const length of [...lengths].sort((a, b) => b - a)) {
    const index = arrangeGroupPriced(group, length, (total - length) / capacity);
    const times = new Float64Array(busy.length + length);
    const units = new Float64Array(busy.length + length);
    for (let i = 0; i < busy.length; i++) {
      times[i] = busy[i]!.endsInSeconds;
      units[i] = busy[i]!.units;
    }
    let objective = 0;
    let idle = free;
    for (let i = 0; i < length; i++) {
      const { choices } = actions[i]!;
      times[busy.length + i] = choices.seconds[index[i]!]!;
      units[busy.length + i] = choices.units[index[i]!]!;
      objective += times[busy.length + i]!;
      idle -= units[busy.length + i]!;
    }
    const bound = (best?.objective ?? Number.POSITIVE_INFINITY) - objective;
    objective += rest?.sum(length, times, units, Math.max(0, idle), bound) ?? 0;
    const least = length === 0 ? objective * (1 + leastGainOfWaiting) : objective;
    if (best === undefined || least < best.objective)
      best = { started: length, index, objective, evaluations: lengths.size };
  }
  const { started, objective } = best!;
  if (group.busy.length + group.others === 0 || started === 0) return best!;
  const units = Math.max(
    1,
    group.busy.reduce((sum, b) => sum + b.units, free),
  );
  const arrange = (foundHeld: number): Int32Array =>
    arrangeGroupPriced(group, started, (total - started + group.others + group.busy.length * foundHeld) / units);
  let index = arrange(1);
  const held = index.reduce((sum, choice, i) => sum + actions[i]!.choices.units[choice]!, units - free);
  if (held < units) index = arrange(held / units);
  const seconds = (of: Int32Array): number =>
    of.reduce((sum, choice, i) => sum + actions[i]!.choices.seconds[choice]!, 0);
  return { ...best!, index, objective: objective + seconds(index) - seconds(best!.index) };
}

/** How many candidates fit when each takes the DoP that is best under the price of those behind it. */
function fittingAtOwnDop({ actions, candidates, free }: Group, capacity: number): number {
  let left = free;
  for (let i = 0; i < candidates; i++) {
    const { choices, hull } = actions[i]!;
    const price = (actions.length - i - 1) / capacity;
    let units = 0;
    let least = Number.POSITIVE_INFINITY;
    for (const c of hull) {
      const cost = choices.seconds[c]! * (1 + price * choices.units[c]!);
      if (cost >= least) break;
      least = cost;
      units = choices.units[c]!;
    }
    left -= units;
    if (left < 0) return i;
  }
  return candidates;
}

/** The largest allowed number of units up to `dop`; whoever does not get it waits, unless nothing runs (PL2). */
function decideFixed(group: Group, dop: number): GroupDecision {
  const { actions, candidates, free, chunks, fixed, busy } = group;
  const room = new Room({ free, chunks });
  if (chunks !== undefined) for (const units of fixed) room.take(units);
  let started = 0;
  for (; started < candidates; started++) {
    const { choices } = actions[started]!;
    const units = choices.units[choiceUpTo(choices, dop)]!;
    if (!room.holds(units)) break;
    room.take(units);
  }
  if (started === 0 && busy.length === 0 && candidates > 0) {
    const index = arrangeGroup(group, 1);
    return { started: 1, index, objective: actions[0]!.choices.seconds[index[0]!]!, evaluations: 1 };
  }
  const index = Int32Array.from({ length: started }, (_, i) => choiceUpTo(actions[i]!.choices, dop));
  let objective = 0;
  for (let i = 0; i < started; i++) objective += actions[i]!.choices.seconds[index[i]!]!;
  return { started, index, objective, evaluations: 1 };
}

function decideMinimum({ actions, candidates }: Group): GroupDecision {
  let objective = 0;
  for (let i = 0; i < candidates; i++) objective += actions[i]!.choices.seconds[0]!;
  return { started: candidates, index: new Int32Array(candidates), objective, evaluations: 1 };
}
