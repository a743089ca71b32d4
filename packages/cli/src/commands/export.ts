import { resolve } from "node:path";
import { TreadleError } from "@treadle/contracts";
import { type ExportedModel, exportModel, ofEmbedded, TransformerConfig } from "@treadle/engines";
import { type CheckpointNote, chooseCheckpoint, filesInCheckpoint, type RunFolder } from "@treadle/runtime/runner";
import { EngineChoice, isEngineFile, torchOf } from "@treadle/workers";
import { Command, Option } from "commander";
import { z } from "zod";
import { formatCount } from "../view/text.ts";
import { checkpointChoice, checkpointsOf } from "./checkpoint-choice.ts";
import { chooseRun } from "./choose-run.ts";
import { engineKindOf } from "./engine-kind.ts";
import { findProjectRoot } from "./project.ts";

const dtypes = ["float32", "bfloat16"] as const;

type Flags = {
  readonly to: string;
  readonly checkpoint: string;
  readonly component: string;
  readonly dtype?: (typeof dtypes)[number];
  readonly adapter?: boolean;
  readonly base?: string;
  readonly runs?: string;
};

export function exportCommand(): Command {
  return new Command("export")
    .description("writes the model that a run has trained as a Hugging Face folder, which other tools load")
    .argument("[run]", "id of the run (default: the newest)")
    .requiredOption("--to <folder>", "to write; must not be there yet")
    .option("--checkpoint <which>", "last, best, or the number of its step", "last")
    .option("--component <name>", "whose model", "actor")
    .addOption(new Option("--dtype <type>", "of the weights (default: engine.dtype of the run)").choices(dtypes))
    .option("--adapter", "the adapter alone, as PEFT loads it, instead of weights with the adapter merged in")
    .option("--base <folder>", "where the model that was trained is now (default: engine.path of the run)")
    .option("--runs <folder>", "where runs keep their folders")
    .action(async (runId: string | undefined, flags: Flags) => {
      const which = checkpointChoice(flags.checkpoint);
      const run = await chooseRun(runId, flags.runs);
      const root = findProjectRoot();
      const { model, engine, tokenizer } = await trainedIn(run);
      const path = engine.path === undefined ? undefined : resolve(root, engine.path);
      const notes = await checkpointsOf(run);
      const note = chooseCheckpoint(notes, which);
      const [file, ...others] = await filesInCheckpoint(note, flags.component, isEngineFile);
      const made = await exportModel({
        checkpoint: others.length === 0 ? file! : [file!, ...others],
        model,
        engine: { ...engine, path },
        to: flags.to,
        dtype: flags.dtype,
        adapter: flags.adapter,
        base: flags.base,
        tokenizer: tokenizer?.folder === undefined ? undefined : resolve(root, tokenizer.folder),
      });
      process.stdout.write(`${told(flags, note, made)}\n`);
    });
}

const Trained = z.looseObject({
  model: TransformerConfig,
  engine: EngineChoice,
  /** one of a module has no files that others could read */
  tokenizer: z.looseObject({ folder: z.string().optional() }).optional(),
});

/** Of the configuration where the shipped workflows have them. Throws `config.invalid` for runs of other engines than PyTorch. */
async function trainedIn(run: RunFolder) {
  const { config } = await run.readConfig();
  const kind = engineKindOf(config);
  if (kind === "emulated")
    throw new TreadleError(
      "config.invalid",
      `run '${run.runId}' emulated its engines, so there is no model; run it without 'emulated'`,
    );
  if (kind === "embedded" && config["model"] !== undefined) throw ofEmbedded();
  const parsed = Trained.safeParse(config);
  const engine = parsed.success ? torchOf(parsed.data.engine) : undefined;
  if (parsed.success && engine) return { ...parsed.data, engine };
  throw new TreadleError(
    "config.invalid",
    `the configuration of run '${run.runId}' has no 'model' and 'engine' as the shipped workflows have them${parsed.success ? "" : ` (${z.prettifyError(parsed.error)})`}; call 'exportModel' of 'treadle/engines' with what its actor was given`,
  );
}

function told({ to, adapter }: Flags, { step, score }: CheckpointNote, made: ExportedModel): string {
  const of = `step ${step}${score === null ? "" : `, score ${score}`}, policy version ${made.policyVersion}`;
  const lines = [`${to}: ${formatCount(made.numParameters)} parameters in ${made.dtype} (${of})`];
  lines.push(`  ${made.files.join(", ")}`);
  if (adapter) lines.push("  load it with PeftModel.from_pretrained, over the model that it was trained on");
  else {
    lines.push("  load it with AutoModelForCausalLM.from_pretrained");
    if (!made.files.some((name) => /^(tokenizer|vocab)/.test(name)))
      lines.push("  it has no tokenizer: the run had none in a folder, and its token ids are the workflow's");
  }
  if (made.files.some((name) => name.startsWith("value_head/")))
    lines.push("  the value head, which is no part of the model, is in value_head");
  return lines.join("\n");
}
