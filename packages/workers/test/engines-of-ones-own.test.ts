/** Engines that are not shipped: a subclass of a shipped worker creates one, or a configuration names the module that does. */
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { TransformerEngine } from "@treadle/engines";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import {
  ActorConfig,
  ActorWorker,
  InferenceConfig,
  InferenceWorker,
  RolloutConfig,
  RolloutWorker,
} from "../src/index.ts";
import { contextOf } from "./support/context.ts";
import { streamOf } from "./support/stream.ts";

const model = { vocabSize: 12, layers: 1, width: 16, heads: 2, contextLength: 6 };
const own: { readonly for: string; readonly engine: TransformerEngine }[] = [];

async function created(component: string, config: Parameters<typeof TransformerEngine.create>[0]) {
  const engine = await TransformerEngine.create({ ...config, seed: own.length }); // no two begin alike
  own.push({ for: component, engine });
  return engine;
}

class OwnRollout extends RolloutWorker {
  protected override createEngine() {
    return created("rollout", this.config.model);
  }
}
class OwnInference extends InferenceWorker {
  protected override createEngine() {
    return created("inference", this.config.model);
  }
}
class OwnActor extends ActorWorker {
  protected override createEngine() {
    return created("actor", this.config.model);
  }
}

test("an engine that a subclass creates is the one that generates, scores and trains", async () => {
  const common = { model, alphabet: "0123456789" };
  const generation = { groupSize: 2, maxTokens: 3, reward: { name: "arithmetic" } };
  const rollout = new OwnRollout(contextOf(RolloutConfig.parse({ ...common, ...generation }), "rollout"));
  const inference = new OwnInference(contextOf(InferenceConfig.parse({ model }), "inference"));
  const training = { model, algorithm: { name: "grpo" }, learningRate: 0.01 };
  const actor = new OwnActor(contextOf(ActorConfig.parse(training), "actor"));
  for (const worker of [rollout, inference, actor]) await worker.setup();
  expect(own.map((each) => each.for)).toEqual(["rollout", "inference", "actor"]);

  const [mine, scoring, trained] = own.map(({ engine }) => engine) as [
    TransformerEngine,
    TransformerEngine,
    TransformerEngine,
  ];
  expect(await actor.weights("others")).toEqual(await trained.exportWeights());
  const saved: unknown[] = [];
  scoring.save = () => {
    saved.push("reference");
    return TransformerEngine.prototype.save.call(scoring);
  };
  await inference.keepReference({
    size: 1,
    onRanks: () => ({ weights: () => ({ first: async () => undefined }) }),
  } as never);
  expect(saved).toEqual(["reference"]);

  const { source, sink, groups } = streamOf([[{ id: "one", tokens: Int32Array.of(2, 3), answer: "1" }]]);
  const generate = mine.generate.bind(mine);
  let numCalls = 0;
  mine.generate = (...given) => {
    numCalls++;
    return generate(...given);
  };
  await rollout.generate(source, sink);
  expect(groups[0]?.episodes).toHaveLength(2);
  expect(numCalls).toBe(1);
});

