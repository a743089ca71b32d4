import { Bounds } from "./bounds.ts";
import { operationsOf, type PlanModel } from "./model.ts";
import { Search } from "./search.ts";

/** Schedules of one mode and what they take at most, on few levels. */
export type RoughWay = { readonly bounds: Bounds; readonly search: Search };

const shape = { dense: 16, ratio: 1.15 };

/** What the runners-up are made of: nobody needs a proof of them. Made when asked for, once a model and limit. */
export class Rough {
  readonly #ways = new Map<string, RoughWay>();
  readonly #model: PlanModel;
  readonly #checkDeadline: () => void;

  constructor(model: PlanModel, checkDeadline: () => void) {
    this.#model = model;
    this.#checkDeadline = checkDeadline;
  }

  /** Whatever is part of a schedule that takes more than `limit` may be missing. */
  way(mode: "temporal" | "spatial", limit: number): RoughWay {
    const key = `${mode} ${limit}`;
    const known = this.#ways.get(key);
    if (known !== undefined) return known;
    const operations = operationsOf(mode);
    const grid = this.#model.grid(shape);
    const bounds = new Bounds(this.#model, operations, grid, this.#checkDeadline, { needsLower: false, limit });
    const way = { bounds, search: new Search(this.#model, bounds, operations, this.#checkDeadline) };
    this.#ways.set(key, way);
    return way;
  }
}
