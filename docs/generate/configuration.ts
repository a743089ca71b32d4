import { RuntimeConfig } from "@treadle/contracts";
import { SglangConfig, TorchConfig } from "@treadle/engines";
import {
  ActorConfig,
  AgentRolloutConfig,
  ControlRolloutConfig,
  EngineConfig,
  FileDataConfig,
  InferenceConfig,
  ModuleDataConfig,
  ModuleTokenizerConfig,
  RolloutConfig,
  SimulatorConfig,
  TokenizerFolder,
  ToolConfig,
} from "@treadle/workers";
import { SchemaFile } from "./schema-comments.ts";
import { keysOf, source } from "./schema-keys.ts";

/** Each worker's own keys: those that it shares with the one that it extends are shown there. */
const workers = [
  ["Model and engine, of rollout, inference and actor", EngineConfig, "workers/src/engine.ts", "EngineConfig"],
  ["`engine` of kind torch", TorchConfig, "engines/src/torch/torch-config.ts", "TorchConfig"],
  [
    "`engine` of kind sglang, and alike of kind vllm",
    SglangConfig,
    "engines/src/server/server-config.ts",
    "SglangConfig",
  ],
  ["`tokenizer` of a folder", TokenizerFolder, "workers/src/tokenizer/tokenizer-folder.ts", "TokenizerFolder"],
  [
    "`tokenizer` of kind module",
    ModuleTokenizerConfig,
    "workers/src/tokenizer/module-tokenizer.ts",
    "ModuleTokenizerConfig",
  ],
  ["`data` from files", FileDataConfig, "workers/src/data/data-config.ts", "FileDataConfig"],
  ["`data` of kind module", ModuleDataConfig, "workers/src/data/data-config.ts", "ModuleDataConfig"],
  ["RolloutWorker", RolloutConfig, "workers/src/rollout/generation-worker.ts", "RolloutConfig", EngineConfig],
  [
    "AgentRolloutWorker, besides",
    AgentRolloutConfig,
    "workers/src/rollout/agent-rollout-worker.ts",
    "AgentRolloutConfig",
    RolloutConfig,
  ],
  ["InferenceWorker", InferenceConfig, "workers/src/inference/inference-worker.ts", "InferenceConfig", EngineConfig],
  ["ActorWorker", ActorConfig, "workers/src/actor/actor-worker.ts", "ActorConfig", EngineConfig],
  ["ToolWorker", ToolConfig, "workers/src/tool/tool-config.ts", "ToolConfig"],
  [
    "ControlRolloutWorker, besides the model",
    ControlRolloutConfig.omit({ model: true }),
    "workers/src/rollout/control-rollout-worker.ts",
    "ControlRolloutConfig",
  ],
  ["SimulatorWorker", SimulatorConfig, "workers/src/simulator/simulator-worker.ts", "SimulatorConfig"],
] as const;

/** Every key with its type, default and meaning: types and defaults from the zod schemas, meanings from their comments. */
export function configurationPage(): string {
  return [
    "# Configuration",
    "",
    "A run's configuration is the defaults, then `config.yaml` of the workflow's folder (or `--config <file>`), then each",
    "`--set key.path=value`. Unknown keys are refused, with the nearest known one. `npx treadle validate <workflow>` prints what",
    "comes of it. In key paths, `<name>` stands for a name of your own.",
    "",
    "## Keys that every workflow has",
    "",
    keysOf(RuntimeConfig, source("contracts/src/config.ts"), "RuntimeConfig"),
    "",
    "## Configurations of the shipped workers",
    "",
    "What `cluster.launch` takes beside the class. A workflow decides which of its own keys end up there.",
    ...workers.flatMap(([worker, schema, path, name, base]) => [
      "",
      `### ${worker}`,
      "",
      keysOf(schema, source(path), name, base),
    ]),
    "",
  ].join("\n");
}

/** Schemas of which a workflow's configuration is made, by package, under the names that it exports; those that extend another with it. */
const parts: Readonly<Record<string, readonly (readonly [name: string, base?: string])[]>> = {
  contracts: [["RuntimeConfig"]],
  engines: [["ActorCriticConfig"], ["SglangConfig"], ["TorchConfig"], ["TransformerConfig"], ["VllmConfig"]],
  learning: [
    ["AlgorithmConfig"],
    ["ArithmeticTaskConfig"],
    ["ChainTaskConfig"],
    ["LearningRateSchedule"],
    ["RolloutCorrectionConfig"],
  ],
  workers: [
    ["ActionsConfig"],
    ["ActorConfig", "EngineConfig"],
    ["AgentRolloutConfig", "RolloutConfig"],
    ["CallSyntax"],
    ["ControlActorConfig"],
    ["ControlRolloutConfig"],
    ["FileDataConfig"],
    ["ModuleDataConfig"],
    ["EngineConfig"],
    ["EvaluationConfig"],
    ["ImitationConfig"],
    ["InferenceConfig", "EngineConfig"],
    ["RewardModelConfig"],
    ["RolloutConfig", "EngineConfig"],
    ["RolloutOrderConfig"],
    ["SimulatorConfig"],
    ["TokenizerChoice"],
    ["TokenizerFolder"],
    ["ModuleTokenizerConfig"],
    ["ToolConfig"],
  ],
};

/** For editors: a schema at run time knows nothing of its comments. */
export function configMeaningsModule(): string {
  const meanings = Object.entries(parts).flatMap(([packageName, schemas]) => {
    const file = new SchemaFile(source(`${packageName}/src/index.ts`));
    return schemas.map(([name, base]) => {
      const inherited = base === undefined ? undefined : file.commentsOf(base);
      const own = [...file.commentsOf(name)].filter(([key, text]) => inherited?.get(key) !== text);
      return [name, Object.fromEntries(own)];
    });
  });
  return `/** By schema and key, what the comments of schemas say; written by 'npm run docs:reference'. */
export const configMeanings: Readonly<Record<string, Readonly<Record<string, string>>>> = ${JSON.stringify(Object.fromEntries(meanings), null, 2)};
`;
}
