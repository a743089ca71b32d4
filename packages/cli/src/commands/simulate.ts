/** `treadle simulate`: a plan on virtual time, on any number of devices. */
import { mkdtemp, readFile, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, dirname, join, resolve } from "node:path";
import { type DeviceSpec, PlacementMode, type Plan, type Profile, TreadleError } from "@treadle/contracts";
import { toHtmlTimeline } from "@treadle/dashboard";
import { TraceWriter } from "@treadle/observe";
import { profilePath, readProfile, validateWorkflow } from "@treadle/runtime/runner";
import { planVirtualCluster, type SimulationResult, simulate } from "@treadle/simulation";
import { Command, Option } from "commander";
import { z } from "zod";
import { describeMismatch } from "../view/profile-match.ts";
import { simulationTable } from "../view/simulation-table.ts";
import { singleLine } from "../view/text.ts";
import { realNumber, wholeNumber } from "./number-flags.ts";
import { readPlanFile } from "./plan-file.ts";
import { findProjectRoot } from "./project.ts";
import { withSettings } from "./settings.ts";
import { simulateActionsCommand } from "./simulate-actions.ts";
import { simulateMultiplexCommand } from "./simulate-multiplex.ts";
import { simulateRolloutCommand } from "./simulate-rollout.ts";

type SimulateFlags = {
  readonly set: readonly string[];
  readonly config?: string;
  readonly devices?: string;
  readonly profile?: string;
  readonly mode?: PlacementMode | "auto";
  readonly maxStaleness?: string;
  readonly deviceMemoryMib?: string;
  readonly tail?: string;
  readonly steps: string;
  readonly seed: string;
  readonly json?: boolean;
  readonly html?: string | true;
};

const searchMs = 20_000;

export function simulateCommand(): Command {
  return withSettings(new Command("simulate"))
    .addCommand(simulateActionsCommand())
    .addCommand(simulateRolloutCommand())
    .addCommand(simulateMultiplexCommand())
    .description("runs a plan on virtual time, with the times that a profile measured, on any number of devices")
    .argument("<workflow|plan.json>", "folder of a profiled workflow, or a plan, as in the folder of a run")
    .option("--config <file>", "configuration file (default: config.yaml of the workflow)")
    .option("--devices <count>", "of each kind; default: as many as were profiled")
    .addOption(new Option("--mode <mode>", "default: auto").choices([...PlacementMode.options, "auto"]))
    .option("--max-staleness <steps>", "by which steps may overlap; default: 0")
    .option("--device-memory-mib <number>", "of each device; without it everything fits")
    .option("--profile <file>", "default: .treadle/profiles/<path of the workflow>.json")
    .option("--tail <component=spread,…>", "standard deviation of the logarithm of its items' lengths, as rollout=0.8")
    .option("--steps <count>", "steps to run", "10")
    .option("--seed <number>", "equal seeds give equal runs", "0")
    .option("--json", "prints one object")
    .option("--html [file]", "writes the timeline as a page (default: <workflow>-simulation.html)")
    .action(async (target: string, flags: SimulateFlags) => {
      const startedMs = performance.now();
      const { profile, plan, devices, predictedSeconds } = await (target.endsWith(".json")
        ? readPlan(target, flags)
        : planWorkflow(target, flags));
      const result = simulate({
        plan,
        profile,
        devices,
        steps: wholeNumber("--steps", flags.steps, { least: 1 }),
        seed: wholeNumber("--seed", flags.seed),
        traits: tails(flags.tail),
        trace: flags.html !== undefined,
      });
      const seconds = (performance.now() - startedMs) / 1000;
      const { traces, ...figures } = result;
      if (flags.json) process.stdout.write(`${JSON.stringify({ ...figures, predictedSeconds, plan })}\n`);
      else {
        const lines = simulationTable({ workflow: profile.workflow, plan, result, predictedSeconds, seconds });
        process.stdout.write(`${lines.join("\n")}\n`);
      }
      if (flags.html === undefined) return;
      const file = flags.html === true ? `${profile.workflow}-simulation.html` : flags.html;
      await writePage(file, traces, `${profile.workflow}, simulated`);
      if (!flags.json) process.stdout.write(`\n${file}: the timeline; open it in a browser\n`);
    });
}

type Simulated = {
  readonly profile: Profile;
  readonly plan: Plan;
  readonly devices?: readonly DeviceSpec[] | undefined;
  readonly predictedSeconds: number | undefined;
};

