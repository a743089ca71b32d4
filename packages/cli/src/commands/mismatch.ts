import { join } from "node:path";
import { type Episode, TreadleError } from "@treadle/contracts";
import { TransformerConfig } from "@treadle/engines";
import { chooseCheckpoint, filesInCheckpoint, type RunFolder } from "@treadle/runtime/runner";
import {
  compare,
  EngineChoice,
  isEngineFile,
  type KeptStep,
  keptSteps,
  newestKept,
  readKept,
  scoreEpisodes,
} from "@treadle/workers";
import { Command, Option } from "commander";
import { z } from "zod";
import { renderMismatch } from "../view/mismatch-text.ts";
import { jsonText } from "../view/text.ts";
import { checkpointChoice, checkpointsOf } from "./checkpoint-choice.ts";
import { chooseRun } from "./choose-run.ts";
import { wholeNumber } from "./number-flags.ts";

type Flags = {
  readonly step?: string;
  readonly checkpoint?: string;
  readonly component: string;
  readonly dtype?: "float32" | "bfloat16";
  readonly device?: string;
  readonly top: string;
  readonly json?: boolean;
  readonly runs?: string;
};

export function mismatchCommand(): Command {
  return new Command("mismatch")
    .description(
      "shows where sampler and trainer differ in a batch that an alarm has kept, or scores it again with a checkpoint",
    )
    .argument("[run]", "id of the run (default: the newest)")
    .option("--step <number>", "of the alarm (default: the last of which the whole batch is kept)")
    .option("--checkpoint <which>", "scores the batch again with its weights: last, best, or the number of its step")
    .option("--component <name>", "whose weights a checkpoint has", "actor")
    .addOption(
      new Option("--dtype <type>", "that scores (default: engine.dtype of the run)").choices(["float32", "bfloat16"]),
    )
    .option("--device <device>", "that scores, such as cpu (default: engine.device of the run)")
    .option("--top <count>", "tokens to print, the furthest apart first", "20")
    .option("--json", "prints the result as JSON")
    .option("--runs <folder>", "where runs keep their folders")
    .action(async (runId: string | undefined, flags: Flags) => {
      const asked = flags.step === undefined ? undefined : wholeNumber("--step", flags.step);
      const top = wholeNumber("--top", flags.top, { least: 1 });
      const run = await chooseRun(runId, flags.runs);
      const artifacts = join(run.path, "artifacts");
      const { step, passedOver } = await chooseStep(run, artifacts, asked);
      const kept = await readKept(artifacts, step);
      const episodes = kept.ranks.flatMap(({ episodes: own }) => own);
      const scored = flags.checkpoint === undefined ? undefined : await score(run, episodes, flags, flags.checkpoint);
      const result = { ...told(kept), passedOver, ...compare(episodes, scored?.logprobs, top) };
      const rescored = scored && { checkpoint: scored.checkpoint, policyVersion: scored.policyVersion };
      const text = flags.json ? jsonText({ ...result, rescored }) : renderMismatch(result, rescored);
      process.stdout.write(`${text}\n`);
    });
}

async function chooseStep(run: RunFolder, artifacts: string, asked: number | undefined) {
  const kept = await keptSteps(artifacts);
  const newest = asked === undefined ? await newestKept(artifacts) : undefined;
  if (newest) return newest;
  // Of one that is not whole, whoever reads it says what is wrong.
  const step = asked ?? kept.at(-1);
  if (step !== undefined && kept.includes(step)) return { step, passedOver: [] };
  const refuse = (what: string): never => {
    throw new TreadleError("config.invalid", `run '${run.runId}' ${what}`);
  };
  if (kept.length === 0)
    return refuse(
      "has kept no batch: no step was beyond rolloutCorrection.alarm, or keptBatches is 0; lower the alarm to keep one",
    );
  return refuse(`has no batch of step '${step}'; it has those of ${kept.join(", ")}`);
}

/** Of all ranks that are there, alike but for what each of them has. */
function told({ ranks, missing, strayFiles }: KeptStep) {
  const { files: _, worker: __, numEpisodes: ___, format: ____, ...facts } = ranks[0]!.facts;
  return {
    ...facts,
    numEpisodes: ranks.reduce((sum, { facts: own }) => sum + own.numEpisodes, 0),
    numKept: ranks.reduce((sum, { episodes }) => sum + episodes.length, 0),
    ranks: ranks.map(({ facts: { worker } }) => worker),
    missingRanks: missing,
    strayFiles,
  };
}

export type ToldBatch = ReturnType<typeof told>;

const Trained = z.looseObject({
  model: TransformerConfig,
  engine: EngineChoice.optional(),
  emulated: z.unknown().optional(),
});

async function score(run: RunFolder, episodes: readonly Episode[], flags: Flags, which: string) {
  const { config } = await run.readConfig();
  const parsed = Trained.safeParse(config);
  if (!parsed.success)
    throw new TreadleError(
      "config.invalid",
      `the configuration of run '${run.runId}' has no 'model' and 'engine' as the shipped workflows have them (${z.prettifyError(parsed.error)}); call 'scoreEpisodes' of 'treadle/workers' with what its actor was given`,
    );
  const { model, engine, emulated } = parsed.data;
  if (emulated !== undefined)
    throw new TreadleError(
      "config.invalid",
      `run '${run.runId}' emulated its engines, so there are no weights; run it without 'emulated'`,
    );
  const note = chooseCheckpoint(await checkpointsOf(run), checkpointChoice(which));
  const files = await filesInCheckpoint(note, flags.component, isEngineFile);
  return {
    checkpoint: note.step,
    ...(await scoreEpisodes(episodes, { model, engine: changed(engine, flags), files })),
  };
}

function changed(engine: EngineChoice | undefined, { dtype, device }: Flags): EngineChoice | undefined {
  const other = { ...(dtype && { dtype }), ...(device && { device }) };
  if (Object.keys(other).length === 0) return engine;
  if (engine?.kind === "torch") return EngineChoice.parse({ ...engine, ...other });
  if (engine?.kind === "module")
    throw new TreadleError(
      "config.invalid",
      "an engine of the project's own has the numbers and the device that its settings say; leave --dtype and --device away",
    );
  if (engine === undefined || engine.kind === "embedded")
    throw new TreadleError(
      "config.invalid",
      "the embedded engine has one type of numbers and one device; leave --dtype and --device away",
    );
  return EngineChoice.parse({ ...engine, trainer: { ...engine.trainer, ...other } });
}
