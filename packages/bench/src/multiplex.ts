/** Runs of `treadle multiplex` whose stages only sleep, for drawn times, next to the same runs had in other ways. */
import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { createRandom } from "@treadle/learning";
import { DrawnRun, runShapes, shareDrawnRuns } from "@treadle/simulation";
import { type BenchRow, row } from "./row.ts";

const workflow = fileURLToPath(new URL("../src/multiplex/drawn-stages", import.meta.url));
const execute = promisify(execFile);

const devices = 2;
const steps = 5;
/** of the seconds of a shape */
const scale = 0.05;
const turnSeconds = 10 * scale;
const mixes = [
  ["reasoning", "tools"],
  ["tools", "tools"],
] as const;
const notMeasured = "computing that is slower beside others: stages sleep; start and end of processes";

/** A minute or two for each mix of runs. Each way is measured by the runs themselves, from the first begin to the last end. */
export async function* benchMultiplex(): AsyncGenerator<BenchRow> {
  const seed = Number(process.env.TREADLE_SEED ?? 1);
  for (const mix of mixes) {
    const runs = mix.map((shape, index) => {
      const drawn = createRandom(seed)
        .split(index)
        .integer(2 ** 32);
      return new DrawnRun({ name: `${shape}-${index}`, shape: runShapes[shape], scale, devices, seed: drawn });
    });
    const name = `${mix.join(" + ")}, ${steps} steps on ${devices} devices, seed ${seed}`;
    const against = "one run after the other";
    let serial = 0;
    for (const run of runs) serial += await together([run], false);
    const wholeSteps = await together(runs, true);
    yield row({
      name: `${name}: whole steps in turns`,
      value: wholeSteps,
      unit: "s",
      baseline: serial,
      against,
      notMeasured,
    });
    const leases = await together(runs, false);
    yield row({ name: `${name}: by leases`, value: leases, unit: "s", baseline: serial, against, notMeasured });
    const placed = { devices, steps, placement: "temporal", maxStaleness: 0, turnSeconds } as const;
    yield row({
      name: `${name}: by leases, live`,
      value: leases,
      unit: "s",
      baseline: shareDrawnRuns(runs, placed).makespanMs / 1000,
      against: "the same on virtual time, where messages take a millisecond",
      notMeasured,
    });
  }
}

/** Seconds. */
async function together(runs: readonly DrawnRun[], keepsForSteps: boolean): Promise<number> {
  const folder = await mkdtemp(join(tmpdir(), "treadle-bench-multiplex-"));
  try {
    const ledger = join(folder, "ledger.txt");
    const settings: string[][] = [];
    for (const run of runs) {
      const stages = join(folder, `${run.name}.json`);
      await writeFile(stages, JSON.stringify(Array.from({ length: steps }, (_, step) => run.step(step + 1))));
      const own = { name: run.name, stages, ledger, steps, keepsForSteps, runs: runs.length };
      const values = Object.entries(own).map(([key, value]) => `${key}=${value}`);
      settings.push([...values, `cluster.devices=${devices}`]);
    }
    const [only] = runs.length === 1 ? settings : [];
    const args = only
      ? ["run", workflow, ...only.flatMap((each) => ["--set", each])]
      : [
          ...["multiplex", "--turn", String(turnSeconds), "--beat-limit", "60"],
          ...runs.map(({ name }) => `${name}=${workflow}`),
          ...settings.flatMap((own, i) => own.flatMap((each) => ["--set", `${runs[i]?.name}.${each}`])),
        ];
    const script = process.argv[1] as string;
    await execute(process.execPath, [...process.execArgv, script, ...args, "--json", "--runs", join(folder, "runs")]);
    return secondsIn(await readFile(ledger, "utf8"));
  } finally {
    await rm(folder, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 });
  }
}

/** From the first begin to the last end. */
function secondsIn(ledger: string): number {
  const lines = ledger
    .trim()
    .split("\n")
    .map((line) => line.split(" "));
  const at = (what: string) => lines.filter((line) => line[1] === what).map((line) => Number(line[2]));
  return (Math.max(...at("ends")) - Math.min(...at("begins"))) / 1000;
}