async function planWorkflow(folder: string, flags: SimulateFlags): Promise<Simulated> {
  const profile = readProfile(profilePath(findProjectRoot(), folder, flags.profile), basename(resolve(folder)));
  const profiled = Object.values(profile.components).flatMap(({ samples }) => samples.map((each) => each.devices));
  const options = {
    devices:
      flags.devices === undefined ? Math.max(...profiled) : wholeNumber("--devices", flags.devices, { least: 1 }),
    mode: flags.mode ?? "auto",
    maxStaleness: flags.maxStaleness === undefined ? 0 : wholeNumber("--max-staleness", flags.maxStaleness),
    memoryBytesPerDevice: memoryOf(flags),
    deadlineMs: searchMs,
    nowMs: () => performance.now(),
  };
  // A profile alone says what components cost, and not how many ranks they may have.
  if (!(await stat(folder).catch(() => undefined))) return { profile, ...planVirtualCluster(profile, options) };
  let planned: ReturnType<typeof planVirtualCluster> | undefined;
  const { keys } = await validateWorkflow({
    workflow: folder,
    configFile: flags.config,
    overrides: flags.set,
    projectRoot: findProjectRoot(),
    decide: ({ components, wishes }) => {
      planned = planVirtualCluster(profile, { ...options, components, wishes });
      return { plan: planned.plan, why: [] };
    },
  });
  const mismatch = describeMismatch(profile, keys);
  if (mismatch !== undefined) process.stderr.write(`! ${singleLine(mismatch)}\n`);
  return { profile, ...(planned ?? planVirtualCluster(profile, options)) };
}

async function readPlan(path: string, flags: SimulateFlags): Promise<Simulated> {
  const misplaced = (["devices", "mode", "maxStaleness"] as const).find((name) => flags[name] !== undefined);
  if (misplaced !== undefined) {
    const flag = misplaced.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
    throw new TreadleError(
      "problem.invalid",
      `--${flag} is of no use with '${path}', which says it all; give the workflow's folder instead to make another plan`,
    );
  }
  const plan = await readPlanFile(path);
  const workflow = await workflowOfRun(dirname(resolve(path)));
  if (workflow === undefined && flags.profile === undefined) {
    throw new TreadleError(
      "problem.invalid",
      `'${path}' is in no run's folder, so its workflow is not known; name the profile with --profile`,
    );
  }
  const folder = workflow ?? basename(flags.profile as string, ".json");
  const profile = readProfile(profilePath(findProjectRoot(), folder, flags.profile), basename(folder));
  const memoryBytes = memoryOf(flags);
  const ids = new Set(Object.values(plan.components).flatMap(({ ranks }) => ranks.flatMap((rank) => rank.devices)));
  const devices =
    memoryBytes === undefined
      ? undefined
      : [...ids].map((id, index) => ({ id, index, node: "virtual", kind: "virtual", memoryBytes }));
  return { profile, plan, devices, predictedSeconds: undefined };
}

/** A run's folder has the path of its workflow beside the plan. */
async function workflowOfRun(folder: string): Promise<string | undefined> {
  const file = join(folder, "config.json");
  if (!(await stat(file).catch(() => undefined))) return undefined;
  const parsed = z.object({ workflow: z.string() }).safeParse(JSON.parse(await readFile(file, "utf8")));
  return parsed.success ? resolve(findProjectRoot(), parsed.data.workflow) : undefined;
}

async function writePage(file: string, traces: SimulationResult["traces"], title: string): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), "treadle-simulation-"));
  try {
    const trace = join(folder, "trace.jsonl");
    using writer = new TraceWriter(trace);
    for (const batch of traces) writer.append({ ...batch, records: [...batch.records] });
    await toHtmlTimeline([trace], file, { title });
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

function memoryOf({ deviceMemoryMib }: SimulateFlags): number | undefined {
  if (deviceMemoryMib === undefined) return undefined;
  return realNumber("--device-memory-mib", deviceMemoryMib, { above: 0 }) * 2 ** 20;
}

function tails(text: string | undefined): Record<string, { lengthSpread: number }> {
  const entries = (text ?? "").split(",").filter((part) => part !== "");
  return Object.fromEntries(
    entries.map((entry) => {
      const [, name, spread] = /^(.+)=([^=]+)$/.exec(entry) ?? [];
      const lengthSpread = Number(spread);
      if (name !== undefined && lengthSpread >= 0 && lengthSpread <= 10) return [name, { lengthSpread }];
      throw new TreadleError(
        "problem.invalid",
        `--tail '${entry}' is not allowed: component=spread with a spread from 0 to 10 is, as rollout=0.8`,
      );
    }),
  );
}
