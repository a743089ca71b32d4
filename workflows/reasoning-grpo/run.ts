/**
 * Problems with GRPO, or any other algorithm: rollout → inference → actor. Problems are arithmetic that a seed draws, or rows of
 * files or of a module. The policy first imitates worked ones, so that right answers are not too rare, and learns the others from rewards.
 * Nothing here names a device or a mode.
 */

import { type Carried, EpisodeGroup, Prompt, Temperature, workflow } from "treadle";
import { TransformerConfig } from "treadle/engines";
import {
  AlgorithmConfig,
  ArithmeticTaskConfig,
  arithmeticAlphabet,
  checkGroupSize,
  createAlgorithm,
  createArithmeticTask,
  createRandom,
  demonstrationOf,
  LearningRateConfig,
  learningRateAt,
  RolloutCorrectionConfig,
} from "treadle/learning";
import {
  ActorWorker,
  accuracyOf,
  createTokenizer,
  DataConfig,
  Demonstration,
  type Draw,
  drawDemonstrations,
  EngineChoice,
  EvaluationConfig,
  ImitationConfig,
  InferenceWorker,
  leavesPrompts,
  mostStaleness,
  openDataset,
  type PromptSource,
  promptsOfStep,
  RolloutOrderConfig,
  RolloutWorker,
  TokenizerChoice,
  unfinishedPrompts,
} from "treadle/workers";
import { z } from "zod";

const Config = z
  .strictObject({
    task: ArithmeticTaskConfig.optional(),
    data: DataConfig.optional().describe(
      "instead of task: problems from files or a module, with the tokenizer that they are to be read with",
    ),
    ...TokenizerChoice.shape,
    model: TransformerConfig,
    engine: EngineChoice.optional().describe("what runs it; default: the embedded engine"),
    groupSize: z.int().positive(),
    temperature: Temperature,
    reward: z.looseObject({ name: z.string() }),
    rollout: RolloutOrderConfig.prefault({}),
    algorithm: AlgorithmConfig,
    learningRate: LearningRateConfig.describe(
      "a number, the same for all steps, or a warm-up to peak and a decay to final",
    ),
    maxGradNorm: z.number().positive(),
    weightDecay: z
      .number()
      .nonnegative()
      .default(0)
      .describe(
        "of matrices, times the learning rate, at each optimiser step: what holds for all problems outlasts what was learnt by heart",
      ),
    epochs: z
      .int()
      .positive()
      .describe(
        "passes over the episodes of a step, and optimiser steps of a pass: 1 and 1 is one step on fresh episodes",
      ),
    minibatches: z.int().positive(),
    rolloutCorrection: RolloutCorrectionConfig.prefault({}).describe(
      "of what older weights or another engine have sampled",
    ),
    beta2: z.number().min(0).lt(1).default(0.99).describe("of Adam; papers and libraries have 0.999"),
    maxRanks: z.int().positive().describe("most processes of a component: one does the work of one core"),
    imitation: ImitationConfig.nullable().describe("null: nothing is demonstrated"),
    evaluation: EvaluationConfig,
  })
  .refine(({ task, data }) => (task === undefined) !== (data === undefined), {
    path: ["task"],
    error: "either this or data, and not both",
  })
  .refine(({ task, alphabet, tokenizer }) => !task || (alphabet === undefined && tokenizer === undefined), {
    path: ["task"],
    error: "a task without alphabet and tokenizer: it has its own",
  })
  .superRefine(checkGroupSize);

