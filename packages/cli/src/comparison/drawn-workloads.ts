/**
 * `treadle compare --random`: workloads that a workflow's `draw.ts` draws, each compared and judged; what misses a limit or
 * cannot run is made as small as it can be and printed as a configuration.
 *
 * Owner of: the file of results, so that a long series can be ended and gone on with.
 */
import { appendFile, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { TreadleError } from "@treadle/contracts";
import { loadFile } from "@treadle/runtime/runner";
import { stringify } from "yaml";
import { z } from "zod";
import { compareApart } from "./compare-apart.ts";
import { type ComparedWorkload, type compareWorkload, judgeAgain } from "./compared-workload.ts";
import { isClearlyMissed, type Judged, judge } from "./judge.ts";
import { shrink } from "./shrink.ts";

/** What `draw.ts` of a workflow's folder exports. */
type Drawer = {
  readonly draw: (seed: number, index: number) => unknown;
  readonly smaller: (workload: unknown) => Iterable<unknown>;
  readonly configOf: (workload: unknown) => object;
};

/** What a result depends on besides its workload; `settings`: of `--set`, the last of each key. */
const MeasuredWith = z.strictObject({ settings: z.array(z.string()), steps: z.int(), precision: z.number() });
type MeasuredWith = z.infer<typeof MeasuredWith>;

export type DrawnResult = {
  readonly seed: number;
  readonly index: number;
  /** a configuration file */
  readonly configuration: string;
  /** absent in files of earlier versions */
  readonly measuredWith?: MeasuredWith | undefined;
  /** absent where it could not run */
  readonly compared?: ComparedWorkload;
  readonly failure?: string;
};

export type DrawnOptions = Omit<Parameters<typeof compareWorkload>[1], "configFile"> & {
  /** the command line's own script: each workload is compared by a process of its own */
  readonly script: string;
  /** of each seed */
  readonly count: number;
  readonly seeds: readonly number[];
  /** workloads that are measured at once */
  readonly parallel: number;
  /** results are added to it, and what it has is not measured again */
  readonly resultsFile: string | undefined;
  readonly mostShrinks: number;
  readonly print: (text: string) => void;
};

const Kept = z.looseObject({
  ...{ seed: z.int(), index: z.int(), configuration: z.string() },
  measuredWith: MeasuredWith.optional(),
});

export async function compareDrawn(options: DrawnOptions, onResult: (result: DrawnResult) => void): Promise<void> {
  const drawer = await loadDrawer(options.workflow);
  const { seeds, count, resultsFile, parallel } = options;
  const kept = resultsFile === undefined ? [] : await readResults(resultsFile);
  const measuredWith = measuredWithOf(options);
  let numUnsaid = 0;
  if (resultsFile !== undefined) await appendResults(resultsFile, "");
  const left = seeds.flatMap((seed) => Array.from({ length: count }, (_, index) => ({ seed, index })));
  const work = async (): Promise<void> => {
    for (let next = left.shift(); next && !options.stop?.aborted; next = left.shift()) {
      const { seed, index } = next;
      const workload = drawer.draw(seed, index);
      const configuration = stringify(drawer.configOf(workload));
      const known = kept.find((each) => each.seed === seed && each.index === index);
      if (known && known.configuration !== configuration) {
        throw new TreadleError(
          "problem.invalid",
          `'${resultsFile}' has another workload ${index} of seed ${seed} than is drawn now; remove the file, or give another`,
        );
      }
      if (known) {
        checkMeasuredWith(known, measuredWith, resultsFile as string);
        if (known.measuredWith === undefined) numUnsaid++;
        onResult(known);
        continue;
      }
      const result = {
        seed,
        index,
        configuration,
        measuredWith,
        ...(await compareOne(nameOf(seed, index), configuration, options)),
      };
      if (options.stop?.aborted) return;
      onResult(result);
      if (resultsFile !== undefined) await appendResults(resultsFile, `${JSON.stringify(result)}\n`);
      await makeSmaller(result, workload, drawer, options);
    }
  };
  await Promise.all(Array.from({ length: parallel }, work));
  if (numUnsaid > 0) options.print(unsaid(numUnsaid, resultsFile as string));
}

const unsaid = (count: number, path: string): string =>
  `# ${count} of the results in '${path}' are of an earlier version, which did not keep --set, --steps and --precision; they are taken as measured with those given now`;

function measuredWithOf({
  overrides = [],
  steps,
  precision,
}: Pick<DrawnOptions, "overrides" | "steps" | "precision">): MeasuredWith {
  return { settings: lastOfEach(overrides), steps, precision };
}

/** Of several settings of one key the last one counts, and keys come in any order. */
function lastOfEach(settings: readonly string[]): string[] {
  const byKey = new Map(settings.map((setting) => [setting.split("=", 1)[0] as string, setting]));
  return [...byKey.values()].sort();
}

/** Rows that were measured in another way do not belong into one table. */
function checkMeasuredWith({ seed, index, measuredWith: kept }: DrawnResult, now: MeasuredWith, path: string): void {
  if (kept === undefined || describeMeasuring(kept) === describeMeasuring(now)) return;
  throw new TreadleError(
    "problem.invalid",
    `'${path}' has workload ${index} of seed ${seed} as measured with '${describeMeasuring(kept)}', and asked for is '${describeMeasuring(now)}'; give the same flags, or another file`,
  );
}

const describeMeasuring = ({ settings, steps, precision }: MeasuredWith): string =>
  [...settings.map((setting) => `--set ${setting}`), `--steps ${steps}`, `--precision ${precision}`].join(" ");

/** What a file of results has, judged by the code as it is now; measures nothing and leaves the file as it is. */
export async function judgeResultsAgain(
  options: Parameters<typeof judgeAgain>[0] & { readonly resultsFile: string },
  onResult: (result: DrawnResult) => void,
): Promise<void> {
  const kept = await readResults(options.resultsFile);
  if (kept.length === 0)
    throw new TreadleError(
      "problem.invalid",
      `--again: '${options.resultsFile}' has no results; measure some with --random and --results first`,
    );
  const asked = lastOfEach(options.overrides ?? []);
  for (const result of kept) {
    const { seed, index, configuration, compared, measuredWith } = result;
    const overrides = measuredWith?.settings ?? options.overrides ?? [];
    if (asked.length > 0 && measuredWith && asked.join("\n") !== measuredWith.settings.join("\n"))
      throw new TreadleError(
        "problem.invalid",
        `--again: '${options.resultsFile}' has workload ${index} of seed ${seed} as measured with '${describeMeasuring(measuredWith)}'; leave out --set, which is taken from there`,
      );
    if (!compared) {
      onResult(result);
      continue;
    }
    const again = await withConfigFile(nameOf(seed, index), configuration, (configFile) =>
      judgeAgain({ ...options, overrides, configFile }, compared),
    );
    onResult({ ...result, compared: again });
  }
}

/** Why a workload is no good: the limits that it misses, or why it cannot run. */
type Fault = { readonly missed: readonly Judged[] } | { readonly failure: string };

/** A miss that another measurement may not have is none: what is made smaller by it would only follow the noise. */
function faultOf({ compared, failure }: Pick<DrawnResult, "compared" | "failure">): Fault | undefined {
  if (failure !== undefined) return { failure };
  const missed = compared ? judge(compared.plans).filter(isClearlyMissed) : [];
  return missed.length > 0 ? { missed } : undefined;
}

function isAlike(one: Fault, other: Fault): boolean {
  if ("failure" in one) return "failure" in other && wayOf(one.failure) === wayOf(other.failure);
  return (
    "missed" in other && one.missed.some((a) => other.missed.some((b) => a.of === b.of && a.plan.mode === b.plan.mode))
  );
}

/** What a failure says first, whatever its numbers and names are: a smaller workload has others. */
const wayOf = (failure: string): string => (failure.split(/[,;\n]|: /)[0] as string).replace(/'[^']*'|\d+/g, "…");

const describeFault = (fault: Fault): string =>
  "failure" in fault ? `did not run: ${fault.failure}` : fault.missed.map(describeMiss).join("; ");

/** Of one that is at fault: the smallest workload that is so in the same way is printed. */
async function makeSmaller(
  result: DrawnResult,
  workload: unknown,
  drawer: Drawer,
  options: DrawnOptions,
): Promise<void> {
  const fault = faultOf(result);
  if (fault === undefined || options.mostShrinks === 0) return;
  const name = nameOf(result.seed, result.index);
  const check = async (smaller: unknown): Promise<Fault | undefined> => {
    const configuration = stringify(drawer.configOf(smaller));
    const again = faultOf(await compareOne(`${name}, smaller`, configuration, options));
    return again && isAlike(fault, again) ? again : undefined;
  };
  const smallest = await shrink(
    { workload, failure: fault },
    { smaller: drawer.smaller, check, mostTries: options.mostShrinks },
  );
  // Each line of a comment begins as one.
  const comment = describeFault(smallest.failure).replaceAll("\n", "\n# ");
  options.print(`# ${name}: ${comment}\n${stringify(drawer.configOf(smallest.workload))}`);
}

const nameOf = (seed: number, index: number): string => `${seed}-${index}`;

export function describeMiss({ of, plan, off, limit, failure }: Judged): string {
  if (failure !== undefined) return `${plan.mode} (${plan.by}) cannot be ${of}: ${failure}`;
  const percent = (share: number): string => `${(100 * share).toFixed(1)} %`;
  const what = of === "auto" ? "auto is above the best mode" : `${plan.mode} (${plan.by}) is ${of} off`;
  return `${what} by ${percent(off)}, allowed are ${percent(limit)}`;
}

async function compareOne(
  name: string,
  configuration: string,
  { workflow, projectRoot, overrides = [], steps, precision, repeats, stop, kill, script }: DrawnOptions,
): Promise<Pick<DrawnResult, "compared" | "failure">> {
  return withConfigFile(name, configuration, async (configFile, folder) => {
    // A profile of its own: others are measured meanwhile, and the one of the workflow is not of this workload.
    const own = [...overrides, `placement.auto.profile=${join(folder, "profile.json")}`];
    const common = { workflow, projectRoot, overrides: own, configFile, steps, precision, repeats, stop, kill };
    const found = await compareApart(script, name, common);
    return stop?.aborted ? {} : found;
  });
}

/** In a folder that is gone afterwards. */
async function withConfigFile<T>(
  name: string,
  configuration: string,
  use: (configFile: string, folder: string) => Promise<T>,
): Promise<T> {
  const folder = await mkdtemp(join(tmpdir(), "treadle-drawn-"));
  try {
    const configFile = join(folder, `${name.replaceAll(/[^\w-]/g, "-")}.yaml`);
    await writeFile(configFile, configuration);
    return await use(configFile, folder);
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

async function loadDrawer(workflow: string): Promise<Drawer> {
  const exports = (await loadFile(workflow, "draw")) as Partial<Drawer> | undefined;
  if (exports?.draw && exports.smaller && exports.configOf) return exports as Drawer;
  throw new TreadleError(
    "problem.invalid",
    `--random: '${workflow}' draws no workloads: it has no 'draw.ts' that exports 'draw', 'smaller' and 'configOf'; 'workflows/emulated' has`,
  );
}

async function readResults(path: string): Promise<DrawnResult[]> {
  const text = await readFile(path, "utf8").catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return "";
    throw unusable(path, "read", error);
  });
  const lines = text.split("\n").filter((line) => line !== "");
  return lines.map((line, i) => {
    try {
      return Kept.parse(JSON.parse(line)) as unknown as DrawnResult;
    } catch (cause) {
      throw new TreadleError(
        "problem.invalid",
        `--results '${path}' has no result in line ${i + 1}; remove the line, or give another file`,
        { cause },
      );
    }
  });
}

async function appendResults(path: string, text: string): Promise<void> {
  try {
    await appendFile(path, text);
  } catch (error) {
    throw unusable(path, "written", error as Error);
  }
}

const unusable = (path: string, what: string, cause: Error): TreadleError =>
  new TreadleError(
    "problem.invalid",
    `--results '${path}' cannot be ${what}: ${cause.message}; give a file that can be written, in a folder that exists`,
    { cause },
  );
