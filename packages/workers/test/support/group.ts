type Brought = { readonly rank: number; readonly value: unknown };

/** The messages of a group in one process: each collective ends when as many ranks as there are have come. */
export class Group {
  readonly worldSize: number;
  #brought: Brought[] = [];
  #waiting: ((all: readonly Brought[]) => void)[] = [];

  constructor(worldSize: number) {
    this.worldSize = worldSize;
  }

  messagesOf(rank: number) {
    const meet = async <T>(value: T): Promise<T[]> => {
      const all = await this.#meet({ rank, value });
      return [...all].sort((a, b) => a.rank - b.rank).map((one) => one.value as T);
    };
    return {
      allReduceSum: async <T extends Float32Array | Float64Array>(values: T) => {
        const parts = await meet(values);
        return values.map((_, at) => parts.reduce((total, own) => total + (own[at] as number), 0)) as T;
      },
      gather: async <T>(value: T) => {
        const parts = await meet(value);
        return rank === 0 ? parts : undefined;
      },
      broadcast: async <T>(value: T) => (await meet(value))[0] as T,
    };
  }

  #meet(brought: Brought): Promise<readonly Brought[]> {
    return new Promise((resolve) => {
      this.#brought.push(brought);
      this.#waiting.push(resolve);
      if (this.#brought.length < this.worldSize) return;
      const [all, waiting] = [this.#brought, this.#waiting];
      this.#brought = [];
      this.#waiting = [];
      for (const each of waiting) each(all);
    });
  }
}
