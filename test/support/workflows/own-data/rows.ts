/** Sums without end, from a row on that is a position; each draw is noted, as `{ pid, row, count }`, in the file that the settings name. */
import { appendFileSync } from "node:fs";
import type { DatasetContext, OwnDataset } from "@treadle/workers";

export function createDataset({ settings }: DatasetContext): OwnDataset {
  const { notes } = settings as { notes?: string };
  const rowsFrom = (from: number, count: number) =>
    Array.from({ length: count }, (_, at) => ({ row: from + at, prompt: `${from + at}+1=`, answer: from + at + 1 }));
  return {
    async draw(position, count) {
      const { row } = (position ?? { row: 0 }) as { row: number };
      if (notes !== undefined) appendFileSync(notes, `${JSON.stringify({ pid: process.pid, row, count })}\n`);
      return { rows: rowsFrom(row, count), position: { row: row + count } };
    },
    heldOut: (count) => rowsFrom(10_000, count),
    validation: (count) => rowsFrom(20_000, count),
  };
}
