import { fileURLToPath } from "node:url";
import { RuntimeConfig } from "@treadle/contracts";
import { SglangConfig, TorchConfig } from "@treadle/engines";
import {
  ActorConfig,
  AgentRolloutConfig,
  EngineConfig,
  InferenceConfig,
  RolloutConfig,
  SimulatorConfig,
  ToolConfig,
} from "@treadle/workers";
import { z } from "zod";
import { SchemaFile } from "./schema-comments.ts";
import { cell, code, table } from "./table.ts";

type Node = {
  readonly type?: string | string[];
  readonly properties?: Readonly<Record<string, Node>>;
  readonly additionalProperties?: Node | boolean;
  readonly items?: Node;
  readonly anyOf?: readonly Node[];
  readonly oneOf?: readonly Node[];
  readonly allOf?: readonly Node[];
  readonly enum?: readonly unknown[];
  readonly const?: unknown;
  readonly default?: unknown;
  readonly required?: readonly string[];
  readonly minimum?: number;
  readonly maximum?: number;
  readonly exclusiveMinimum?: number;
  readonly exclusiveMaximum?: number;
};

const source = (path: string): string => fileURLToPath(new URL(`../../packages/${path}`, import.meta.url));

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
  learning: [["AlgorithmConfig"], ["ArithmeticTaskConfig"], ["ChainTaskConfig"], ["RolloutCorrectionConfig"]],
  workers: [
    ["ActionsConfig"],
    ["ActorConfig", "EngineConfig"],
    ["AgentRolloutConfig", "RolloutConfig"],
    ["CallSyntax"],
    ["ControlActorConfig"],
    ["DataConfig"],
    ["EngineConfig"],
    ["EvaluationConfig"],
    ["ImitationConfig"],
    ["InferenceConfig", "EngineConfig"],
    ["RewardModelConfig"],
    ["RolloutConfig", "EngineConfig"],
    ["RolloutOrderConfig"],
    ["SimulatorConfig"],
    ["TokenizerChoice"],
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

function keysOf(schema: z.ZodType, path: string, name: string, base: z.ZodObject = z.object()): string {
  const comments = new SchemaFile(path).commentsOf(name);
  const json = z.toJSONSchema(schema, { io: "input", unrepresentable: "any", reused: "inline" }) as Node;
  const own = leaves(json, "", true).filter(({ key }) => !Object.hasOwn(base.shape, key.split(".")[0] as string));
  const rows = own.map(({ key, node, isRequired }) => [
    code(key),
    cell(typeOf(node)),
    isRequired ? "required" : node.default === undefined ? "" : code(JSON.stringify(node.default)),
    cell(meaning(comments, key)),
  ]);
  return table(["key", "type", "default", "meaning"], rows);
}

/** A key without a comment means what its section's says. */
function meaning(comments: ReadonlyMap<string, string>, key: string): string {
  for (let path = key; path !== ""; path = path.slice(0, Math.max(0, path.lastIndexOf(".")))) {
    const comment = comments.get(path);
    if (comment !== undefined) return path === key ? comment : `of \`${path}\`: ${comment}`;
  }
  return "";
}

type Leaf = { readonly key: string; readonly node: Node; readonly isRequired: boolean };

/** A section is a row only where it may be left out and then means something else than its defaults. */
function leaves(node: Node, prefix: string, isPresent: boolean): Leaf[] {
  return Object.entries(node.properties ?? {}).flatMap(([name, inner]) => {
    const key = `${prefix}${name}`;
    const isRequired = isPresent && (node.required ?? []).includes(name);
    if (inner.properties) return leaves(inner, `${key}.`, isRequired || inner.default !== undefined);
    const value = typeof inner.additionalProperties === "object" ? inner.additionalProperties : undefined;
    if (value?.properties) return leaves(value, `${key}.<name>.`, false);
    return [{ key, node: inner, isRequired }];
  });
}

function typeOf(node: Node): string {
  if (node.const !== undefined) return String(node.const);
  if (node.enum) return node.enum.join(", ");
  const choices = node.anyOf ?? node.oneOf;
  if (choices) return [...new Set(choices.map(typeOf))].join(" or ");
  if (node.allOf) return [...new Set(node.allOf.map(typeOf))].join(" and ");
  if (node.type === "array") return `list of ${typeOf(node.items ?? {})}`;
  if (node.type === "object") {
    return typeof node.additionalProperties === "object" ? `map to ${typeOf(node.additionalProperties)}` : "section";
  }
  if (node.type === "integer" || node.type === "number") return `${node.type}${bounds(node)}`;
  return typeof node.type === "string" ? node.type : "any";
}

function bounds({ minimum, maximum, exclusiveMinimum, exclusiveMaximum }: Node): string {
  const isSafe = (value: number) => Math.abs(value) < Number.MAX_SAFE_INTEGER;
  const parts = [
    ...(exclusiveMinimum !== undefined ? [`> ${exclusiveMinimum}`] : []),
    ...(minimum !== undefined && isSafe(minimum) ? [`≥ ${minimum}`] : []),
    ...(exclusiveMaximum !== undefined ? [`< ${exclusiveMaximum}`] : []),
    ...(maximum !== undefined && isSafe(maximum) ? [`≤ ${maximum}`] : []),
  ];
  return parts.length === 0 ? "" : ` ${parts.join(", ")}`;
}
