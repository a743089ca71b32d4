/** Ranks that meet after every batch, as those of a trainer whose engine is sharded over them. */
import { existsSync, writeFileSync } from "node:fs";
import { type Source, Worker } from "@treadle/runtime";
import { z } from "zod";

export const Load = z
  .strictObject({ id: z.int(), tokens: z.int() })
  .meta({ module: import.meta.url, exportName: "Load" });
export type Load = z.infer<typeof Load>;

export class SteppingWorker extends Worker<Record<string, never>> {
  static override readonly module: string = import.meta.url;
  static override readonly restart: "rank" | "group" = "group";

  /** What came in each round. With `death`, the last rank's process ends once, in its second round, and leaves that file. */
  async follow(source: Source<Load>, { death }: { readonly death?: string } = {}): Promise<Load[][]> {
    const rounds: Load[][] = [];
    for await (const batch of source.batches({ gang: true, acknowledge: "call" })) {
      rounds.push(batch);
      const [arrived] = await this.messages.allReduceSum(Float64Array.of(rounds.length));
      if (arrived !== rounds.length * this.worldSize)
        throw new Error(`rounds differ: ${arrived} in round ${rounds.length}`);
      if (death === undefined || this.rank < this.worldSize - 1 || rounds.length < 2 || existsSync(death)) continue;
      writeFileSync(death, "");
      process.exit(1);
    }
    return rounds;
  }

  /** As many as this rank is told to take, all of them once. */
  async takeOnce(source: Source<Load>, items: readonly number[]): Promise<readonly Load[]> {
    return (await source.take({ gang: true, items: items[this.rank] as number })) ?? [];
  }
}

export class LooseWorker extends SteppingWorker {
  static override readonly module: string = import.meta.url;
  static override readonly restart = "rank";
}
