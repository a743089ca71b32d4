/** Reasoning with GRPO on a very small model, which may have a tool, and whose actor writes down which prompts it has trained. */
import { EpisodeGroup, Prompt } from "@treadle/contracts";
import { arithmeticAlphabet, createArithmeticTask } from "@treadle/learning";
import { type Carried, workflow } from "@treadle/runtime";
import {
  ActorConfig,
  EngineChoice,
  leavesPrompts,
  mostStaleness,
  promptsOfStep,
  RolloutOrderConfig,
  ToolConfig,
  unfinishedPrompts,
} from "@treadle/workers";
import { z } from "zod";
import {
  agentAlphabet,
  agentTokenizer,
  countingCall,
  countingProgram,
  LedgerActorWorker,
  ProjectAgentRolloutWorker,
  ProjectInferenceWorker,
  ProjectRolloutWorker,
  ProjectToolWorker,
} from "../../workers/learning-ledger.ts";

const task = createArithmeticTask({ minOperand: 0, maxOperand: 2, heldOutFraction: 0, validationFraction: 0 });
export const promptsOf = (step: number, num: number): Prompt[] => task.problemsAt(step, num);
export {
  LedgerActorWorker,
  ProjectAgentRolloutWorker,
  ProjectInferenceWorker,
  ProjectRolloutWorker,
  ProjectToolWorker,
};

/** Written by a policy that may call a tool. */
const maxAgentTokens = 40;
const plainModel = {
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

const Config = z.strictObject({
  groupSize: z.int(),
  rollout: RolloutOrderConfig.prefault({}),
  tool: z.boolean().default(false),
  /** of every component; `shards` are those of the actor alone */
  engine: EngineChoice.optional(),
  /** of the rollout, and of the actor */
  ranks: z.int().default(2),
});

export default workflow(Config, async ({ cluster, config, steps, report }) => {
  const { groupSize, engine } = config;
  const ranks = { fixed: config.ranks };
  const whole = engine && { engine: engine.kind === "torch" ? { ...engine, shards: 1 } : engine };
  const model = {
    ...plainModel,
    ...(config.tool && {
      vocabSize: agentTokenizer.vocabularySize,
      contextLength: task.maxPromptTokens + maxAgentTokens + countingCall.maxCalls * countingCall.maxAnswerTokens,
    }),
  };
  const { maxAnswerTokens } = task;
  const common = { model, ...whole, groupSize, temperature: 1, reward: { name: "arithmetic" }, ...config.rollout };
  const plain = { ...common, alphabet: arithmeticAlphabet, maxTokens: maxAnswerTokens };
  const agent = { ...common, alphabet: agentAlphabet, maxTokens: maxAgentTokens, call: countingCall };
  const options = { name: "project-rollout", ranks };
  const rollout = config.tool ? undefined : cluster.launch(ProjectRolloutWorker, plain, options);
  const agents = config.tool ? cluster.launch(ProjectAgentRolloutWorker, agent, options) : undefined;
  const tool =
    config.tool &&
    cluster.launch(
      ProjectToolWorker,
      ToolConfig.parse({
        program: countingProgram,
        actions: { drivers: ["process"], sandboxes: "trajectory", timeoutMs: 60_000 },
      }),
      { ranks: { fixed: 2 }, devices: "none" },
    );
  const inference = cluster.launch(ProjectInferenceWorker, { model, ...whole, paddingToken }, { ranks: { fixed: 1 } });
  const actor = cluster.launch(
    LedgerActorWorker,
    ActorConfig.parse({
      model,
      engine,
      paddingToken,
      algorithm: { name: "grpo", normalisation: { type: "token-mean" } },
      learningRate: 0.01,
      maxStaleness: mostStaleness(config.rollout, config.flow.maxStaleness),
    }),
    { ranks },
  );
  const prompts = cluster.channel("prompts", Prompt);
  const episodes = cluster.channel("episodes", EpisodeGroup);
  const scored = cluster.channel("scored", EpisodeGroup);
  const late = leavesPrompts(config.rollout) ? cluster.channel("late", Prompt) : undefined;
  const promptsAt = (step: number, carried: Carried<Prompt>) =>
    promptsOfStep(config.rollout, config.batch, { step, carried }, promptsOf);
  for await (const { batch, carry } of steps(promptsAt)) {
    (agents ?? rollout)?.pullWeights(actor);
    inference.pullWeights(actor);
    await prompts.put(...batch);
    if (rollout) report(rollout.generate(prompts.source, episodes.sink, late?.sink));
    else if (agents && tool) report(agents.generate(prompts.source, episodes.sink, tool, late?.sink));
    if (late) carry(late, unfinishedPrompts);
    inference.score(episodes.source, scored.sink);
    report(actor.train(scored.source));
  }
});
