/** Runs of `treadle multiplex` whose stages only take time, for drawn times, next to the same runs had in other ways. */
import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import type { MeasuredSlowdown } from "@treadle/contracts";
import { createRandom } from "@treadle/learning";
import { DrawnRun, runShapes, shareDrawnRuns, slowBeside } from "@treadle/simulation";
import { type BenchRow, row } from "./row.ts";

const workflow = fileURLToPath(new URL("../src/multiplex/drawn-stages", import.meta.url));
const execute = promisify(execFile);

type Shapes = readonly (keyof typeof runShapes)[];
type Setting = {
  readonly mix: Shapes;
  readonly devices: number;
  readonly steps: number;
  /** of the seconds of a shape */
  readonly scale: number;
  readonly shares: boolean;
};
const settings: readonly Setting[] = [
  { mix: ["reasoning", "tools"], devices: 2, steps: 5, scale: 0.05, shares: false },
  { mix: ["tools", "tools"], devices: 2, steps: 5, scale: 0.05, shares: false },
  { mix: ["reasoning", "tools"], devices: 8, steps: 10, scale: 0.15, shares: true },
  { mix: ["tools", "tools", "reasoning"], devices: 8, steps: 10, scale: 0.15, shares: true },
];
/** Of the table by which emulated engines slow each other down. */
const interference = 0.6;
const stages = ["rollout", "train"] as const;
type Bounds = Pick<Parameters<typeof row>[0], "ratioAtMost" | "ratioAtLeast">;
/**
 * Of a machine that does nothing else. Not of two devices, where it matters by a tenth, on virtual time too, which run begins
 * first; live, the one whose process starts sooner does.
 */
const asSimulated = { ratioAtMost: 1.03, ratioAtLeast: 0.97 };
const notMeasured = "engines of real models: stages take emulated time; start and end of processes";

/** `pool`: address of the server where a pool is, for one run in it. */
type Way = { readonly keepsForSteps?: boolean; readonly shares?: boolean; readonly pool?: string };
type Together = { readonly seconds: number; readonly slowdowns: readonly MeasuredSlowdown[] };

/** A minute or two for each mix of runs. Each way is measured by the runs themselves, from the first begin to the last end. */
export async function* benchMultiplex(): AsyncGenerator<BenchRow> {
  const seed = Number(process.env.TREADLE_SEED ?? 1);
  for (const { mix, devices, steps, scale, shares } of settings) {
    const turnSeconds = 10 * scale;
    const runs = mix.map((shape, index) => {
      const drawn = createRandom(seed)
        .split(index)
        .integer(2 ** 32);
      return new DrawnRun({ name: `${shape}-${index}`, shape: runShapes[shape], scale, devices, seed: drawn });
    });
    const together = (some: readonly DrawnRun[], way: Way = {}) =>
      executed(some, { ...way, devices, steps, turnSeconds });
    const simulated = (besides = shares) => {
      const shared = { devices, steps, placement: "temporal", maxStaleness: 0, turnSeconds } as const;
      const table = besides ? { besides: slowBeside(interference) } : {};
      return shareDrawnRuns(runs, { ...shared, ...table }).makespanMs / 1000;
    };
    const name = `${mix.join(" + ")}, ${steps} steps on ${devices} devices, seed ${seed}`;
    const timed = (what: string, value: number, baseline: number, against: string, bounds: Bounds = {}) =>
      row({ name: `${name}: ${what}`, value, unit: "s", baseline, against, notMeasured, ...bounds });
    const one = shares ? "one run after the other, on virtual time" : "one run after the other";
    const virtual = "the same on virtual time, where messages take a millisecond";
    const bounds = devices > 2 ? asSimulated : {};
    let serial = 0;
    const placed = { devices: names(devices), steps, placement: "temporal", maxStaleness: 0 } as const;
    for (const run of runs) {
      if (!shares) serial += (await together([run])).seconds;
      else {
        const alone = run.simulated(placed);
        alone.execute();
        serial += alone.nowMs / 1000;
      }
    }
    if (!shares) {
      const whole = await together(runs, { keepsForSteps: true });
      yield timed("whole steps in turns", whole.seconds, serial, one);
    }
    const leases = await together(runs);
    yield timed("by leases", leases.seconds, serial, one);
    yield timed("by leases, live", leases.seconds, simulated(false), virtual, bounds);
    if (!shares) continue;
    const beside = await together(runs, { shares });
    yield timed("beside each other", beside.seconds, serial, one);
    yield timed("beside each other, live", beside.seconds, simulated(), virtual, bounds);
    for (const stage of stages)
      for (const other of stages) {
        const found = beside.slowdowns.filter((each) => isOf(each.work, stage) && isOf(each.beside, other));
        if (found.length === 0) continue;
        const table = slowBeside(interference)(stage, other);
        const furthest = found.reduce((a, b) => (Math.abs(a.factor - table) > Math.abs(b.factor - table) ? a : b));
        const { factor } = furthest;
        const against = "the table by which the engines are slowed";
        yield row({
          ...{ name: `${name}: ${stage} beside ${other}, measured`, value: factor, unit: "times as long", notMeasured },
          ...{ baseline: table, against, ...asSimulated },
        });
      }
  }
}

const names = (count: number): string[] => Array.from({ length: count }, (_, i) => `cpu:${i}`);

const isOf = (work: string, component: string): boolean => work.startsWith(`${component}@`);

export async function executed(
  runs: readonly DrawnRun[],
  options: Way & { readonly devices: number; readonly steps: number; readonly turnSeconds: number },
): Promise<Together> {
  const { devices, steps, turnSeconds, keepsForSteps = false, shares = false, pool } = options;
  const folder = await mkdtemp(join(tmpdir(), "treadle-bench-multiplex-"));
  try {
    const ledger = join(folder, "ledger.txt");
    const table = Object.fromEntries(
      stages.map((stage) => [
        stage,
        Object.fromEntries(stages.map((each) => [each, slowBeside(interference)(stage, each)])),
      ]),
    );
    const settings: string[][] = [];
    for (const run of runs) {
      const file = join(folder, `${run.name}.json`);
      await writeFile(file, JSON.stringify(Array.from({ length: steps }, (_, step) => run.step(step + 1))));
      const own = { name: run.name, stages: file, ledger, steps, devices, keepsForSteps, runs: runs.length };
      const values = Object.entries(own).map(([key, value]) => `${key}=${value}`);
      const sharing = shares ? ["pool.share=always", `besides=${JSON.stringify(table)}`] : [];
      settings.push([...values, `cluster.devices=${devices}`, ...sharing]);
    }
    const [only] = runs.length === 1 ? settings : [];
    const args = only
      ? ["run", workflow, ...only.flatMap((each) => ["--set", each]), ...(pool ? ["--pool", "--nats", pool] : [])]
      : [
          ...["multiplex", "--turn", String(turnSeconds), "--beat-limit", "60"],
          ...runs.map(({ name }) => `${name}=${workflow}`),
          ...settings.flatMap((own, i) => own.flatMap((each) => ["--set", `${runs[i]?.name}.${each}`])),
        ];
    const script = process.argv[1] as string;
    const command = [...process.execArgv, script, ...args, "--json", "--runs", join(folder, "runs")];
    const { stdout } = await execute(process.execPath, command, { maxBuffer: 2 ** 26 });
    const { slowdowns = [] } = JSON.parse(stdout) as Partial<Together>;
    return { seconds: secondsIn(await readFile(ledger, "utf8")), slowdowns };
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
