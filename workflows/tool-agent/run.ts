/**
 * GRPO for an agent with a tool: rollout ⇄ tool, then actor. The policy first imitates worked uses of the tool, just long
 * enough to know the form of a call, and learns the rest from rewards. Nothing here names a device or a mode.
 */

import { type Carried, EpisodeGroup, Prompt, Temperature, workflow } from "treadle";
import { TransformerConfig } from "treadle/engines";
import {
  AlgorithmConfig,
  ArithmeticTaskConfig,
  arithmeticAlphabet,
  ChainTaskConfig,
  checkGroupSize,
  createAlgorithm,
  createArithmeticTask,
  createChainTask,
  createCharacterTokenizer,
  createRandom,
  LearningRateConfig,
  learningRateAt,
  type PromptTask,
  RolloutCorrectionConfig,
} from "treadle/learning";
import {
  ActorWorker,
  AgentRolloutWorker,
  accuracyOf,
  CallSyntax,
  Demonstration,
  drawDemonstrations,
  EngineChoice,
  EvaluationConfig,
  ImitationConfig,
  launchRewardModels,
  leavesPrompts,
  mostStaleness,
  promptsOfStep,
  RewardModelConfig,
  RolloutOrderConfig,
  ToolConfig,
  ToolWorker,
  unfinishedPrompts,
} from "treadle/workers";
import { z } from "zod";
import { demonstrateCalls } from "./demonstration.ts";

const Config = z
  .strictObject({
    task: ArithmeticTaskConfig.optional().describe("one operation a problem"),
    chains: ChainTaskConfig.optional().describe("instead of task: as many operations as are drawn, a call each"),
    model: TransformerConfig,
    engine: EngineChoice.optional().describe("what runs it; default: the embedded engine"),
    groupSize: z.int().positive(),
    maxTokens: z.int().positive().describe("that the policy writes in one episode, calls included"),
    temperature: Temperature,
    call: CallSyntax,
    tool: ToolConfig,
    reward: z.looseObject({ name: z.string() }),
    rollout: RolloutOrderConfig.prefault({}),
    judge: RewardModelConfig.optional().describe("reward models as services, whose scores are added to the reward"),
    algorithm: AlgorithmConfig.refine((given) => {
      const { needsValues, needsReference } = createAlgorithm(given);
      return !needsValues && !needsReference;
    }, "an algorithm without a critic and without a KL: no component of this workflow scores values or a reference"),
    learningRate: LearningRateConfig.describe(
      "a number, the same for all steps, or a warm-up to peak and a decay to final",
    ),
    maxGradNorm: z.number().positive(),
    epochs: z.int().positive().default(1).describe("passes over a step's episodes, and optimiser steps of a pass"),
    minibatches: z.int().positive().default(1),
    rolloutCorrection: RolloutCorrectionConfig.prefault({}).describe(
      "of what older weights or another engine have sampled",
    ),
    beta2: z.number().min(0).lt(1).default(0.99).describe("of Adam; papers and libraries have 0.999"),
    maxRanks: z.int().positive().describe("most processes of a component: one does the work of one core"),
    imitation: ImitationConfig.nullable().describe("null: nothing is demonstrated"),
    evaluation: EvaluationConfig,
  })
  .refine(({ task, chains }) => (task === undefined) !== (chains === undefined), {
    path: ["task"],
    error: "either this or chains, and not both",
  })
  .superRefine(checkGroupSize);

export default workflow(Config, async ({ cluster, config, steps, report, once }) => {
  const { model, groupSize, call, imitation, evaluation } = config;
  const task: PromptTask = config.chains
    ? createChainTask({ ...config.chains, seed: config.seed }, "chains")
    : createArithmeticTask({ ...config.task, seed: config.seed });
  // The task's characters come first, so its prompts keep their tokens.
  const alphabet = arithmeticAlphabet + call.open + call.close + call.end + call.failure;
  const tokenizer = createCharacterTokenizer(alphabet);
  const ranks = { max: config.maxRanks };
  const rateOf = (step: number): number => learningRateAt(config.learningRate, step, config.steps);

  const rollout = cluster.launch(
    AgentRolloutWorker,
    {
      model,
      engine: config.engine,
      alphabet,
      groupSize,
      maxTokens: config.maxTokens,
      temperature: config.temperature,
      reward: config.reward,
      call,
      ...config.rollout,
    },
    { name: "rollout", ranks },
  );
  // One pool of cores, whoever calls.
  const tool = cluster.launch(ToolWorker, config.tool, { ranks: { fixed: 1 }, devices: "none" });
  const judge = config.judge && launchRewardModels(cluster, { ...config.judge, alphabet }, "judge");
  const actor = cluster.launch(
    ActorWorker,
    {
      model,
      engine: config.engine,
      paddingToken: tokenizer.paddingToken,
      algorithm: config.algorithm,
      learningRate: rateOf(1),
      maxGradNorm: config.maxGradNorm,
      weightDecay: 0,
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
  // Episodes differ in length by how often they call the tool: ranks get as many tokens each, not as many groups.
  const byTokens = { weight: "episodes.tokens", pick: "weight" } as const;
  const episodes = cluster.channel("episodes", EpisodeGroup, byTokens);
  const judged = judge ? cluster.channel("judged", EpisodeGroup, byTokens) : episodes;

  const accuracyOn = async (problems: readonly Prompt[]): Promise<number> => {
    rollout.pullWeights(actor);
    return accuracyOf(await rollout.evaluate(problems, tool));
  };
  const heldOut = task.heldOut(evaluation.problems);
  const validation = task.validation(evaluation.validationProblems);

  await once("baseline evaluation", async () => report({ accuracy: await accuracyOn(heldOut) }));
  await once("imitation", async (progress) => {
    if (!imitation) return;
    const examples = task
      .demonstrated(imitation.problems)
      .map((prompt) => demonstrateCalls(prompt, call, tokenizer, config.chains !== undefined));
    const random = createRandom(config.seed).split("demonstrations");
    for (let round = 0; round < imitation.maxRounds; round++) {
      await demonstrations.put(...drawDemonstrations(examples, imitation, random.split(round)));
      await actor.imitate(demonstrations.source, imitation);
      progress(round + 1, imitation.maxRounds);
      if ((await accuracyOn(validation)) >= imitation.untilAccuracy) break;
    }
  });
  await once("evaluation after imitation", async () => report({ accuracy: await accuracyOn(heldOut) }));

  const promptsAt = (step: number, carried: Carried<Prompt>) =>
    promptsOfStep(config.rollout, config.batch, { step, carried }, (round, count) => task.problemsAt(round, count));
  for await (const { batch, index, isLast, carry } of steps(promptsAt)) {
    rollout.pullWeights(actor);
    await prompts.put(...batch);
    report(rollout.generate(prompts.source, episodes.sink, tool, late?.sink));
    if (late) carry(late, unfinishedPrompts);
    if (judge) report(judge.score(episodes.source, judged.sink));
    const trained = actor.train(judged.source, { learningRate: rateOf(index) });
    report(trained);
    if (isLast || index % evaluation.everySteps === 0) {
      await trained;
      report({ accuracy: await accuracyOn(heldOut), validation: await accuracyOn(validation) });
    }
  }
});
