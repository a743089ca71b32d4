/** `treadle compare`: one workflow in every mode, by one or several configurations, as a table. */
import { basename } from "node:path";
import type { RunEvent } from "@treadle/contracts";
import { type CompareOptions, compareModes } from "@treadle/runtime";
import { simulate } from "@treadle/simulation";
import { Command } from "commander";
import { type ComparedWorkload, compareTable, predictionTable, summariseComparison } from "../view/compare-table.ts";
import { interruptible } from "./interruptible.ts";
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
      const workloads = await interruptible((signals) => compareAll(workflow, flags, signals));
      process.stdout.write(
        flags.json ? `${JSON.stringify(workloads)}\n` : `${compareTable(workloads)}\n\n${predictionTable(workloads)}\n`,
      );
    });
}

async function compareAll(
  workflow: string,
  flags: CompareFlags,
  signals: Pick<CompareOptions, "stop" | "kill">,
): Promise<ComparedWorkload[]> {
  const steps = Number(flags.steps);
  const workloads: ComparedWorkload[] = [];
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
    const simulated = plans.map((each) => ({
      ...each,
      simulatedSeconds: simulate({ ...each, profile, steps, seed: 0 }).stepSeconds.p50,
    }));
    const workload = { name, components: Object.keys(profile.components).length, plans: simulated };
    workloads.push(workload);
    if (!flags.json) process.stderr.write(`${summariseComparison(workload)}\n`);
  }
  return workloads;
}

function warnings(event: RunEvent): void {
  if (event.type === "log" || event.type === "worker-died") process.stderr.write(`${JSON.stringify(event)}\n`);
}
