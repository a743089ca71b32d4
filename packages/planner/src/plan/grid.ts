/** The levels at which bounds are made, and the splits of each of them. */

/** Splits of one grid level, by the levels or the grid indices of their two parts; the first part's only grow. */
export type Splits = {
  readonly firstLevel: Int32Array;
  readonly secondLevel: Int32Array;
  readonly firstIndex: Int32Array;
  readonly secondIndex: Int32Array;
};

export class Grid {
  readonly levels: Int32Array;
  /** by level: index of the last grid level at or below it, and of the first at or above it */
  readonly floorIndex: Int32Array;
  readonly ceilIndex: Int32Array;
  readonly #classes: Splits[] = [];
  readonly #members: Splits[] = [];
  readonly #free: Splits[] = [];

  constructor(levels: Int32Array) {
    this.levels = levels;
    const top = levels.at(-1)!;
    this.floorIndex = new Int32Array(top + 1);
    this.ceilIndex = new Int32Array(top + 1);
    for (let level = 1, index = 0; level <= top; level++) {
      if (levels[index]! < level) index++;
      this.ceilIndex[level] = index;
      this.floorIndex[level] = levels[index] === level ? index : index - 1;
    }
  }

  /**
   * Classes of splits of the grid level at `index`: those whose first part lies above one grid level and up to the next.
   * Of each the most that either part has; indices are rounded up. `free`: both parts have all, in either case.
   */
  classes(index: number, free: boolean): Splits {
    if (free) return this.#whole(index);
    const known = this.#classes[index];
    if (known !== undefined) return known;
    const { levels } = this;
    const level = levels[index]!;
    const first = levels.slice(0, this.ceilIndex[level - 1]! + 1);
    const second = new Int32Array(level > 1 ? first.length : 0);
    if (level > 1) first[first.length - 1] = level - 1;
    for (let i = 0; i < second.length; i++) second[i] = level - 1 - (i === 0 ? 0 : levels[i - 1]!);
    const classes = splitsOf(first.subarray(0, second.length), second, this.ceilIndex);
    this.#classes[index] = classes;
    return classes;
  }

  /** Splits of the grid level at `index` whose first part is a grid level; indices are rounded down. */
  members(index: number, free: boolean): Splits {
    if (free) return this.#whole(index);
    const known = this.#members[index];
    if (known !== undefined) return known;
    const first = this.levels.subarray(0, index);
    const second = new Int32Array(index);
    for (let i = 0; i < index; i++) second[i] = this.levels[index]! - first[i]!;
    const members = splitsOf(first, second, this.floorIndex);
    this.#members[index] = members;
    return members;
  }

  #whole(index: number): Splits {
    const level = this.levels.subarray(index, index + 1);
    this.#free[index] ??= splitsOf(level, level, this.ceilIndex);
    return this.#free[index];
  }
}

function splitsOf(firstLevel: Int32Array, secondLevel: Int32Array, indexOf: Int32Array): Splits {
  const firstIndex = new Int32Array(firstLevel.length);
  const secondIndex = new Int32Array(firstLevel.length);
  for (let i = 0; i < firstLevel.length; i++) {
    firstIndex[i] = indexOf[firstLevel[i]!]!;
    secondIndex[i] = indexOf[secondLevel[i]!]!;
  }
  return { firstLevel, secondLevel, firstIndex, secondIndex };
}

/** Levels up to `dense` are all on the grid; above, each is `ratio` times the one before. */
export type GridShape = { readonly dense: number; readonly ratio: number };

/** Levels 1..dense, then each about `ratio` times the one before, up to `levels`. */
export function makeGrid(levels: number, { dense, ratio }: GridShape): Int32Array {
  const grid: number[] = [];
  for (let level = 1; level < levels; level = Math.max(level + 1, level < dense ? 0 : Math.floor(level * ratio)))
    grid.push(level);
  grid.push(levels);
  return Int32Array.from(grid);
}
