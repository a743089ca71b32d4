import { type Chunk, chunkSizeFor } from "../arrange/buddy.ts";
import { type Choices, toChoices } from "../arrange/choices.ts";
import { arrangeChunks } from "../arrange/chunks.ts";
import { arrangePriced } from "../arrange/marginal-gain.ts";
import { arrangePool } from "../arrange/pool.ts";
import type { Elastic } from "./queued-action.ts";
import type { Busy, ResourceState } from "./resource-state.ts";

/** The waiting actions that scale on one resource, and what that resource can give them. */
export type Group = {
  readonly resource: string;
  /** in queue order; the first `candidates` may start now */
  readonly actions: readonly Elastic[];
  readonly candidates: number;
  /** whole units that are left for them */
  readonly free: number;
  readonly chunks: readonly Chunk[] | undefined;
  /** units that starting actions which do not scale here take out of the chunks */
  readonly fixed: readonly number[];
  readonly busy: readonly Busy[];
  /** the first has waited long enough (PL4) */
  readonly impatient: boolean;
  /** waiting actions that take of the resource without scaling on it, and do not start now */
  readonly others: number;
};

export type GroupDecision = {
  /** how many of the candidates start */
  readonly started: number;
  /** the choice of each of them */
  readonly index: Int32Array;
  /** estimated sum of completion times of all actions of the group */
  readonly objective: number;
  /** numbers of starting actions that were compared */
  readonly evaluations: number;
};

export function groupOf(
  resource: string,
  state: ResourceState,
  actions: readonly Elastic[],
  candidates: number,
  fixed: readonly number[],
  impatient = false,
  others = 0,
): Group {
  const used = fixed.reduce((sum, units) => sum + units, 0);
  return {
    resource,
    actions,
    candidates,
    free: Math.floor(state.free - used + 1e-6),
    chunks: state.chunks,
    fixed,
    busy: state.busy ?? [],
    impatient,
    others,
  };
}

/** The least sum of seconds of the first `length` actions. They must fit. */
export function arrangeGroup(group: Group, length: number): Int32Array {
  const choices: Choices[] = [];
  let unitConvex = true;
  for (let i = 0; i < length; i++) {
    choices.push(group.actions[i]!.choices);
    unitConvex &&= group.actions[i]!.unitConvex;
  }
  if (group.chunks === undefined) return required(arrangePool(choices, group.free, unitConvex)?.index);
  // Fixed demands take part as tasks without a choice.
  const fixed = group.fixed
    .filter((units) => units > 0)
    .map((units, i) => toChoices(`fixed/${i}`, [chunkSizeFor(units) ?? units], [0]));
  return required(arrangeChunks([...choices, ...fixed], group.chunks)?.index).slice(0, length);
}

/** As `arrangeGroup`, where holding a unit for a second costs `price` seconds to the others. */
export function arrangeGroupPriced(group: Group, length: number, price: number): Int32Array {
  if (price === 0) return arrangeGroup(group, length);
  if (group.chunks === undefined) return arrangePriced(group.actions.slice(0, length), group.free, price);
  const priced = group.actions.slice(0, length).map(({ choices, ...rest }) => {
    const seconds = choices.seconds.map((s, c) => s * (1 + price * choices.units[c]!));
    const kept = toChoices(choices.id, choices.units, seconds);
    return { ...rest, choices: kept, unitConvex: false };
  });
  const index = arrangeGroup({ ...group, actions: priced }, length);
  return index.map((choice, i) => group.actions[i]!.choices.units.indexOf(priced[i]!.choices.units[choice]!));
}

function required(index: Int32Array | undefined): Int32Array {
  // Candidates are those whose least units fit together, so that an arrangement always exists.
  if (index === undefined) throw new Error("candidates whose least units fit could not be arranged");
  return index;
}
