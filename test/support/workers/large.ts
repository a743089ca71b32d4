import { type Sink, type Source, Worker } from "@treadle/runtime";
import { z } from "zod";

export const LargeItem = z.object({
  id: z.string(),
  values: z.instanceof(Float32Array),
  nested: z.object({ big: z.bigint(), counts: z.array(z.instanceof(Int32Array)) }),
});
export type LargeItem = z.infer<typeof LargeItem>;

export function largeItem(id: string, numValues: number, fill: number): LargeItem {
  return {
    id,
    values: new Float32Array(numValues).fill(fill),
    nested: { big: 2n ** 70n, counts: [new Int32Array(5000).fill(fill), Int32Array.of(1, 2)] },
  };
}

/** Puts large items, takes them, and keeps some of what it took. */
export class LargeWorker extends Worker<Record<string, never>> {
  static override readonly module = import.meta.url;
  readonly #kept: LargeItem[] = [];

  async put(sink: Sink<LargeItem>, from: number, count: number, numValues: number): Promise<void> {
    for (let at = from; at < from + count; at++) await sink.put(largeItem(`item-${at}`, numValues, at));
  }

  /** What each item holds, as `id first last types`; sums nothing up that a wrong byte could hide in. */
  async take(source: Source<LargeItem>, keep = false): Promise<string[]> {
    const seen: string[] = [];
    for await (const [item] of source.batches({ items: 1 })) {
      if (!item) continue;
      seen.push(describe(item));
      if (!keep) continue;
      this.#kept.push(item);
      item.values[0] = -7; // a consumer may do with its items what it likes
    }
    return seen;
  }

  async takeAndDie(source: Source<LargeItem>): Promise<void> {
    const [item] = (await source.take({ items: 1 })) as [LargeItem];
    item.values.fill(-9);
    process.kill(process.pid, "SIGKILL");
  }

  async kept(): Promise<string[]> {
    return this.#kept.map(describe);
  }
}

function describe({ id, values, nested }: LargeItem): string {
  const isUniform = values.subarray(1).every((value) => value === values[1]);
  const [first, second] = nested.counts as [Int32Array, Int32Array];
  return `${id} ${values.constructor.name} ${values.length} ${values[0]} ${isUniform ? values[1] : "mixed"} ${nested.big} ${first[4999]} ${second}`;
}
