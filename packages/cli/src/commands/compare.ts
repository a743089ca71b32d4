/** `treadle compare`: one workflow in every mode, by one or several configurations, as a table. */
import { basename } from "node:path";
import type { RunEvent } from "@treadle/contracts";
import { compareModes } from "@treadle/runtime";
import { simulate } from "@treadle/simulation";
import { Command } from "commander";
import { type ComparedWorkload, compareTable, predictionTable, summariseComparison } from "../view/compare-table.ts";
import { findProjectRoot } from "./project.ts";

type CompareFlags = {
  readonly config: readonly string[];
  readonly set: readonly string[];
  readonly steps: string;
  readonly json?: boolean;
};

const collect = (value: string, previous: readonly string[]): readonly string[] => [...previous, value];

export function compareCommand(): Command {
  return new Command("compare")
    .description("runs a workflow in every mode, as planned and automatically, and compares what a step takes")
    .argument("<workflow>", "folder of the workflow")
    .option("--config <files...>", "configuration files, one workload each (default: config.yaml of the workflow)", [])
    .option("--set <key.path=value>", "overrides a value; may be repeated", collect, [])
    .option("--steps <count>", "steps measured under each plan", "8")
    .option("--json", "prints one object on standard output and nothing else there")
    .action(async (workflow: string, flags: CompareFlags) => {
      const stop = new AbortController();
      const kill = new AbortController();
      const onSignal = () => (stop.signal.aborted ? kill : stop).abort();
      process.on("SIGINT", onSignal);
      const workloads: ComparedWorkload[] = [];
      const files = flags.config.length > 0 ? flags.config : [undefined];
      for (const configFile of files) {
        const name = configFile ? basename(configFile).replace(/\.ya?ml$/, "") : basename(workflow);
        const { plans, profile } = await compareModes({
          workflow,
          configFile,
          overrides: flags.set,
          projectRoot: findProjectRoot(),
          steps: Number(flags.steps),
          onEvent: warnings,
          onPlan: (plan) => process.stderr.write(`${name}: ${plan}\n`),
          stop: stop.signal,
          kill: kill.signal,
        });
        const simulated = plans.map((each) => ({
          ...each,
          simulatedSeconds: simulate({ ...each, profile, steps: Number(flags.steps), seed: 0 }).stepSeconds.p50,
        }));
        workloads.push({ name, components: Object.keys(profile.components).length, plans: simulated });
        if (!flags.json) process.stderr.write(`${summariseComparison(workloads.at(-1) as ComparedWorkload)}\n`);
      }
      process.off("SIGINT", onSignal);
      process.stdout.write(
        flags.json ? `${JSON.stringify(workloads)}\n` : `${compareTable(workloads)}\n\n${predictionTable(workloads)}\n`,
      );
    });
}

function warnings(event: RunEvent): void {
  if (event.type === "log" || event.type === "worker-died") process.stderr.write(`${JSON.stringify(event)}\n`);
}
