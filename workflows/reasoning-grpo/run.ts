/**
 * Arithmetic with GRPO, or any other algorithm: rollout → inference → actor. The policy first imitates a few worked problems, just enough for
 * rewards to exist, and then learns from rewards alone. Nothing here names a device or a mode.
 */
import { EpisodeGroup, Prompt } from "@treadle/contracts";
import { TransformerConfig } from "@treadle/engines";
import {
  AlgorithmConfig,
  ArithmeticTaskConfig,
  arithmeticAlphabet,
  createAlgorithm,
  createArithmeticTask,
} from "@treadle/learning";
import { workflow } from "@treadle/runtime";
import {
  ActorWorker,
  accuracyOf,
  Demonstration,
  EvaluationConfig,
  ImitationConfig,
  InferenceWorker,
  RolloutWorker,
} from "@treadle/workers";
import { z } from "zod";

const Config = z.strictObject({
  task: ArithmeticTaskConfig,
  model: TransformerConfig,
  groupSize: z.int().positive(),
  temperature: z.number().positive(),
  reward: z.looseObject({ name: z.string() }),
  algorithm: AlgorithmConfig,
  learningRate: z.number().positive(),
  maxGradNorm: z.number().positive(),
  /** passes over the episodes of a step, and optimiser steps of a pass: 1 and 1 is one step on fresh episodes */
  epochs: z.int().positive(),
  minibatches: z.int().positive(),
  /** most processes of a component: one does the work of one core */
  maxRanks: z.int().positive(),
  imitation: ImitationConfig,
  evaluation: EvaluationConfig,
});

export default workflow(Config, async ({ cluster, config, steps, report, once }) => {
  const { groupSize, imitation, evaluation } = config;
  const { needsReference, needsValues } = createAlgorithm(config.algorithm);
  const model = { ...config.model, valueHead: needsValues };
  const task = createArithmeticTask({ ...config.task, seed: config.seed });
  const ranks = { max: config.maxRanks };

  const rollout = await cluster.launch(
    RolloutWorker,
    {
      model,
      alphabet: arithmeticAlphabet,
      groupSize,
      maxTokens: task.maxAnswerTokens,
      temperature: config.temperature,
      reward: config.reward,
    },
    { ranks },
  );
  const inference = await cluster.launch(
    InferenceWorker,
    { model, paddingToken: task.tokenizer.paddingToken },
    { ranks },
  );
  const actor = await cluster.launch(
    ActorWorker,
    {
      model,
      paddingToken: task.tokenizer.paddingToken,
      algorithm: config.algorithm,
      learningRate: config.learningRate,
      maxGradNorm: config.maxGradNorm,
      weightDecay: 0,
      epochs: config.epochs,
      minibatches: config.minibatches,
      maxStaleness: config.flow.maxStaleness,
    },
    { ranks },
  );

  const demonstrations = cluster.channel("demonstrations", Demonstration);
  const prompts = cluster.channel("prompts", Prompt);
  const episodes = cluster.channel("episodes", EpisodeGroup);
  const scored = cluster.channel("scored", EpisodeGroup);

  const accuracyOn = async (problems: readonly Prompt[]): Promise<number> => {
    rollout.pullWeights(actor);
    return accuracyOf(await rollout.evaluate(problems));
  };
  const heldOut = task.heldOut(evaluation.problems);

  await once("imitation", async () => {
    for (let round = 0; round < imitation.maxRounds; round++) {
      const rows = imitation.rows * imitation.updates;
      const examples = task.problemsAt(-1 - round, rows).map((prompt) => task.demonstration(prompt));
      await demonstrations.put(...examples);
      await actor.imitate(demonstrations.source, imitation);
      if ((await accuracyOn(task.problemsAt(-1 - round, 128))) >= imitation.untilAccuracy) break;
    }
  });
  if (needsReference) await once("reference", () => inference.keepReference(actor));
  await once("baseline", async () => report({ accuracy: await accuracyOn(heldOut) }));

  for await (const { batch, index, isLast } of steps((step) => task.problemsAt(step, config.batch))) {
    rollout.pullWeights(actor);
    inference.pullWeights(actor);
    await prompts.put(...batch);
    rollout.generate(prompts.source, episodes.sink);
    inference.score(episodes.source, scored.sink);
    const trained = actor.train(scored.source);
    report(trained);
    if (isLast || index % evaluation.everySteps === 0) {
      await trained;
      report({ accuracy: await accuracyOn(heldOut) });
    }
  }
});
