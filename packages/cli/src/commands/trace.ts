import { stat } from "node:fs/promises";
import { join } from "node:path";
import { TreadleError } from "@treadle/contracts";
import { toChromeTrace } from "@treadle/observe";
import { listRunIds, RunFolder } from "@treadle/runtime";
import { Command } from "commander";
import { defaultRunsRoot, findProjectRoot } from "./project.ts";

export function traceCommand(): Command {
  return new Command("trace")
    .description("writes the timeline of a run for https://ui.perfetto.dev and chrome://tracing")
    .argument("[run]", "id of the run (default: the newest)")
    .option("--runs <folder>", "where runs keep their folders")
    .option("--output <file>", "default: trace.json in the run's folder")
    .action(async (runId: string | undefined, flags: { runs?: string; output?: string }) => {
      const root = flags.runs ?? defaultRunsRoot(findProjectRoot());
      const chosen = runId ?? (await listRunIds(root)).at(-1);
      if (chosen === undefined) {
        throw new TreadleError("run.not-found", `there is no run in '${root}'; start one with 'treadle run'`);
      }
      const folder = new RunFolder(root, chosen);
      await stat(folder.traceFile).catch((cause) => {
        throw new TreadleError(
          "run.not-found",
          `run '${chosen}' has no trace in '${folder.path}'; 'treadle runs' lists the runs, and trace: true in the configuration records`,
          { cause },
        );
      });
      const output = flags.output ?? join(folder.path, "trace.json");
      const { numEvents } = await toChromeTrace([folder.traceFile], output);
      process.stdout.write(`${output}: ${numEvents} events; open it at https://ui.perfetto.dev\n`);
    });
}
