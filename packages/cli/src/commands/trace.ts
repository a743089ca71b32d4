import { stat } from "node:fs/promises";
import { join } from "node:path";
import { TreadleError } from "@treadle/contracts";
import { toHtmlTimeline } from "@treadle/dashboard";
import { toChromeTrace } from "@treadle/observe";
import { Command } from "commander";
import { chooseRun } from "./choose-run.ts";

export function traceCommand(): Command {
  return new Command("trace")
    .description("writes the timeline of a run for https://ui.perfetto.dev and chrome://tracing")
    .argument("[run]", "id of the run (default: the newest)")
    .option("--runs <folder>", "where runs keep their folders")
    .option("--output <file>", "default: trace.json in the run's folder")
    .action(async (runId: string | undefined, flags: { runs?: string; output?: string }) => {
      const folder = await chooseRun(runId, flags.runs);
      const chosen = folder.runId;
      await stat(folder.traceFile).catch((cause) => {
        throw new TreadleError(
          "run.incomplete",
          `run '${chosen}' has no trace '${folder.traceFile}'; run it with trace: true in its configuration`,
          { cause },
        );
      });
      const output = flags.output ?? join(folder.path, "trace.json");
      const { numEvents } = await toChromeTrace([folder.traceFile], output);
      if (numEvents === 0)
        throw new TreadleError(
          "run.incomplete",
          `'${folder.traceFile}' holds no whole line, so there is nothing to show; run it again with trace: true in its configuration`,
        );
      process.stdout.write(`${output}: ${numEvents} events; open it at https://ui.perfetto.dev\n`);
      const page = `${output.replace(/\.json$/, "")}.html`;
      await toHtmlTimeline([folder.traceFile], page, { title: chosen });
      process.stdout.write(`${page}: the same as a page; open it in a browser\n`);
    });
}
