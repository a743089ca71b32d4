/** `treadle profile` and `treadle graph`: run a workflow for as long as it takes to learn what it costs, or does. */

import { writeFileSync } from "node:fs";
import { basename, resolve } from "node:path";
import type { RunEvent } from "@treadle/contracts";
import { drawFlow } from "@treadle/dashboard";
import { type MeasureOptions, profilePath, profileWorkflow, readProfile, traceWorkflow } from "@treadle/runtime/runner";
import { Command } from "commander";
import { describeFlow } from "../view/flow-text.ts";
import { createMeasuringLines } from "../view/measuring.ts";
import { describeProfile } from "../view/profile-table.ts";
import { printableLines } from "../view/text.ts";
import { interruptible } from "./interruptible.ts";
import { findProjectRoot } from "./project.ts";
import { withSettings } from "./settings.ts";

type MeasureFlags = { readonly set: readonly string[]; readonly config?: string; readonly json?: boolean };

function withMeasureFlags(command: Command): Command {
  return withSettings(command)
    .argument("<workflow>", "folder of the workflow, as workflows/reasoning-grpo")
    .option("--config <file>", "configuration file (default: config.yaml of the workflow)")
    .option("--json", "prints one object on standard output and nothing else there");
}

export function profileCommand(): Command {
  return withMeasureFlags(new Command("profile"))
    .description(
      "measures what each component of a workflow costs, and keeps it for 'treadle plan' and automatic placement",
    )
    .action(async (workflow: string, flags: MeasureFlags) => {
      const { profile, path } = await measureProfile(workflow, flags);
      if (flags.json) process.stdout.write(`${JSON.stringify(profile)}\n`);
      else
        process.stdout.write(`\n${printableLines([...describeProfile(profile), "", `kept in ${path}`].join("\n"))}\n`);
    });
}

/** With a line a step on standard error. */
export const measureProfile = (workflow: string, flags: MeasureFlags): ReturnType<typeof profileWorkflow> =>
  watched(workflow, flags, profileWorkflow);

export function graphCommand(): Command {
  return withMeasureFlags(new Command("graph"))
    .description("runs one step of a workflow and draws what flows between its components")
    .option("--profile", "draws the graph of the kept profile; runs nothing")
    .option("--svg <file>", "where the drawing goes (default: <workflow>-flow.svg)")
    .action(async (workflow: string, flags: MeasureFlags & { profile?: boolean; svg?: string }) => {
      const name = basename(resolve(workflow));
      const graph = flags.profile
        ? readProfile(profilePath(findProjectRoot(), workflow), name).graph
        : await watched(workflow, flags, traceWorkflow);
      if (flags.json) {
        process.stdout.write(`${JSON.stringify(graph)}\n`);
        return;
      }
      const file = flags.svg ?? `${name}-flow.svg`;
      writeFileSync(file, drawFlow(graph, name));
      process.stdout.write(`\n${printableLines([...describeFlow(graph), "", `drawn in ${file}`].join("\n"))}\n`);
    });
}

async function watched<T>(
  workflow: string,
  flags: MeasureFlags,
  measure: (options: MeasureOptions) => Promise<T>,
): Promise<T> {
  const linesOf = createMeasuringLines();
  const onEvent = (event: RunEvent) => {
    for (const line of linesOf(event)) process.stderr.write(`${line}\n`);
  };
  const options = { workflow, configFile: flags.config, overrides: flags.set, projectRoot: findProjectRoot(), onEvent };
  return interruptible((signals) => measure({ ...options, ...signals }));
}
