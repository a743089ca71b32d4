/** A worker that works on several items at once, and commits each when it is told to. */
import { type Sink, type Source, Worker } from "@treadle/runtime";

export class StreamingWorker extends Worker<Record<string, never>> {
  static override readonly module: string = import.meta.url;

  /** Commits an item with its double once its go comes. */
  async double(source: Source<number>, goes: Source<number>, doubled: Sink<number>): Promise<number> {
    const open = new Map<number, { commit(sink: Sink<number>, ...outputs: number[]): Promise<void> }>();
    const arrived = new Map<number, () => void>();
    const reading = (async () => {
      for await (const item of source.items({ inFlight: 2 })) {
        open.set(item.value, item);
        arrived.get(item.value)?.();
      }
    })();
    let numCommitted = 0;
    for await (const [go] of goes.batches({ items: 1 })) {
      const value = go as number;
      if (!open.has(value)) await new Promise<void>((resolve) => arrived.set(value, resolve));
      await open.get(value)?.commit(doubled, 2 * value);
      numCommitted++;
    }
    await reading;
    return numCommitted;
  }

  /** Commits each item with its double a moment after it came, whatever else is in flight; items overtake one another. */
  async spread(source: Source<number>, doubled: Sink<number>, moment: { readonly ms: number }): Promise<void> {
    const running: Promise<void>[] = [];
    for await (const item of source.items({ inFlight: 8 })) {
      const work = async () => {
        await new Promise((resolve) => setTimeout(resolve, moment.ms * ((item.value % 7) / 7)));
        await item.commit(doubled, 2 * item.value);
      };
      running.push(work());
    }
    await Promise.all(running);
  }

  /** Commits each item of a batch with its double, the last one first and each a moment after the one before. */
  async spreadBatches(source: Source<number>, doubled: Sink<number>, moment: { readonly ms: number }): Promise<void> {
    for await (const batch of source.itemBatches()) {
      for (const item of [...batch].reverse()) {
        await new Promise((resolve) => setTimeout(resolve, moment.ms * ((item.value % 7) / 7)));
        await item.commit(doubled, 2 * item.value);
      }
    }
  }

  /** Commits each item of a batch with its double when its go comes; says how large batches were. */
  async doubleBatches(source: Source<number>, goes: Source<number>, doubled: Sink<number>): Promise<number[]> {
    const sizes: number[] = [];
    for await (const batch of source.itemBatches()) {
      sizes.push(batch.length);
      for (let left = batch.length; left > 0; left--) {
        const [go] = (await goes.take({ items: 1 })) ?? [];
        await batch.find(({ value }) => value === go)?.commit(doubled, 2 * (go as number));
      }
    }
    return sizes;
  }

  /** Gives one go after the other, each when the output of the one before has been seen; it is visible at the next take. */
  async drive(goes: Sink<number>, doubled: Source<number>, order: readonly number[]): Promise<number[]> {
    const seen: number[] = [];
    for (const go of order) {
      await goes.put(go);
      seen.push(...((await doubled.take({ items: 1 })) ?? []));
    }
    return seen;
  }
}