describe("UE1: an engine of a module", () => {
  let folder: string;
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), "treadle-engine-"));
  });
  afterAll(() => rm(folder, { recursive: true, force: true }));

  let numModules = 0;
  async function moduleWith(text: string): Promise<string> {
    const path = join(folder, `${numModules++}.mjs`);
    await writeFile(path, text);
    return path;
  }
  type Asked = {
    use: string;
    runId: string;
    node: string;
    component: string;
    rank: number;
    devices: string[];
    settings: object;
    seed: number;
  };
  const asked: Asked[] = [];
  const made: TransformerEngine[] = [];
  Object.assign(globalThis, {
    ownEngine: async (context: Asked & { model: Parameters<typeof TransformerEngine.create>[0] }) => {
      const { use, runId, node, component, rank, devices, settings, seed } = context;
      asked.push({ use, runId, node, component, rank, devices, settings, seed });
      const engine = await TransformerEngine.create(context.model);
      made.push(engine);
      return engine;
    },
  });
  const training = { model, algorithm: { name: "grpo" }, learningRate: 0.01 };
  const generation = { model, alphabet: "0123456789", groupSize: 2, maxTokens: 3, reward: { name: "arithmetic" } };

  test("generates, scores and trains, and is told for whom, with its settings", async () => {
    const module = await moduleWith("export const createEngine = (context) => globalThis.ownEngine(context);");
    const engine = { kind: "module", module, settings: { precision: "high" } };
    const rollout = new RolloutWorker(contextOf(RolloutConfig.parse({ ...generation, engine }), "rollout"));
    const inference = new InferenceWorker(contextOf(InferenceConfig.parse({ model, engine }), "inference"));
    const actor = new ActorWorker(contextOf(ActorConfig.parse({ ...training, engine }), "actor"));
    for (const worker of [rollout, inference, actor]) await worker.setup();
    const all = {
      runId: "run-1",
      node: "local",
      rank: 0,
      devices: ["cpu:0"],
      settings: { precision: "high" },
      seed: 3,
    };
    expect(asked).toEqual([
      { use: "generation", component: "rollout", ...all },
      { use: "scoring", component: "inference", ...all },
      { use: "training", component: "actor", ...all },
    ]);
    const { source, sink, groups } = streamOf([[{ id: "one", tokens: Int32Array.of(2, 3), answer: "1" }]]);
    await rollout.generate(source, sink);
    expect(groups[0]?.episodes).toHaveLength(2);
    expect(await actor.weights("others")).toEqual(made[2]?.exportWeights());
  });

  const methods = "memory, idle, loadWeights, release, restore, close, generate, abort, pause, resume".split(", ");
  const fine = "{ residentBytes: 0, loadedBytes: 9, hostBytes: 9 }";
  const engineWith = (names: readonly string[], memory = fine, policyVersion = "0"): string => {
    const functions = names.map((name) => `${name}() { return ${name === "memory" ? memory : "undefined"}; }`);
    return `export const createEngine = () => ({ kind: "own", policyVersion: ${policyVersion}, ${functions.join(", ")} });`;
  };
  test.each([
    ["export const createEngines = 1;", "which exports no function 'createEngine'"],
    ["export const createEngine = async () => null;", "whose 'createEngine' returned 'null'"],
    ["export const createEngine = () => {};", "whose 'createEngine' returned 'undefined'"],
    ["export const createEngine = () => ({ policyVersion: 0 });", "has the kind 'undefined'"],
    ...["NaN", "-1", "0.5", "Infinity", "'0'", "undefined"].map((version) => [
      engineWith(methods, fine, version),
      `the policyVersion '${version.replaceAll("'", "")}'; give it a string and an integer of at least 0`,
    ]),
    ...["undefined", "{}", "Promise.resolve()"].map((memory) => [
      engineWith(methods, memory),
      "engine of kind 'own' returns from 'memory' what is no EngineMemory",
    ]),
    ...["NaN", "-1", "Infinity", "undefined", "'9'"].map((loaded) => [
      engineWith(methods, `{ residentBytes: 0, hostBytes: 9, loadedBytes: ${loaded} }`),
      "what is no EngineMemory (loadedBytes: ",
    ]),
    [engineWith(methods, "{ residentBytes: 0, loadedBytes: 9, hostBytes: 9, tags: [{}] }"), "(tags.0.tag: "],
    [
      "export const createEngine = () => { throw 'no power'; };",
      "whose 'createEngine' threw 'no power'; throw an Error",
    ],
    ["export const createEngine = async () => { throw undefined; };", "whose 'createEngine' threw 'undefined'"],
    [
      engineWith(methods.filter((name) => name !== "pause" && name !== "idle")),
      "lacks 'idle', 'pause', which generation needs",
    ],
    ["export const createEngine = () => { throw new Error('no such device'); };", "no such device"],
  ] as [string, string][])("is refused before it is used: %s", async (text, says) => {
    const engine = { kind: "module", module: await moduleWith(text) };
    const rollout = new RolloutWorker(contextOf(RolloutConfig.parse({ ...generation, engine }), "rollout"));
    await expect(rollout.setup()).rejects.toThrow(says);
  });

  test("that cannot be loaded is told with the key that names it, and what it has to be", async () => {
    for (const module of [join(folder, "missing.mjs"), folder]) {
      const engine = { kind: "module", module };
      const rollout = new RolloutWorker(contextOf(RolloutConfig.parse({ ...generation, engine }), "rollout"));
      await expect(rollout.setup()).rejects.toMatchObject({
        code: "worker.load-failed",
        message: expect.stringMatching(/^engine.module of 'rollout' is '.*set engine.module to a file in JavaScript/),
      });
    }
  });

  test("has to train where it is to train", async () => {
    const engine = { kind: "module", module: await moduleWith(engineWith(methods)) };
    const actor = new ActorWorker(contextOf(ActorConfig.parse({ ...training, engine }), "actor"));
    await expect(actor.setup()).rejects.toThrow(
      /lacks 'logprobs', .*'forwardBackward', .*'optimStep', which training needs/,
    );
  });

  test("keeps its own order unless it says how many it computes at once", () => {
    const engine = { kind: "module", module: "own.mjs" };
    const ordered = RolloutConfig.parse({ ...generation, engine, scheduler: "pps" });
    expect(() => RolloutWorker.checkConfig(ordered)).toThrow("an engine of kind 'module' makes its own batches");
    RolloutWorker.checkConfig(
      RolloutConfig.parse({ ...generation, engine: { ...engine, places: 4 }, scheduler: "pps" }),
    );
  });
});
