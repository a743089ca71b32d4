import { toChoices } from "../arrange/choices.ts";
import { type Elastic, elasticOf, type QueuedAction, similarTo } from "../decide/queued-action.ts";
import type { ActionHistory, Expectation } from "./action-history.ts";
import { type ActionSpec, type Amount, allowedUnits, leastUnits } from "./action-spec.ts";
import { type Elasticity, secondsAt } from "./elasticity.ts";

/**
 * What the scheduler sees of an action: least units of every resource, and the durations over its key resource when
 * elasticity and duration are known. `atMost` clips the key resource to what exists (a range up to 64 on 32 cores);
 * `preparationSeconds` is added to the execution, such as the restore of a service.
 */
export function formulate(
  id: string,
  spec: ActionSpec,
  history: ActionHistory,
  atMost: (resource: string) => number = () => Number.POSITIVE_INFINITY,
  preparationSeconds: (units: number) => number = () => 0,
): QueuedAction {
  return { id, demands: demandsOf(spec), ...durationsOf(spec, history.expect(spec), atMost, preparationSeconds) };
}

/** Least units of every resource. */
export const demandsOf = ({ cost, key }: ActionSpec): QueuedAction["demands"] =>
  Object.entries(cost)
    .map(([resource, amount]) => [resource, leastUnits(amount)] as const)
    .filter(([resource, amount]) => amount > 0 || resource === key);

/** How long it takes on which units: the same for all actions of one cost, key and service of which the same is expected. */
export function durationsOf(
  { cost, key, kind, service }: ActionSpec,
  { elasticity, oneUnitSeconds }: Expectation,
  atMost: (resource: string) => number,
  preparationSeconds: (units: number) => number,
  shapes = new Shapes(),
): Pick<QueuedAction, "elastic" | "seconds"> {
  if (key === undefined || elasticity === undefined) return { elastic: undefined, seconds: oneUnitSeconds };
  const most = atMost(key);
  if (service === undefined && oneUnitSeconds !== undefined && oneUnitSeconds > 0) {
    const on = (units: number): number => secondsAt(elasticity, units, oneUnitSeconds)!;
    const shape = shapes.of(key, cost[key]!, elasticity, most);
    if (shape !== undefined) return { elastic: similarTo(shape, kind, on), seconds: on(leastUnits(cost[key]!)) };
  }
  const units = unitsOf(cost[key]!, most);
  const seconds = units.map((count) => {
    const execution = secondsAt(elasticity, count, oneUnitSeconds);
    return execution === undefined ? undefined : execution + preparationSeconds(count);
  });
  const known = seconds.every((s) => s !== undefined && Number.isFinite(s));
  return {
    elastic: known && units.length > 1 ? elasticOf(key, toChoices(kind, units, seconds as number[])) : undefined,
    seconds: seconds[0],
  };
}

const unitsOf = (amount: Amount, most: number): number[] =>
  allowedUnits(amount).filter((count, i) => i === 0 || count <= most);

const mostShapes = 256;

/** What differs between actions of one curve and range in nothing but a factor, made once for all of them. */
export class Shapes {
  readonly #known = new Map<string, Elastic>();

  /** Of one second on one unit; undefined where a curve is no multiple of that, or leaves no choice. */
  of(key: string, amount: Amount, elasticity: Elasticity, most: number): Elastic | undefined {
    if (elasticity.type === "function" || elasticity.type === "seconds") return undefined;
    const about = JSON.stringify([key, amount, elasticity, most]);
    const known = this.#known.get(about);
    if (known !== undefined) return known;
    const units = unitsOf(amount, most);
    const seconds = units.map((count) => secondsAt(elasticity, count, 1)!);
    if (units.length === 1) return undefined;
    const shape = elasticOf(key, toChoices("", units, seconds));
    if (this.#known.size >= mostShapes) this.#known.delete(this.#known.keys().next().value!);
    this.#known.set(about, shape);
    return shape;
  }
}
