import { join } from "node:path";
import { writeReport } from "@treadle/dashboard";
import { Command } from "commander";
import { chooseRun } from "./choose-run.ts";

export function reportCommand(): Command {
  return new Command("report")
    .description("writes a run's report as one page: curves, step times, utilisation, configuration")
    .argument("[run]", "id of the run (default: the newest)")
    .option("--runs <folder>", "where runs keep their folders")
    .option("--output <file>", "default: report.html in the run's folder")
    .action(async (runId: string | undefined, flags: { runs?: string; output?: string }) => {
      const folder = await chooseRun(runId, flags.runs);
      const output = flags.output ?? join(folder.path, "report.html");
      await writeReport(folder.path, output);
      process.stdout.write(`${output}: open it in a browser\n`);
    });
}
