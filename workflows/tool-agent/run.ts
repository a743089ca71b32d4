/**
 * GRPO for an agent with a tool: rollout ⇄ tool, then actor. The policy first imitates worked uses of the tool, just long
 * enough for rewards to exist, and then learns from rewards alone. Nothing here names a device or a mode.
 */
import { EpisodeGroup, Prompt } from "@treadle/contracts";
import { TransformerConfig } from "@treadle/engines";
import {
  AlgorithmConfig,
  ArithmeticTaskConfig,
  arithmeticAlphabet,
  createArithmeticTask,
  createCharacterTokenizer,
} from "@treadle/learning";
import { workflow } from "@treadle/runtime";
import {
  ActorWorker,
  AgentRolloutWorker,
  accuracyOf,
  CallSyntax,
  Demonstration,
  EvaluationConfig,
  ImitationConfig,
  RewardModelConfig,
  RewardModelWorker,
  ToolConfig,
  ToolWorker,
} from "@treadle/workers";
import { z } from "zod";

const Config = z.strictObject({
  task: ArithmeticTaskConfig,
  model: TransformerConfig,
  groupSize: z.int().positive(),
  /** that the policy writes in one episode, calls included */
  maxTokens: z.int().positive(),
  temperature: z.number().positive(),
  call: CallSyntax,
  tool: ToolConfig,
  reward: z.looseObject({ name: z.string() }),
  /** reward models as services, whose scores are added to the reward */
  judge: RewardModelConfig.optional(),
  algorithm: AlgorithmConfig,
  learningRate: z.number().positive(),
  maxGradNorm: z.number().positive(),
  /** passes over a step's episodes, and optimiser steps of a pass */
  epochs: z.int().positive().default(1),
  minibatches: z.int().positive().default(1),
  /** most processes of a component: one does the work of one core */
  maxRanks: z.int().positive(),
  imitation: ImitationConfig,
  evaluation: EvaluationConfig,
});

export default workflow(Config, async ({ cluster, config, steps, report, once }) => {
  const { model, groupSize, call, imitation, evaluation } = config;
  const task = createArithmeticTask({ ...config.task, seed: config.seed });
  // The task's characters come first, so its prompts keep their tokens.
  const alphabet = arithmeticAlphabet + call.open + call.close + call.end + call.failure;
  const tokenizer = createCharacterTokenizer(alphabet);
  const ranks = { max: config.maxRanks };

  const rollout = await cluster.launch(
    AgentRolloutWorker,
    {
      model,
      alphabet,
      groupSize,
      maxTokens: config.maxTokens,
      temperature: config.temperature,
      reward: config.reward,
      call,
    },
    { name: "rollout", ranks },
  );
  // One pool of cores, whoever calls.
  const tool = await cluster.launch(ToolWorker, config.tool, { ranks: { fixed: 1 } });
  const judge =
    config.judge &&
    (await cluster.launch(RewardModelWorker, { ...config.judge, alphabet }, { name: "judge", ranks: { fixed: 1 } }));
  const actor = await cluster.launch(
    ActorWorker,
    {
      model,
      paddingToken: tokenizer.paddingToken,
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
  const judged = judge ? cluster.channel("judged", EpisodeGroup) : episodes;

  const accuracyOn = async (problems: readonly Prompt[]): Promise<number> => {
    rollout.pullWeights(actor);
    return accuracyOf(await rollout.evaluate(problems, tool));
  };
  const heldOut = task.heldOut(evaluation.problems);

  /** `12*34=` and then `<12*34>408|408`, of which everything but the tool's `408|` is to be learned. */
  const demonstration = (prompt: Prompt): Demonstration => {
    const asked = tokenizer.encode(`${call.open}${tokenizer.decode(prompt.tokens).slice(0, -1)}${call.close}`);
    const answered = tokenizer.encode(`${prompt.answer}${call.end}`);
    const said = [...tokenizer.encode(prompt.answer ?? ""), tokenizer.stopToken];
    const parts = [prompt.tokens, asked, answered, said];
    const mask = parts.flatMap((part, index) => Array<number>(part.length).fill(index === 1 || index === 3 ? 1 : 0));
    return { tokens: Int32Array.from(parts.flatMap((part) => [...part])), mask: Float32Array.from(mask) };
  };

  await once("untrained", async () => report({ accuracy: await accuracyOn(heldOut) }));
  await once("imitation", async () => {
    for (let round = 0; round < imitation.maxRounds; round++) {
      const examples = task.problemsAt(-1 - round, imitation.rows * imitation.updates).map(demonstration);
      await demonstrations.put(...examples);
      await actor.imitate(demonstrations.source, imitation);
      if ((await accuracyOn(task.problemsAt(-1 - round, 128))) >= imitation.untilAccuracy) break;
    }
  });
  await once("imitated", async () => report({ accuracy: await accuracyOn(heldOut) }));

  for await (const { batch, index, isLast } of steps((step) => task.problemsAt(step, config.batch))) {
    rollout.pullWeights(actor);
    await prompts.put(...batch);
    report(rollout.generate(prompts.source, episodes.sink, tool));
    if (judge) report(judge.score(episodes.source, judged.sink));
    const trained = actor.train(judged.source);
    report(trained);
    if (isLast || index % evaluation.everySteps === 0) {
      await trained;
      report({ accuracy: await accuracyOn(heldOut) });
    }
  }
});
