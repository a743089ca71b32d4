/** `treadle compare`: one workflow in every mode, by one or several configurations, as a table. */
import { basename } from "node:path";
import type { Profile, RunEvent } from "@treadle/contracts";
import { type ComparedPlan, type CompareOptions, compareModes } from "@treadle/runtime/runner";
import { simulate } from "@treadle/simulation";
import { Command } from "commander";
import {
  type ComparedWorkload,
  compareTable,
  predictionTable,
  type SimulatedPlan,
  summariseComparison,
} from "../view/compare-table.ts";
import { interruptible } from "./interruptible.ts";
import { wholeNumber } from "./number-flags.ts";
import { findProjectRoot } from "./project.ts";
import { withSettings } from "./settings.ts";

type CompareFlags = {
  readonly config: readonly string[];
  readonly set: readonly string[];
  readonly steps: string;
  readonly json?: boolean;
};

export function compareCommand(): Command {
  return withSettings(new Command("compare"))
    .description("runs a workflow in every mode, as planned and automatically, and compares what a step takes")
    .argument("<workflow>", "folder of the workflow")
    .option("--config <files...>", "configuration files, one workload each (default: config.yaml of the workflow)", [])
    .option("--steps <count>", "steps measured under each plan", "8")
    .option("--json", "prints one object on standard output and nothing else there")
    .action(async (workflow: string, flags: CompareFlags) => {
      const workloads: ComparedWorkload[] = [];
      try {
        await interruptible(async (signals) => {
          for await (const workload of compareAll(workflow, flags, signals)) workloads.push(workload);
        });
      } finally {
        // What was compared before a failure took minutes, and is no worse for it.
        const tables = (): string => `${compareTable(workloads)}\n\n${predictionTable(workloads)}`;
        if (workloads.length > 0) process.stdout.write(`${flags.json ? JSON.stringify(workloads) : tables()}\n`);
      }
    });
}

/** A step is measured in real time, so nobody waits for more. */
const mostSteps = 10_000;
/** Virtual steps cost next to nothing, and the median of few says little where steps differ. */
const leastSimulatedSteps = 40;

async function* compareAll(
  workflow: string,
  flags: CompareFlags,
  signals: Pick<CompareOptions, "stop" | "kill">,
): AsyncGenerator<ComparedWorkload> {
  const steps = wholeNumber("--steps", flags.steps, { least: 1, most: mostSteps });
  for (const configFile of flags.config.length > 0 ? flags.config : [undefined]) {
    const name = configFile ? basename(configFile).replace(/\.ya?ml$/, "") : basename(workflow);
    const { plans, profile } = await compareModes({
      workflow,
      configFile,
      overrides: flags.set,
      projectRoot: findProjectRoot(),
      steps,
      onEvent: warnings,
      onPlan: (plan) => process.stderr.write(`${name}: ${plan}\n`),
      ...signals,
    });
    const simulated = plans.map((each) => ({ ...each, simulated: simulateOne(each, profile, steps) }));
    const workload = { name, components: Object.keys(profile.components).length, plans: simulated, profile };
    if (!flags.json) process.stderr.write(`${summariseComparison(workload)}\n`);
    yield workload;
  }
}

/** A plan that cannot be simulated is told of in its row; the others are none the worse for it. */
function simulateOne({ plan, devices }: ComparedPlan, profile: Profile, steps: number): SimulatedPlan["simulated"] {
  try {
    const { stepSeconds } = simulate({ plan, devices, profile, steps: Math.max(steps, leastSimulatedSteps), seed: 0 });
    return { seconds: stepSeconds.p50 };
  } catch (error) {
    return { failure: error instanceof Error ? error.message : String(error) };
  }
}

function warnings(event: RunEvent): void {
  if (event.type === "log" || event.type === "worker-died") process.stderr.write(`${JSON.stringify(event)}\n`);
}
