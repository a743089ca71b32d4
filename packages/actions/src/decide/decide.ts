/**
 * One decision of the scheduler over all resources (ARL-Tangram Algorithm 1). Pure: queue and resource states in,
 * who starts with what out.
 *
 * DC1 first come, first served on every resource: whoever is selected leaves no earlier action waiting for a resource it
 *    takes, but for one that a policy lets wait for more units of its own; that one is passed only by actions that do
 *    not scale on the same resource. With `order: "prefix"` the selected actions are the first of the whole queue.
 * DC2 every allocation is allowed, and together they fit into every resource; what a policy lets wait would fit beside
 *    the least that the selected ask for: it waits for the sake of those who get more than that.
 * DC3 nothing starves: while an action cannot start, nobody behind it takes what it waits for, so what runs there
 *    drains; the first that could start does so at the latest after it has waited as long as it would have run (PL4).
 */
import { arrangeGroupPriced, type Group, type GroupDecision, groupOf } from "./group.ts";
import { decideGroup, type Policy, type PolicyOptions } from "./policies.ts";
import type { Elastic, QueuedAction } from "./queued-action.ts";
import { type ResourceState, Room } from "./resource-state.ts";

export type QueueOrder = "prefix" | "per-resource";

export type DecideOptions = PolicyOptions & {
  readonly policy: Policy;
  /** `prefix`: as the paper; `per-resource`: an action that waits for one resource holds up only those who share one */
  readonly order: QueueOrder;
};

export const defaultDecideOptions: DecideOptions = { policy: "unit-aware", order: "per-resource", depth: 2, dop: 4 };

export type Selected = {
  readonly id: string;
  readonly allocation: Readonly<Record<string, number>>;
  /** at this allocation; undefined when unknown */
  readonly seconds: number | undefined;
};

export type Decision = {
  readonly selected: readonly Selected[];
  /** estimated sum of completion times of all waiting actions whose durations are known, seconds; worked out for who asks */
  readonly objective: number;
  readonly candidates: number;
  readonly evaluations: number;
  /**
   * Seconds until one whose turn it is will have waited long enough (PL4): who decides only when something ends has to decide
   * again then, because what runs may take longer than was thought. Undefined when nobody is left who could start, or the policy
   * does not look at how long one has waited.
   */
  readonly againInSeconds: number | undefined;
};

/** `waiting` is in queue order. A resource that is not in `resources` has no units. */
export function decide(
  waiting: readonly QueuedAction[],
  resources: ReadonlyMap<string, ResourceState>,
  options: DecideOptions = defaultDecideOptions,
): Decision {
  const candidates = candidatesOf(waiting, resources, options.order);
  const { members, others } = membersByResource(waiting, candidates);
  const dropped = new Set<number>();
  const firstDropped: number[] = [];
  const decisions: GroupDecision[] = [];
  let evaluations = 0;
  const choices = new Map<string, Int32Array>();
  for (const [resource, { actions, positions, numCandidates }] of members) {
    const fixed = fixedDemands(waiting, candidates, resource);
    const impatient = numCandidates > 0 && isImpatient(waiting[positions[0]!]!);
    const state = resources.get(resource) ?? { free: 0 };
    const group = groupOf(resource, state, actions, numCandidates, fixed, impatient, others.get(resource));
    const decision = decideGroup(options.policy, group, options);
    choices.set(resource, decision.index);
    decisions.push(decision);
    evaluations += decision.evaluations;
    for (let i = decision.started; i < numCandidates; i++) dropped.add(positions[i]!);
    if (decision.started < numCandidates) firstDropped.push(positions[decision.started]!);
  }
  // A candidate that a policy lets wait could start: who does not scale on its resource takes nothing from it.
  const cut = options.order === "prefix" ? candidates.findIndex((position) => dropped.has(position)) : -1;
  const started = cut === -1 ? candidates.filter((p) => !dropped.has(p)) : candidates.slice(0, cut);
  if (started.length + dropped.size < candidates.length) {
    // Keeping the order held others back, on resources where units are now left over.
    const now = membersByResource(waiting, started);
    for (const [resource, { actions, numCandidates }] of now.members) {
      if (numCandidates === 0 || numCandidates === choices.get(resource)!.length) continue;
      const state = resources.get(resource) ?? { free: 0 };
      const group = groupOf(resource, state, actions, numCandidates, fixedDemands(waiting, started, resource));
      choices.set(resource, arrangeAgain(group, options.policy, choices.get(resource)!));
    }
  }
  const selected = allocate(waiting, started, choices);
  let fixedSeconds = 0;
  for (const position of started) {
    const action = waiting[position]!;
    if (action.elastic === undefined) fixedSeconds += action.seconds ?? 0;
  }
  return {
    selected,
    get objective() {
      return decisions.reduce((sum, decision) => sum + decision.objective, fixedSeconds);
    },
    candidates: candidates.length,
    evaluations,
    againInSeconds:
      options.policy === "unit-aware" ? patience(waiting, cut === -1 ? firstDropped : [candidates[cut]!]) : undefined,
  };
}

