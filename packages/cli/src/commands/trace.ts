import { stat } from "node:fs/promises";
import { join } from "node:path";
import { TreadleError } from "@treadle/contracts";
import { toHtmlPoolTimeline, toHtmlTimeline } from "@treadle/dashboard";
import { toChromeTrace } from "@treadle/observe";
import { listPoolHistories, listRunIds, RunFolder } from "@treadle/runtime/runner";
import { Command } from "commander";
import { plural, printable } from "../view/text.ts";
import { chooseRun } from "./choose-run.ts";
import { defaultRunsRoot, findProjectRoot } from "./project.ts";

type Flags = { readonly runs?: string; readonly output?: string; readonly pool?: string | true };

export function traceCommand(): Command {
  return new Command("trace")
    .description(
      "writes the timeline of a run, for a browser and for https://ui.perfetto.dev, or one page of all runs of a pool",
    )
    .argument("[run]", "id of the run (default: the newest)")
    .option("--runs <folder>", "where runs keep their folders")
    .option(
      "--pool [history]",
      "a page of all runs that shared devices, from the history of their pool (default: the newest)",
    )
    .option("--output <file>", "default: trace.json in the run's folder; for a pool, its history's name and .html")
    .action(async (runId: string | undefined, flags: Flags) => {
      if (flags.pool !== undefined) return tracePool(runId, flags.pool, flags);
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

async function tracePool(runId: string | undefined, asked: string | true, flags: Flags): Promise<void> {
  if (runId !== undefined)
    throw new TreadleError("config.invalid", `--pool shows all runs, and '${runId}' is one; give either of both`);
  const root = flags.runs ?? defaultRunsRoot(findProjectRoot());
  const { name: title, files: history } = await chooseHistory(root, asked);
  const output = flags.output ?? join(root, `${title}.html`);
  const known = new Set(await listRunIds(root));
  const traceOf = async (id: string): Promise<string | undefined> => {
    if (!known.has(id)) return undefined;
    const { traceFile } = new RunFolder(root, id);
    return stat(traceFile).then(
      () => traceFile,
      () => undefined,
    );
  };
  const { runs, numDecisions, lacks } = await toHtmlPoolTimeline({ history, traceOf, title }, output);
  const what = `${plural(runs.length, "run")}, ${plural(numDecisions, "decision")}`;
  process.stdout.write(`${output}: ${what}; open it in a browser\n`);
  for (const lack of lacks) process.stdout.write(`without ${printable(lack)}\n`);
}

/** The one that was written last, unless one is asked for. */
async function chooseHistory(root: string, asked: string | true) {
  const histories = await listPoolHistories(root);
  const newest = histories.at(-1);
  const chosen = asked === true ? newest : histories.find(({ name }) => name === asked);
  if (chosen !== undefined) return chosen;
  const message =
    newest === undefined
      ? `no pool has left a history in '${root}'; 'treadle multiplex' and 'treadle pool start' do`
      : `no history '${asked}' in '${root}'; the newest is '${newest.name}'`;
  throw new TreadleError("run.not-found", message);
}
