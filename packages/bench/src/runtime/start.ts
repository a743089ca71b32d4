/** From spawning a worker's process to its being ready for calls, compiled and from sources, next to a bare process. */

import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { median } from "@treadle/contracts";
import { scriptArguments } from "../processes.ts";
import { type BenchRow, row, timed } from "../row.ts";

const run = promisify(execFile);
const rounds = 5;

export async function benchStart(): Promise<BenchRow[]> {
  const bareMs: number[] = [];
  for (let round = 0; round < rounds; round++) {
    bareMs.push(await timed(() => run(process.execPath, ["-e", ""])));
  }
  const rows: BenchRow[] = [];
  for (const kind of ["compiled", "sources"] as const) {
    const times = await probe(kind);
    rows.push(
      row({
        name: `worker start, spawn to ready, ${kind === "compiled" ? "compiled" : "from sources"}`,
        value: times ? median(times) : null,
        unit: "ms",
        baseline: median(bareMs),
        against: "a bare node process, start to exit",
        notMeasured: `${times ? "" : `the package has no ${kind} here; `}the user's setup(), a cold disk, many at once`,
      }),
    );
  }
  return rows;
}

/** The folder that this module is in has a twin: `src/runtime` and `dist/runtime`. */
async function probe(kind: "compiled" | "sources"): Promise<number[] | undefined> {
  const file = kind === "compiled" ? "../../dist/runtime/start-probe.js" : "../../src/runtime/start-probe.ts";
  const path = fileURLToPath(new URL(file, import.meta.url));
  if (!existsSync(path)) return undefined;
  const env = { ...process.env, TREADLE_COMPILED: kind === "compiled" ? "1" : "" };
  const { stdout } = await run(process.execPath, [...scriptArguments(path), String(rounds)], { env });
  return JSON.parse(stdout) as number[];
}
