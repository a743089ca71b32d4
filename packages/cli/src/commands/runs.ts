import { readFile } from "node:fs/promises";
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
          const text = await readFile(new RunFolder(root, runId).summaryFile, "utf8").catch(() => "null");
          const summary = RunSummary.safeParse(JSON.parse(text));
          return { runId, summary: summary.success ? summary.data : undefined };
        }),
      );
      if (flags.json) process.stdout.write(`${JSON.stringify(rows)}\n`);
      else if (rows.length === 0) process.stdout.write(`no runs in '${root}'\n`);
      for (const { runId, summary } of flags.json ? [] : rows) {
        process.stdout.write(`${renderRun(runId, summary)}\n`);
      }
    });
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

export function renderRun(run: string, summary: RunSummary | undefined, colours = pc.createColors()): string {
  const runId = singleLine(run);
  if (summary === undefined) return `${runId}  unfinished; go on with 'treadle resume ${runId}'`;
  const { mode, steps, seconds } = summary;
  const accuracy = renderAccuracy(summary, colours) ?? "not measured";
  return `${runId}  ${singleLine(mode)}, ${steps} steps, ${seconds.toFixed(0)} s, accuracy ${accuracy}`;
}
