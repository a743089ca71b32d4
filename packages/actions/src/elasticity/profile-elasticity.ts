/**
 * Measures how a command gains from cores, with a real driver: E(m) of Eq. 1 (ARL-Tangram §4.1). A run during which
 * others used its cores would make it look less elastic than it is, so it does not count.
 */
import { readFile } from "node:fs/promises";
import { median, TreadleError } from "@treadle/contracts";
import type { Sandbox, SandboxDriver } from "../drivers/sandbox.ts";
import { contention, parseCoreTicks } from "./contention.ts";
import { analyseSamples, type ElasticityProfile, type ElasticitySample } from "./elasticity-profile.ts";
import { fillTemplate } from "./parallel-command.ts";

export type ProfileElasticityOptions = {
  readonly kind: string;
  /** with `{parallel}` where the number of units goes */
  readonly template: readonly string[];
  readonly driver: SandboxDriver;
  /** core numbers; a run on m units gets the first m */
  readonly cores: readonly number[];
  /** ascending, each at most the number of cores */
  readonly units: readonly number[];
  /** accepted runs of each */
  readonly samples?: number | undefined;
  /** runs of each, rejected ones included */
  readonly maxRuns?: number | undefined;
  /** share of the cores' time that others may take */
  readonly tolerance?: number | undefined;
  readonly timeoutMs?: number | undefined;
  readonly environment?: Readonly<Record<string, string>> | undefined;
  /** runs once before the first measurement, such as unpacking files */
  readonly prepare?: ((sandbox: Sandbox) => Promise<void>) | undefined;
  readonly onRun?: ((run: ProfiledRun) => void) | undefined;
  readonly signal?: AbortSignal | undefined;
};

export type ProfiledRun = {
  readonly units: number;
  readonly seconds: number;
  /** share of the cores' time that went to others */
  readonly othersShare: number;
  readonly accepted: boolean;
};

const timesFile = ".treadle-times";
/** `times` tells the processor time of the command and of all it waited for. */
const script = `"$@"; code=$?; times > ${timesFile}; exit $code`;

/** Throws `action.failed` when the command does: a failing command's time says nothing. */
export async function profileElasticity(options: ProfileElasticityOptions): Promise<ElasticityProfile> {
  const { kind, template, driver, units, samples = 3, maxRuns = 10 } = options;
  const sandbox = await driver.open();
  try {
    await options.prepare?.(sandbox);
    // Fills caches; nothing is learned from it.
    await runOnce(sandbox, options, units.at(-1)!);
    const measured: ElasticitySample[] = [];
    for (const count of units) {
      const runs: ProfiledRun[] = [];
      while (runs.length < maxRuns && runs.filter(({ accepted }) => accepted).length < samples) {
        const run = await runOnce(sandbox, options, count);
        runs.push(run);
        options.onRun?.(run);
      }
      const accepted = runs.filter((run) => run.accepted);
      // Others only ever make it slower: the fastest is then the nearest to the truth.
      const contended = accepted.length === 0;
      const seconds = contended ? Math.min(...runs.map((run) => run.seconds)) : median(accepted.map((r) => r.seconds));
      measured.push({
        units: count,
        seconds,
        accepted: accepted.length,
        rejected: runs.length - accepted.length,
        contended,
      });
    }
    return {
      version: 1,
      kind,
      command: [...template],
      driver: driver.name,
      measuredAt: new Date().toISOString(),
      samples: measured,
      ...analyseSamples(measured),
    };
  } finally {
    await sandbox.close();
  }
}

async function runOnce(sandbox: Sandbox, options: ProfileElasticityOptions, units: number): Promise<ProfiledRun> {
  const { template, tolerance = 0.1, signal, timeoutMs = 600_000 } = options;
  const cores = options.cores.slice(0, units);
  const before = await readCoreTicks();
  const result = await sandbox.exec({
    command: ["sh", "-c", script, "profile", ...fillTemplate(template, units)],
    environment: { TREADLE_UNITS_CPU: String(units), ...options.environment },
    cores,
    timeoutMs,
    signal,
  });
  const after = await readCoreTicks();
  signal?.throwIfAborted();
  if (result.exitCode !== 0) {
    const output = `${result.stdout}${result.stderr}`.trim().split("\n").slice(-8).join("\n");
    const how = result.exitCode === null ? result.status : `exit code ${result.exitCode}`;
    throw new TreadleError(
      "action.failed",
      `the command ended on ${units} units with ${how}, and the time of a failing command says nothing; its last lines:\n${output}`,
    );
  }
  const ownSeconds = parseTimes((await sandbox.readFile(timesFile)).toString());
  const othersShare = before && after ? contention(before, after, cores, ownSeconds) : 0;
  return { units, seconds: result.seconds, othersShare, accepted: othersShare <= tolerance };
}

/** Undefined outside of Linux, where every run counts. */
const readCoreTicks = () => readFile("/proc/stat", "utf8").then(parseCoreTicks, () => undefined);

/** `times` prints user and system time of the shell, then of its children, as `0m1.234s`; a command may print anything. */
export function parseTimes(text: string): number {
  return [...text.matchAll(/(?<!\d)(\d{1,9})m(\d[\d.]{0,15})s/g)].reduce(
    (sum, [, m, s]) => sum + Number(m) * 60 + Number(s),
    0,
  );
}