export default workflow(Config, async ({ cluster, config, steps, report, once, projectRoot, loadModule, warn }) => {
  const { groupSize, imitation, evaluation, data, seed } = config;
  const { needsReference, needsValues } = createAlgorithm(config.algorithm);
  const model = { ...config.model, valueHead: needsValues };
  const arithmetic = data ? undefined : createArithmeticTask({ ...config.task, seed });
  const choice = arithmetic
    ? { alphabet: arithmeticAlphabet }
    : { alphabet: config.alphabet, tokenizer: config.tokenizer };
  const tokenizer = await createTokenizer(choice, model, { projectRoot, loadModule });
  const maxTokens = data?.maxAnswerTokens ?? arithmetic?.maxAnswerTokens ?? 0;
  const ranks = { max: config.maxRanks };
  const rateOf = (step: number): number => learningRateAt(config.learningRate, step, config.steps);

  const rollout = cluster.launch(
    RolloutWorker,
    {
      model,
      engine: config.engine,
      ...choice,
      groupSize,
      maxTokens,
      temperature: config.temperature,
      reward: config.reward,
      ...config.rollout,
    },
    { ranks },
  );
  const inference = cluster.launch(
    InferenceWorker,
    { model, engine: config.engine, paddingToken: tokenizer.paddingToken },
    { ranks },
  );
  const actor = cluster.launch(
    ActorWorker,
    {
      model,
      engine: config.engine,
      paddingToken: tokenizer.paddingToken,
      algorithm: config.algorithm,
      learningRate: rateOf(1),
      maxGradNorm: config.maxGradNorm,
      weightDecay: config.weightDecay,
      epochs: config.epochs,
      minibatches: config.minibatches,
      maxStaleness: mostStaleness(config.rollout, config.flow.maxStaleness),
      rolloutCorrection: config.rolloutCorrection,
      beta2: config.beta2,
    },
    { ranks },
  );

  const demonstrations = cluster.channel("demonstrations", Demonstration);
  const prompts = cluster.channel("prompts", Prompt);
  // Prompts that a step leaves: later ones play them, or none does.
  const late = leavesPrompts(config.rollout) ? cluster.channel("late", Prompt) : undefined;
  // Ranks of the actor get as many tokens each.
  const byTokens = { weight: "episodes.tokens" } as const;
  const episodes = cluster.channel("episodes", EpisodeGroup, byTokens);
  const scored = cluster.channel("scored", EpisodeGroup, byTokens);

  const accuracyOn = async (problems: readonly Prompt[]): Promise<number> => {
    rollout.pullWeights(actor);
    return accuracyOf(await rollout.evaluate(problems));
  };
  await using dataset =
    data &&
    (await openDataset({
      config: data,
      tokenizer,
      maxPromptTokens: model.contextLength - maxTokens,
      ...{ seed, projectRoot, loadModule, once, warn },
    }));
  const task = (arithmetic ?? dataset) as PromptSource;
  const heldOut = await task.heldOut(evaluation.problems);
  const validation = await task.validation(evaluation.validationProblems);

  await once("baseline evaluation", async () => report({ accuracy: await accuracyOn(heldOut) }));
  await once("imitation", async (progress) => {
    if (!imitation) return;
    const demonstrated = await task.demonstrated(imitation.problems);
    const examples = demonstrated.map((prompt) => demonstrationOf(prompt, tokenizer));
    const random = createRandom(seed).split("demonstrations");
    for (let round = 0; round < imitation.maxRounds; round++) {
      await demonstrations.put(...drawDemonstrations(examples, imitation, random.split(round)));
      await actor.imitate(demonstrations.source, imitation);
      progress(round + 1, imitation.maxRounds);
      if ((await accuracyOn(validation)) >= imitation.untilAccuracy) break;
    }
  });
  if (needsReference) await once("reference", () => inference.keepReference(actor));
  await once("evaluation after imitation", async () => report({ accuracy: await accuracyOn(heldOut) }));

  const draw: Draw = (round, count, position) => task.problemsAt(round, count, position);
  const promptsAt = (step: number, carried: Carried<Prompt>) =>
    promptsOfStep(config.rollout, config.batch, { step, carried }, draw);
  for await (const { batch, index, isLast, carry } of steps(promptsAt)) {
    rollout.pullWeights(actor);
    inference.pullWeights(actor);
    await prompts.put(...batch);
    report(rollout.generate(prompts.source, episodes.sink, late?.sink));
    if (late) carry(late, unfinishedPrompts);
    inference.score(episodes.source, scored.sink);
    const trained = actor.train(scored.source, { learningRate: rateOf(index) });
    report(trained);
    if (isLast || index % evaluation.everySteps === 0) {
      await trained;
      report({ accuracy: await accuracyOn(heldOut), validation: await accuracyOn(validation) });
    }
  }
});
