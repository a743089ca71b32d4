import { exactSeconds, usedDevices } from "./component-time.ts";
import type { PlanModel } from "./model.ts";
import { limitsIn } from "./turn-swap.ts";

/** Whether a leaf uses all devices of a level: those counts on which it takes the least are the most it has. */
export class FullLeaves {
  readonly #model: PlanModel;
  readonly #rows = new Map<number, Uint8Array>();

  constructor(model: PlanModel) {
    this.#model = model;
  }

  has(leaf: number, level: number, itemsIndex: number): boolean {
    const { leaves, items, levels, step, problem, leafSeconds } = this.#model;
    const key = leaf * items.length + itemsIndex;
    let row = this.#rows.get(key);
    if (row === undefined) {
      const { members } = leaves[leaf]!;
      const limits = limitsIn(problem, members[0]!.pool);
      row = new Uint8Array(levels + 1);
      const seconds = leafSeconds(leaf, itemsIndex);
      for (let i = 1; members[0]!.pool === undefined && i <= levels; i++) {
        const used = Math.max(...members.map((node) => usedDevices(node, i * step)));
        const isLeast = exactSeconds(members, i * step, items[itemsIndex]!, limits) <= seconds[i]! * (1 + 1e-9);
        if (used === i * step && isLeast && Number.isFinite(seconds[i]!)) row[i] = 1;
      }
      this.#rows.set(key, row);
    }
    return row[level] === 1;
  }
}
