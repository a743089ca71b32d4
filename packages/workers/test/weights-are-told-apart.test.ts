import type { Weights } from "@treadle/contracts";
import { ActorCriticConfig, ActorCriticEngine, weightsIdOf } from "@treadle/engines";
import type { Source, StateReader, StateWriter, WorkerGroup } from "@treadle/runtime";
import { describe, expect, test } from "vitest";
import type { ActorWorker } from "../src/actor/actor-worker.ts";
import { ControlActorConfig, ControlActorWorker } from "../src/actor/control-actor-worker.ts";
import { ControlRolloutWorker } from "../src/rollout/control-rollout-worker.ts";
import type { Trajectory } from "../src/simulator/items.ts";
import { pullWeights } from "../src/weights.ts";
import { contextOf } from "./support/context.ts";

const model = ActorCriticConfig.parse({ observationSize: 1, actionSize: 1, hidden: [4], microBatchRows: 8 });
const config = ControlActorConfig.parse({
  model,
  epochs: 1,
  minibatches: 1,
  learningRate: 0.01,
  maxGradNorm: 1,
  discount: 0.9,
  lambda: 0.9,
  clip: 0.2,
  valueCoefficient: 0.5,
  entropyCoefficient: 0,
});

const trajectories = (reward: number): Source<Trajectory> => {
  const trajectory: Trajectory = {
    environment: 0,
    policyVersion: 0,
    observations: Float32Array.of(0, 1, 2, 3),
    actions: Float32Array.of(0.1, -0.2, 0.3, 0.1),
    logprobs: new Float32Array(4).fill(-0.5),
    values: new Float32Array(4),
    rewards: Float32Array.of(reward, 0, 0, 1),
    terminated: new Uint8Array(4),
    truncated: new Uint8Array(4),
    finalValues: new Float32Array(4),
    lastValue: 0.5,
  };
  return {
    async *batches() {
      yield [trajectory];
    },
  } as unknown as Source<Trajectory>;
};

/** One rank, called directly; says how often it sent weights. */
function groupOf(worker: Pick<ControlActorWorker, "weights">) {
  const sent: number[] = [];
  const group = {
    groupName: "actor",
    size: 1,
    onRanks: () => group,
    weights: (known?: string) => ({
      first: async () => {
        const weights = await worker.weights(known);
        if (weights) sent.push(weights.policyVersion);
        return weights;
      },
    }),
  };
  return { group: group as unknown as WorkerGroup<ControlActorWorker> & WorkerGroup<ActorWorker>, sent };
}

class Acting extends ControlRolloutWorker {
  get acts(): ActorCriticEngine {
    return this.engine;
  }
}

test("W3 a step that was undone and is made again gives other weights under its version, which are pulled", async () => {
  const start = async () => {
    const actor = new ControlActorWorker(contextOf(config, "actor"));
    await actor.setup();
    return actor;
  };
  const before = await start();
  const files = new Map<string, AsyncIterable<Uint8Array>>();
  await before.checkpoint({
    write: (name: string, data: AsyncIterable<Uint8Array>) => files.set(name, data),
  } as unknown as StateWriter);
  await before.train(trajectories(5));

  const rollout = new Acting(contextOf({ model }, "rollout"));
  await rollout.setup();
  const early = groupOf(before);
  await rollout.pullWeights(early.group);
  await rollout.pullWeights(early.group);
  expect(early.sent).toEqual([1]);

  // The actor dies before its state is saved, and its call is made again in another process.
  const after = await start();
  const saved = { names: [...files.keys()], stream: (name: string) => files.get(name) };
  await after.restore(saved as unknown as StateReader);
  await after.train(trajectories(-3));
  const [undone, newest] = [await before.weights(), await after.weights()];
  expect(newest?.policyVersion).toBe(undone?.policyVersion);
  expect(newest?.parameters).not.toEqual(undone?.parameters);

  const late = groupOf(after);
  await rollout.pullWeights(late.group);
  await rollout.pullWeights(late.group);
  expect(late.sent).toEqual([1]);
  expect(rollout.acts.exportWeights()).toEqual(newest);
});

test("W3 weights that nobody has trained are not sent to an engine that begins with them", async () => {
  const actor = new ControlActorWorker(contextOf(config, "actor"));
  await actor.setup();
  const rollout = new Acting(contextOf({ model }, "rollout"));
  await rollout.setup();
  const { group, sent } = groupOf(actor);
  await rollout.pullWeights(group);
  expect(sent).toEqual([]);
});

describe("W3 an engine that is brought newer weights", () => {
  async function pull(load: (weights: Weights, engine: { weightsId: string }) => void) {
    const weights = { ...(await ActorCriticEngine.create(model)).exportWeights(), policyVersion: 3 };
    const order: string[] = [];
    const engine = {
      policyVersion: 2,
      weightsId: "2/before",
      pause: async () => void order.push("pause"),
      resume: () => void order.push("resume"),
      loadWeights: async (given: Weights) => load(given, engine),
    };
    const { group } = groupOf({ weights: async () => weights });
    const failure = await pullWeights(engine, group, contextOf({}, "rollout")).catch((error: unknown) => error);
    return { failure, order };
  }

  test("is resumed when it says that it has them", async () => {
    const { failure, order } = await pull((weights, engine) => {
      engine.weightsId = weightsIdOf(weights);
    });
    expect(failure).toBeUndefined();
    expect(order).toEqual(["pause", "resume"]);
  });

  test("and says that it has others is refused, and not resumed", async () => {
    const { failure, order } = await pull((_, engine) => {
      engine.weightsId = "3/other";
    });
    expect(failure).toMatchObject({ code: "engine.weights-mismatch" });
    expect(order).toEqual(["pause"]);
  });

  test("and refuses them is resumed with those it had", async () => {
    const refused = new Error("other names");
    const { failure, order } = await pull(() => {
      throw refused;
    });
    expect(failure).toBe(refused);
    expect(order).toEqual(["pause", "resume"]);
  });
});
