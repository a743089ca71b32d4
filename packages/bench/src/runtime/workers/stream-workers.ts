import type { Sink, Source } from "@treadle/runtime";
import { Worker } from "@treadle/runtime";
import { type BulkItem, type SmallItem, smallItem } from "../items.ts";

/** Puts items in batches. */
export class ProducerWorker extends Worker<Record<string, never>> {
  static override readonly module = import.meta.url;
  #bulk: Float32Array<ArrayBuffer> | undefined;

  async produce(items: Sink<SmallItem>, count: number, sizeBytes: number, batch: number): Promise<void> {
    const texts = Array.from({ length: batch }, (_, i) => smallItem(i, sizeBytes));
    for (let at = 0; at < count; at += batch)
      await items.put(...(at + batch > count ? texts.slice(0, count - at) : texts));
  }

  async produceBulk(items: Sink<BulkItem>, count: number, sizeBytes: number): Promise<void> {
    const data = this.#fill(sizeBytes);
    for (let id = 0; id < count; id++) await items.put({ id, data });
  }

  async sendBulk(to: string, count: number, sizeBytes: number): Promise<void> {
    const data = this.#fill(sizeBytes);
    for (let id = 0; id < count; id++) await this.messages.send(to, data, "bulk");
  }

  #fill(sizeBytes: number): Float32Array<ArrayBuffer> {
    if (this.#bulk?.byteLength !== sizeBytes) this.#bulk = new Float32Array(sizeBytes / 4).fill(1);
    return this.#bulk;
  }
}

/** Takes what producers put. */
export class ConsumerWorker extends Worker<Record<string, never>> {
  static override readonly module = import.meta.url;

  async consume(items: Source<SmallItem>, batch: number): Promise<number> {
    let count = 0;
    for await (const taken of items.batches({ items: batch })) count += taken.length;
    return count;
  }

  async consumeBulk(items: Source<BulkItem>): Promise<number> {
    let touched = 0;
    for await (const [item] of items.batches({ items: 1 })) touched += touch((item as BulkItem).data);
    return touched;
  }

  async receiveBulk(from: string, count: number): Promise<number> {
    let touched = 0;
    for (let id = 0; id < count; id++) touched += touch(await this.messages.recv<Float32Array>(from, "bulk"));
    return touched;
  }
}

/** Reads something of every cache line, so that memory which was only promised is paid for. */
export function touch(data: Float32Array): number {
  let sum = 0;
  for (let index = 0; index < data.length; index += 16) sum += data[index] as number;
  return sum;
}
