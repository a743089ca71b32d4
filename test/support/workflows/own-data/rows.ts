/**
 * Sums without end, from a row on that is a position; each draw is noted, as `{ pid, row, count }`, in the file that the settings name. With
 * `holdAfter`, a process that has drawn so often waits to be killed, until a file `<notes>.free` lets all others go on.
 */
import { appendFileSync, existsSync } from "node:fs";
import type { DatasetContext, OwnDataset } from "@treadle/workers";

export function createDataset({ settings }: DatasetContext): OwnDataset {
  const { notes, holdAfter } = settings as { notes?: string; holdAfter?: number };
  let numDraws = 0;
  const rowsFrom = (from: number, count: number) =>
    Array.from({ length: count }, (_, at) => ({ row: from + at, prompt: `${from + at}+1=`, answer: from + at + 1 }));
  return {
    async draw(position, count) {
      if (holdAfter !== undefined && ++numDraws > holdAfter && !existsSync(`${notes}.free`))
        await new Promise(() => {});
      const own = (position ?? { row: 0 }) as { row: number };
      const { row } = own;
      if (notes !== undefined) appendFileSync(notes, `${JSON.stringify({ pid: process.pid, row, count })}\n`);
      // The object that it was given, changed, as code of users may do it.
      own.row += count;
      return { rows: rowsFrom(row, count), position: own };
    },
    heldOut: (count) => rowsFrom(10_000, count),
    validation: (count) => rowsFrom(20_000, count),
  };
}
