/** Reasoning with GRPO on a very small model, whose actor writes down which prompts it has trained. */
import { EpisodeGroup, Prompt } from "@treadle/contracts";
import { arithmeticAlphabet, createArithmeticTask } from "@treadle/learning";
import { type Carried, workflow } from "@treadle/runtime";
import {
  ActorConfig,
  defersPrompts,
  mostStaleness,
  promptsOfStep,
  RolloutOrderConfig,
  withoutBegun,
} from "@treadle/workers";
import { z } from "zod";
import { LedgerActorWorker, ProjectInferenceWorker, ProjectRolloutWorker } from "../../workers/learning-ledger.ts";

const task = createArithmeticTask({ minOperand: 0, maxOperand: 2, heldOutFraction: 0, validationFraction: 0 });
export const promptsOf = (step: number, num: number): Prompt[] => task.problemsAt(step, num);
export { LedgerActorWorker, ProjectInferenceWorker, ProjectRolloutWorker };

const model = {
  vocabSize: task.tokenizer.vocabularySize,
  layers: 1,
  width: 16,
  heads: 2,
  contextLength: task.maxPromptTokens + task.maxAnswerTokens,
  seed: 1,
  valueHead: false,
  microBatchTokens: 256,
  slots: 16,
};
const { paddingToken } = task.tokenizer;

const Config = z.strictObject({ groupSize: z.int(), rollout: RolloutOrderConfig.prefault({}) });

export default workflow(Config, async ({ cluster, config, steps, report }) => {
  const { groupSize } = config;
  const rollout = cluster.launch(
    ProjectRolloutWorker,
    {
      model,
      alphabet: arithmeticAlphabet,
      groupSize,
      maxTokens: task.maxAnswerTokens,
      temperature: 1,
      reward: { name: "arithmetic" },
      ...config.rollout,
    },
    { ranks: { fixed: 2 } },
  );
  const inference = cluster.launch(ProjectInferenceWorker, { model, paddingToken }, { ranks: { fixed: 1 } });
  const actor = cluster.launch(
    LedgerActorWorker,
    ActorConfig.parse({
      model,
      paddingToken,
      algorithm: { name: "grpo", normalisation: { type: "token-mean" } },
      learningRate: 0.01,
      maxStaleness: mostStaleness(config.rollout, config.flow.maxStaleness),
    }),
    { ranks: { fixed: 2 } },
  );
  const prompts = cluster.channel("prompts", Prompt);
  const episodes = cluster.channel("episodes", EpisodeGroup);
  const scored = cluster.channel("scored", EpisodeGroup);
  const late = defersPrompts(config.rollout) ? cluster.channel("late", Prompt) : undefined;
  const promptsAt = (step: number, carried: Carried<Prompt>) =>
    promptsOfStep(config.rollout, config.batch, { step, carried }, promptsOf);
  for await (const { batch, carry } of steps(promptsAt)) {
    rollout.pullWeights(actor);
    inference.pullWeights(actor);
    await prompts.put(...batch);
    report(rollout.generate(prompts.source, episodes.sink, late?.sink));
    if (late) carry(late, withoutBegun);
    inference.score(episodes.source, scored.sink);
    report(actor.train(scored.source));
  }
});
