import type { WorkerGroup } from "@treadle/runtime";
import { releaseArrays } from "@treadle/transport";
import { HandWorker } from "./hand-worker.ts";
import { touch } from "./stream-workers.ts";

/** Gets what another group's rank gives all of them, and makes collectives with its fellow ranks. */
export class CollectiveWorker extends HandWorker {
  static override readonly module: string = import.meta.url;
  #own = new Float32Array(0);

  async receive(from: string, tag: string): Promise<number> {
    const data = await this.messages.broadcastFrom<Float32Array>(from, tag);
    const touched = touch(data);
    releaseArrays(data);
    return touched;
  }

  /** What it sums by `allReduce` and by `throughFirst`. */
  async fill(sizeBytes: number): Promise<void> {
    this.#own = new Float32Array(sizeBytes / 4).fill(this.rank);
  }

  async allReduce(): Promise<number> {
    const total = await this.messages.allReduceSum(this.#own);
    const touched = touch(total);
    releaseArrays(total);
    return touched;
  }

  /** The same sum, by the first rank alone. */
  async throughFirst(): Promise<number> {
    const parts = await this.messages.gather(this.#own);
    let sum = this.#own;
    if (parts) {
      sum = this.#own.slice();
      for (const part of parts.slice(1)) {
        for (let i = 0; i < sum.length; i++) sum[i] = (sum[i] as number) + (part[i] as number);
        releaseArrays(part);
      }
    }
    const total = await this.messages.broadcast(sum);
    const touched = touch(total);
    if (this.rank > 0) releaseArrays(total);
    return touched;
  }
}

/** Gives all ranks of another group the same numbers. */
export class RootWorker extends HandWorker {
  static override readonly module: string = import.meta.url;

  async broadcast(to: WorkerGroup<CollectiveWorker>, tag: string): Promise<void> {
    await this.messages.broadcastTo(to, this.data, tag);
  }

  async sendToEach(to: WorkerGroup<CollectiveWorker>, tag: string): Promise<void> {
    const ranks = Array.from({ length: to.size }, (_, rank) => `${to.groupName}/${rank}`);
    await Promise.all(ranks.map((rank) => this.messages.send(rank, this.data, tag)));
  }
}
