/** What it takes a node to say which code it would run: of this checkout, whose sources and builds are some 1,500 entries. */
import { createHash } from "node:crypto";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { median } from "@treadle/contracts";
import { ProjectCode } from "@treadle/runtime/internal";
import { type BenchRow, medianMs, row, timed } from "../row.ts";

const checkout = fileURLToPath(new URL("../../../..", import.meta.url));
const rounds = 7;
const whileFilesSettleMs = 60_000;

export async function benchCode(): Promise<BenchRow[]> {
  const paths = [...(await new ProjectCode(checkout).current()).files.keys()];
  const readAllMs = await medianMs(rounds, async () => {
    const hash = createHash("sha256");
    for (const path of paths) hash.update(await readFile(join(checkout, path)).catch(() => "")); // packages are no files
  });
  const coldMs: number[] = [];
  const keptMs: number[] = [];
  for (let round = 0; round < rounds; round++) {
    let nowMs = 0;
    const code = new ProjectCode(checkout, { nowMs: () => nowMs });
    coldMs.push(await timed(() => code.current()));
    nowMs += whileFilesSettleMs;
    await code.current();
    keptMs.push(await timed(() => code.current()));
  }
  const against = `reading and hashing the same ${paths.length} entries, one after the other`;
  const notMeasured = "a cold disk, network file systems";
  return [
    row({
      name: "code of this checkout, the first time",
      value: median(coldMs),
      unit: "ms",
      baseline: readAllMs,
      against,
      notMeasured,
    }),
    row({
      name: "code of this checkout, with hashes kept",
      value: median(keptMs),
      unit: "ms",
      baseline: readAllMs,
      against,
      notMeasured,
    }),
  ];
}
