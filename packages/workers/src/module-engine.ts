/**
 * Engines of users, which a configuration names: a module of the project that exports `createEngine`.
 *
 * UE1 what a module returns is checked before it is used: a worker never finds in the middle of a step that its engine lacks a method, or tells
 * a memory or a version that is no such number.
 */
import { type HostFiles, ProjectModule, TagMemory, type TreadleError } from "@treadle/contracts";
import type { Engine, GenerationEngine, TrainingEngine, TransformerConfig } from "@treadle/engines";
import type { Worker } from "@treadle/runtime";
import { z } from "zod";

export const ModuleEngineConfig = z.strictObject({
  kind: z.literal("module"),
  /** the file that exports `createEngine`, in JavaScript or TypeScript, from the project's root; on a node, below that */
  module: z.string().min(1),
  /** what its `createEngine` gets as `settings`; it checks them itself */
  settings: z.record(z.string(), z.json()).default({}),
  /** completions that it computes at once, in the order in which it is asked; default: it makes its own batches, and heeds no order */
  places: z.int().positive().optional(),
});
export type ModuleEngineConfig = z.infer<typeof ModuleEngineConfig>;

/** What an engine does for its worker: it samples completions, trains, or scores tokens alone. */
export type EngineUse = "generation" | "training" | "scoring";

/** What the module's `createEngine` is given: the rank that it computes for, and what the configuration says. */
export type EngineContext = {
  readonly use: EngineUse;
  readonly model: TransformerConfig;
  readonly settings: ModuleEngineConfig["settings"];
  /** of the worker: ranks of a trainer have one, and draw the same initial weights by it */
  readonly seed: number;
  readonly runId: string;
  /** that the rank is on */
  readonly node: string;
  readonly component: string;
  readonly rank: number;
  readonly worldSize: number;
  /** ids of the rank's devices, as `local/cuda:0`; none where it has none. It takes no memory on them before `restore` */
  readonly devices: readonly string[];
  /** An address and a port for sockets of the ranks' own. Every rank of the component has to call it; only a trainer's start together. */
  readonly rendezvous: Worker["messages"]["rendezvous"];
  /** names for files in memory that other processes of the host read; undefined where the host has none */
  readonly hostFiles: HostFiles | undefined;
  readonly log: Pick<Worker["log"], "debug" | "info" | "warn" | "error">;
};

/** What a module exports. */
export type CreateEngine = (context: EngineContext) => Promise<Engine> | Engine;

type MethodOf<E> = { [K in keyof E]-?: NonNullable<E[K]> extends (...args: never) => unknown ? K : never }[keyof E];

const ofEvery: readonly MethodOf<Engine>[] = ["memory", "idle", "loadWeights", "release", "restore", "close"];
const ofGeneration: readonly MethodOf<GenerationEngine>[] = ["generate", "abort", "pause", "resume"];
const ofState: readonly MethodOf<TrainingEngine>[] = ["exportWeights", "save", "load"];
const ofScoring: readonly MethodOf<TrainingEngine>[] = ["logprobs", ...ofState];
const ofTraining: readonly MethodOf<TrainingEngine>[] = [
  ...ofScoring,
  "forwardBackward",
  "gradients",
  "setGradients",
  "optimStep",
];
const needed = { generation: ofGeneration, training: ofTraining, scoring: ofScoring };

const bytes = z.number().nonnegative();
const Memory = z.object({
  ...{ residentBytes: bytes, loadedBytes: bytes, hostBytes: bytes },
  tags: z.array(TagMemory).optional(),
});
const Version = z.int().nonnegative();

/** Throws `worker.load-failed` where the module cannot be loaded, `config.invalid` where what it exports or returns is no engine (UE1). */
export async function createModuleEngine(
  worker: Worker<{ readonly model: TransformerConfig }>,
  { module, settings }: ModuleEngineConfig,
  { seed, use }: Pick<EngineContext, "seed" | "use">,
): Promise<GenerationEngine & TrainingEngine> {
  const { runId, node, component, rank, worldSize, log, messages, hostFiles, config } = worker;
  const load = (path: string) => worker.loadModule(path);
  const own = new ProjectModule({ key: "engine.module", of: `'${component}'`, module, load });
  const refuse = (what: string): TreadleError => own.refuse(what);
  const context: EngineContext = {
    ...{ use, model: config.model, settings, seed, runId, node, component, rank, worldSize },
    devices: worker.devices.ids,
    rendezvous: (options) => messages.rendezvous(options),
    ...{ hostFiles, log },
  };
  const engine = await own.create({ creator: "createEngine", what: "engine" }, context);
  const { kind, policyVersion } = engine as Partial<Engine>;
  if (typeof kind !== "string" || !Version.safeParse(policyVersion).success)
    throw refuse(
      `whose engine has the kind '${kind}' and the policyVersion '${policyVersion}'; give it a string and an integer of at least 0`,
    );
  const methods: readonly string[] = [
    ...ofEvery,
    ...needed[use],
    ...(use !== "generation" && config.model.valueHead ? ["values"] : []),
  ];
  own.check(engine, methods, {
    what: `engine of kind '${kind}'`,
    see: `, which ${use} needs; see GenerationEngine and TrainingEngine of treadle/engines`,
  });
  const memory = Memory.safeParse((engine as Engine).memory());
  if (!memory.success) {
    const problems = memory.error.issues.map(({ path, message }) =>
      [path.join("."), message].filter(Boolean).join(": "),
    );
    throw refuse(
      `whose engine of kind '${kind}' returns from 'memory' what is no EngineMemory (${problems.join("; ")}); return residentBytes, loadedBytes and hostBytes, each finite and at least 0`,
    );
  }
  return engine as GenerationEngine & TrainingEngine;
}
