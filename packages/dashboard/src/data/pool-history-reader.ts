/** Reads a pool's history. Lines that are no entries, half-written ones among them, are left out and counted. Empty lines are nothing. */
import { createReadStream } from "node:fs";
import { createInterface } from "node:readline";
import { PoolEntry } from "@treadle/contracts";

export type PoolHistoryText = { readonly entries: readonly PoolEntry[]; readonly numDamaged: number };

/** Of files in the order in which they were written; one that is missing has nothing. */
export async function readPoolHistory(files: readonly string[]): Promise<PoolHistoryText> {
  const entries: PoolEntry[] = [];
  let numDamaged = 0;
  for (const file of files) {
    const input = createReadStream(file, "utf8");
    try {
      for await (const line of createInterface({ input, crlfDelay: Number.POSITIVE_INFINITY })) {
        if (line === "") continue;
        const entry = entryOf(line);
        if (entry !== undefined) entries.push(entry);
        else numDamaged++;
      }
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
    }
  }
  return { entries, numDamaged };
}

function entryOf(line: string): PoolEntry | undefined {
  try {
    return PoolEntry.safeParse(JSON.parse(line)).data;
  } catch {
    return undefined;
  }
}
