type Brought = { readonly rank: number; readonly value: unknown };

type Mailbox = {
  readonly waiting: { readonly resolve: (value: unknown) => void; readonly reject: (error: Error) => void }[];
  readonly queue: unknown[];
};

const numberOf = (worker: string): number => Number(worker.slice(worker.indexOf("/") + 1));

/** The messages of a group in one process: each collective ends when as many ranks as there are have come. */
export class Group {
  readonly worldSize: number;
  #brought: Brought[] = [];
  #waiting: ((all: readonly Brought[]) => void)[] = [];

  constructor(worldSize: number) {
    this.worldSize = worldSize;
  }

  readonly #mailboxes = new Map<string, Mailbox>();
  /** lives of each rank: what an earlier one says arrives no more */
  readonly #lives: number[] = [];

  /** The rank's process ends: who waits for its messages is told, and a new one may take its place. */
  kill(rank: number): void {
    this.#lives[rank] = (this.#lives[rank] ?? 0) + 1;
    for (const [key, { waiting }] of this.#mailboxes) {
      const [from, to] = key.split(">").map(Number);
      if (from === rank) for (const { reject } of waiting.splice(0)) reject(new Error(`rank ${rank} died`));
      if (to === rank) this.#mailboxes.delete(key);
    }
  }

  messagesOf(rank: number) {
    const life = this.#lives[rank] ?? 0;
    const isDead = () => (this.#lives[rank] ?? 0) !== life;
    const never = () => new Promise<never>(() => {});
    const mailbox = (from: number, to: number): Mailbox => {
      const key = `${from}>${to}`;
      const found = this.#mailboxes.get(key) ?? { waiting: [], queue: [] };
      this.#mailboxes.set(key, found);
      return found;
    };
    const ranked = {
      callTag: (name: string) => name,
      send: async (to: string, value: unknown) => {
        if (isDead()) return never();
        const { waiting, queue } = mailbox(rank, numberOf(to));
        const first = waiting.shift();
        if (first) first.resolve(structuredClone(value));
        else queue.push(structuredClone(value));
      },
      recv: (from: string, _tag?: string, { signal }: { signal?: AbortSignal } = {}) => {
        if (isDead()) return never();
        const { waiting, queue } = mailbox(numberOf(from), rank);
        if (queue.length > 0) return Promise.resolve(queue.shift());
        return new Promise<unknown>((resolve, reject) => {
          const end = () => {
            waiting.length = 0;
            reject(signal?.reason);
          };
          const taken = (value: unknown) => {
            signal?.removeEventListener("abort", end);
            resolve(value);
          };
          waiting.push({ resolve: taken, reject });
          signal?.addEventListener("abort", end);
        });
      },
    };
    return { ...this.#collectives(rank), ...ranked };
  }

  #collectives(rank: number) {
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
      answer: <T>(_worker: string, _what: string, asked: PromiseLike<T>) => asked,
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