/** PL4. One whose duration is not known never waits for more units. */
function patience(waiting: readonly QueuedAction[], positions: readonly number[]): number | undefined {
  let least: number | undefined;
  for (const position of positions) {
    const { waitedSeconds = 0, seconds } = waiting[position]!;
    if (seconds !== undefined)
      least = Math.min(least ?? Number.POSITIVE_INFINITY, Math.max(0, seconds - waitedSeconds));
  }
  return least;
}

function arrangeAgain(group: Group, policy: Policy, before: Int32Array): Int32Array {
  if (policy === "fixed-dop" || policy === "fcfs-min") return before.slice(0, group.candidates);
  const capacity = Math.max(1, group.free + group.busy.reduce((sum, b) => sum + b.units, 0));
  const price = policy === "paper" ? 0 : (group.actions.length - group.candidates) / capacity;
  return arrangeGroupPriced(group, group.candidates, price);
}

/** Positions in the queue whose least demands fit together, first come first served (Algorithm 1, line 3). */
function candidatesOf(
  waiting: readonly QueuedAction[],
  resources: ReadonlyMap<string, ResourceState>,
  order: QueueOrder,
): number[] {
  const places = new Map(
    [...resources].map(([resource, state]) => [resource, { room: new Room(state), isOpen: true }]),
  );
  let numOpen = places.size;
  const candidates: number[] = [];
  for (let position = 0; position < waiting.length && (numOpen > 0 || places.size === 0); position++) {
    const { demands } = waiting[position]!;
    let fits = true;
    for (let d = 0; d < demands.length && fits; d++) {
      const place = places.get(demands[d]![0]);
      fits = place?.isOpen === true && place.room.holds(demands[d]![1]);
    }
    if (fits) {
      for (const [resource, units] of demands) places.get(resource)!.room.take(units);
      candidates.push(position);
      continue;
    }
    if (order === "prefix") break;
    for (let d = 0; d < demands.length; d++) {
      const place = places.get(demands[d]![0]);
      if (place?.isOpen !== true) continue;
      place.isOpen = false;
      numOpen--;
    }
  }
  return candidates;
}

type Members = { actions: Elastic[]; positions: number[]; numCandidates: number };

/**
 * By key resource: the scalable candidates, then the scalable actions behind them, each in queue order. `others`: by resource, the
 * actions that take of it without scaling on it, and are no candidates.
 */
function membersByResource(
  waiting: readonly QueuedAction[],
  candidates: readonly number[],
): { readonly members: ReadonlyMap<string, Members>; readonly others: ReadonlyMap<string, number> } {
  const members = new Map<string, Members>();
  const others = new Map<string, number>();
  let last: Members | undefined;
  let lastResource: string | undefined;
  const add = (elastic: Elastic, position: number): Members => {
    const { resource } = elastic;
    // One after the other scales on the same.
    if (resource !== lastResource || last === undefined) {
      last = members.get(resource) ?? { actions: [], positions: [], numCandidates: 0 };
      members.set(resource, last);
      lastResource = resource;
    }
    last.actions.push(elastic);
    last.positions.push(position);
    return last;
  };
  for (const position of candidates) {
    const { elastic } = waiting[position]!;
    if (elastic !== undefined) add(elastic, position).numCandidates++;
  }
  let next = 0;
  for (let position = 0; position < waiting.length; position++) {
    if (candidates[next] === position) {
      next++;
      continue;
    }
    const { demands, elastic } = waiting[position]!;
    if (elastic !== undefined) add(elastic, position);
    for (let d = 0; d < demands.length; d++) {
      const [resource, units] = demands[d]!;
      if (units > 0 && resource !== elastic?.resource) others.set(resource, (others.get(resource) ?? 0) + 1);
    }
  }
  return { members, others };
}

/** Units of the resource that candidates take without scaling on it. */
function fixedDemands(waiting: readonly QueuedAction[], positions: readonly number[], resource: string): number[] {
  const fixed: number[] = [];
  for (const position of positions) {
    const { demands, elastic } = waiting[position]!;
    if (elastic?.resource === resource) continue;
    for (const [name, units] of demands) if (name === resource) fixed.push(units);
  }
  return fixed;
}

/** PL4. It has waited as long as it would have run on its least units. */
const isImpatient = ({ waitedSeconds = 0, seconds = Number.POSITIVE_INFINITY }: QueuedAction): boolean =>
  waitedSeconds >= seconds && waitedSeconds > 0;

function allocate(
  waiting: readonly QueuedAction[],
  started: readonly number[],
  choices: ReadonlyMap<string, Int32Array>,
): Selected[] {
  const next = new Map<string, number>();
  return started.map((position) => {
    const { id, demands, elastic, seconds } = waiting[position]!;
    const allocation: Record<string, number> = Object.fromEntries(demands);
    if (elastic === undefined) return { id, allocation, seconds };
    const at = next.get(elastic.resource) ?? 0;
    next.set(elastic.resource, at + 1);
    const choice = choices.get(elastic.resource)![at]!;
    allocation[elastic.resource] = elastic.choices.units[choice]!;
    return { id, allocation, seconds: elastic.choices.seconds[choice]! };
  });
}
