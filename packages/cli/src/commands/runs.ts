import { readFile, stat } from "node:fs/promises";
import { NatsConfig, RunSummary, TreadleError } from "@treadle/contracts";
import { keptRuns, listRunIds, poolsAt, RunFolder, validateConfig } from "@treadle/runtime/runner";
import { Command } from "commander";
import pc from "picocolors";
import { renderAccuracy } from "../view/summary.ts";
import { singleLine } from "../view/text.ts";
import { type NatsFlags, natsValues, withControlPlane, withNatsFlags } from "./control-plane.ts";
import { defaultRunsRoot, findProjectRoot } from "./project.ts";

type Flags = Partial<NatsFlags> & { runs?: string; json?: boolean; kept?: boolean; forget?: string };

export function runsCommand(): Command {
  return withNatsFlags(new Command("runs"), { needed: false })
    .description("lists runs, the newest last")
    .option("--runs <folder>", "where runs keep their folders")
    .option("--kept", "those that are kept at the NATS server for any machine")
    .option("--forget <run>", "removes a run from the NATS server; folders stay")
    .option("--json", "prints one array")
    .action(async (flags: Flags) => {
      if (flags.kept || flags.forget !== undefined) return atServers(flags);
      const root = flags.runs ?? defaultRunsRoot(findProjectRoot());
      const rows = await Promise.all(
        (await listRunIds(root)).map(async (runId) => {
          const folder = new RunFolder(root, runId);
          return { runId, ...((await folder.exists()) ? await readSummary(folder) : { lacks: "config.json" }) };
        }),
      );
      if (flags.json) process.stdout.write(`${JSON.stringify(rows)}\n`);
      else if (rows.length === 0) process.stdout.write(`no runs in '${root}'\n`);
      for (const row of flags.json ? [] : rows) {
        process.stdout.write(`${renderRun(row)}\n`);
      }
    });
}

type RunRow = {
  readonly runId: string;
  readonly summary?: RunSummary | undefined;
  /** a file that is missing or not whole, without which no more is known */
  readonly lacks?: string | undefined;
};

/** One run's torn file hides no other run. */
async function readSummary({ summaryFile }: RunFolder): Promise<Omit<RunRow, "runId">> {
  const isThere = await stat(summaryFile).then(
    () => true,
    () => false,
  );
  if (!isThere) return {};
  try {
    return { summary: RunSummary.parse(JSON.parse(await readFile(summaryFile, "utf8"))) };
  } catch {
    return { lacks: "summary.json" };
  }
}

async function atServers({ nats: address, ...flags }: Flags): Promise<void> {
  if (address === undefined) {
    throw new TreadleError("config.invalid", "'--kept' and '--forget' ask a NATS server; give it with --nats nats://…");
  }
  const nats = validateConfig(NatsConfig, natsValues({ ...flags, nats: address }));
  if (flags.forget?.startsWith("pool-")) await refusePresentPool(flags.forget, { ...flags, nats: address });
  const kept = await keptRuns(nats, flags.forget);
  if (flags.json) process.stdout.write(`${JSON.stringify(kept)}\n`);
  else if (kept.length === 0) process.stdout.write("no runs are kept there\n");
  for (const runId of flags.json ? [] : kept) process.stdout.write(`${singleLine(runId)}\n`);
}

/** The record of a pool is all that a later process knows of its runs. */
async function refusePresentPool(record: string, flags: NatsFlags): Promise<void> {
  const present = await withControlPlane(flags, async (plane) =>
    poolsAt(plane).find(({ name }) => record === `pool-${name}`),
  );
  if (present === undefined) return;
  const { name, info } = present;
  const message = `pool '${name}' of '${info.host}' is there, by process '${info.pid}': end its runs, then it, before '--forget ${record}'`;
  throw new TreadleError("pool.taken", message);
}

export function renderRun({ runId: run, summary, lacks }: RunRow, colours = pc.createColors()): string {
  const runId = singleLine(run);
  if (lacks === "config.json")
    return `${runId}  has no config.json, so it cannot go on; start it again with 'treadle run', and remove the folder`;
  if (lacks !== undefined) return `${runId}  its ${lacks} is not whole; 'treadle resume ${runId}' writes it again`;
  if (summary === undefined) return `${runId}  unfinished; go on with 'treadle resume ${runId}'`;
  const { mode, steps, seconds } = summary;
  const accuracy = renderAccuracy(summary, colours) ?? "not measured";
  return `${runId}  ${singleLine(mode)}, ${steps} steps, ${seconds.toFixed(0)} s, accuracy ${accuracy}`;
}
