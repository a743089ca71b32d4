import { readFile } from "node:fs/promises";
import { RunSummary } from "@treadle/contracts";
import { listRunIds, RunFolder } from "@treadle/runtime";
import { Command } from "commander";
import { defaultRunsRoot, findProjectRoot } from "./project.ts";

export function runsCommand(): Command {
  return new Command("runs")
    .description("lists runs, the newest last")
    .option("--runs <folder>", "where runs keep their folders")
    .option("--json", "prints one array")
    .action(async (flags: { runs?: string; json?: boolean }) => {
      const root = flags.runs ?? defaultRunsRoot(findProjectRoot());
      const rows = await Promise.all(
        (await listRunIds(root)).map(async (runId) => {
          const text = await readFile(new RunFolder(root, runId).summaryFile, "utf8").catch(() => "null");
          const summary = RunSummary.safeParse(JSON.parse(text));
          return { runId, summary: summary.success ? summary.data : undefined };
        }),
      );
      if (flags.json) process.stdout.write(`${JSON.stringify(rows)}\n`);
      else if (rows.length === 0) process.stdout.write(`no runs in '${root}'\n`);
      for (const { runId, summary } of flags.json ? [] : rows) {
        const result = summary
          ? `${summary.mode}, ${summary.steps} steps, ${summary.seconds.toFixed(0)} s, accuracy ${percent(summary.evalBefore)} to ${percent(summary.evalAfter)}`
          : `unfinished; go on with 'treadle resume ${runId}'`;
        process.stdout.write(`${runId}  ${result}\n`);
      }
    });
}

const percent = (share: number | null): string => (share === null ? "unknown" : `${(share * 100).toFixed(1)} %`);
