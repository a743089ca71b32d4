import { createReadStream } from "node:fs";
import { type Episode, TreadleError } from "@treadle/contracts";
import { TorchEngine, type TrainingEngine, TransformerEngine } from "@treadle/engines";
import { packForScoring, unpackEntries } from "@treadle/learning";
import { type EngineConfig, torchOf } from "../engine.ts";

/**
 * The log-probability of each token of each episode, under the weights of a checkpoint and in an engine of this process: that which
 * the configuration's trainer has, alone and on one device. `files`: of the checkpoint. Throws what the engine throws, and
 * `config.invalid` for an engine that computes nothing.
 */
export async function scoreEpisodes(
  episodes: readonly Episode[],
  { model, engine: choice, emulated, files }: EngineConfig & { readonly files: readonly string[] },
): Promise<{ readonly policyVersion: number; readonly logprobs: Float32Array[] }> {
  if (emulated)
    throw new TreadleError(
      "config.invalid",
      "the run emulated its engines, so there are no weights; run it without 'emulated'",
    );
  if (choice?.kind === "module")
    throw new TreadleError(
      "config.invalid",
      `the trainer's engine is the project's own ('${choice.module}'), which only its worker makes; leave --checkpoint away to see what the batch has kept`,
    );
  const torch = torchOf(choice);
  const engine: TrainingEngine & { close(): Promise<void> } = torch
    ? await TorchEngine.create(model, { ...torch, process: "own", weightsBy: "bytes" }, { use: "scoring" })
    : await TransformerEngine.create(model);
  try {
    await load(engine, files);
    const packed = packForScoring(episodes, { ...model, paddingToken: 0, vocabularySize: model.vocabSize });
    const rectangles: Float32Array[] = [];
    for (const { batch } of packed) rectangles.push(await engine.logprobs(batch));
    return { policyVersion: engine.policyVersion, logprobs: unpackEntries(packed, rectangles, episodes.length) };
  } finally {
    await engine.close();
  }
}

async function load(engine: TrainingEngine, files: readonly string[]): Promise<void> {
  const checked = files.map((path) => ({ checkedPath: async () => path }));
  const [file, ...others] = files;
  if (file && others.length === 0) return engine.load(Object.assign(createReadStream(file), checked[0]));
  if (engine.loadFiles) return engine.loadFiles(checked);
  throw new TreadleError(
    "checkpoint.corrupt",
    `the checkpoint has '${files.length}' files, which only an engine of kind 'torch' reads; score with the engine that has trained it`,
  );
}
