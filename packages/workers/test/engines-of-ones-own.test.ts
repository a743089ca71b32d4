/** Subclasses of shipped workers that bring an engine of their own. */
import { TransformerEngine } from "@treadle/engines";
import { expect, test } from "vitest";
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
