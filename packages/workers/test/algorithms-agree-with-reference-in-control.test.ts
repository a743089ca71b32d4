/** The control actor's step, on one rank and on several, and an independent float64 reference are the same function, and have the same slopes. */
import type { Weights } from "@treadle/contracts";
import { ActorCriticConfig } from "@treadle/engines";
import { createRandom, type Random, type ReferenceControlScores, referenceControlStep } from "@treadle/learning";
import type { Source } from "@treadle/runtime";
import { expect, test } from "vitest";
import { ControlActorConfig, ControlActorWorker } from "../src/actor/control-actor-worker.ts";
import type { Trajectory } from "../src/simulator/items.ts";
import { contextOf } from "./support/context.ts";
import { Group } from "./support/group.ts";

const seed = Number(process.env.TREADLE_SEED);
const [observationSize, actionSize] = [3, 2];
const model = { observationSize, actionSize, hidden: [5, 4], microBatchRows: 16 };

const usual = { discount: 0.95, lambda: 0.9, clip: 0.2, valueCoefficient: 0.5, entropyCoefficient: 0 };
const configurations: readonly (Partial<ControlActorConfig> & typeof usual)[] = [
  usual,
  { ...usual, valueClip: 0.2 },
  { ...usual, normaliseAdvantages: false },
  { ...usual, valueClip: 0.05, discount: 1, lambda: 1, clip: 0.1, entropyCoefficient: 0.02 },
  // The advantage is the reward itself, so that of 1000 ± 0.1 has to keep its digits.
  { ...usual, discount: 0, lambda: 0, valueCoefficient: 0 },
];
const cases = configurations.flatMap((options) =>
  [1, 2, 3].map((numRanks) => [`${numRanks} × ${JSON.stringify(options)}`, options, numRanks] as const),
);

/** The control actor that ships, which notes the loss of its step and the gradient that it takes. */
class NotingActor extends ControlActorWorker {
  loss = 0;
  gradient: Float64Array = new Float64Array(0);

  override async setup(): Promise<void> {
    await super.setup();
    const { engine } = this;
    const [forwardBackward, optimStep] = [engine.forwardBackward.bind(engine), engine.optimStep.bind(engine)];
    engine.forwardBackward = async (batch, loss) => {
      const metrics = await forwardBackward(batch, loss);
      this.loss += metrics.loss;
      return metrics;
    };
    engine.optimStep = async (step) => {
      const { scale = 1 } = step;
      this.loss *= scale;
      this.gradient = Float64Array.from(engine.gradients(), (sum) => sum * scale);
      return optimStep(step);
    };
  }
}

async function startActors(options: object, numRanks: number): Promise<NotingActor[]> {
  const group = new Group(numRanks);
  const rest = { model: ActorCriticConfig.parse(model), epochs: 1, minibatches: 1, learningRate: 1e-3, maxGradNorm: 1 };
  const config = ControlActorConfig.parse({ ...rest, maxStaleness: 100, ...options });
  const actors = Array.from(
    { length: numRanks },
    (_, rank) => new NotingActor(contextOf(config, "actor", { rank, group })),
  );
  await Promise.all(actors.map((actor) => actor.setup()));
  return actors;
}

const sourceOf = (trajectories: readonly Trajectory[]): Source<Trajectory> =>
  ({
    async *batches() {
      if (trajectories.length > 0) yield trajectories;
    },
  }) as unknown as Source<Trajectory>;

/** What the ranks minimise together, and the slope that each of them takes. */
async function shippedStep(actors: readonly NotingActor[], trajectories: readonly Trajectory[], random: Random) {
  const shares = actors.map((): Trajectory[] => []);
  for (const trajectory of trajectories) shares[random.integer(actors.length)]!.push(trajectory);
  for (const actor of actors) actor.loss = 0;
  const reported = await Promise.all(actors.map((actor, rank) => actor.train(sourceOf(shares[rank]!))));
  for (const other of actors) expect(other.gradient).toEqual(actors[0]!.gradient);
  return {
    loss: actors.reduce((sum, actor) => sum + actor.loss, 0),
    reported: reported.map(({ loss }) => loss),
    gradient: actors[0]!.gradient,
  };
}

/** A parameter moved by `change`. */
type Moved = { readonly name: string; readonly at: number; readonly change: number };

/** Two tanh networks and a Gaussian of actions, in float64. */
function scoresOf(weights: Weights, trajectory: Trajectory, moved?: Moved): ReferenceControlScores {
  const parameters = new Map(
    weights.parameters.map(({ name, data }) => {
      const values = Float64Array.from(data);
      return [name, moved?.name === name ? values.with(moved.at, values[moved.at]! + moved.change) : values] as const;
    }),
  );
  const network = (name: "actor" | "critic", inputs: readonly number[]): readonly number[] =>
    [0, 1, 2].reduce((x, layer) => {
      const [matrix, bias] = [parameters.get(`${name}.${layer}.matrix`)!, parameters.get(`${name}.${layer}.bias`)!];
      return Array.from(bias, (own, to) => {
        const sum = x.reduce((total, value, from) => total + value * matrix[from * bias.length + to]!, own);
        return layer < 2 ? Math.tanh(sum) : sum;
      });
    }, inputs);
  const deviations = [...parameters.get("actor.logDeviation")!];
  const steps = trajectory.rewards.length;
  const eachStep = (act: (observation: readonly number[], step: number) => number) =>
    Array.from({ length: steps }, (_, step) =>
      act([...trajectory.observations.subarray(step * observationSize, (step + 1) * observationSize)], step),
    );
  return {
    logprobs: eachStep((observation, step) => {
      const means = network("actor", observation);
      return deviations.reduce((sum, deviation, i) => {
        const distance = (trajectory.actions[step * actionSize + i]! - means[i]!) / Math.exp(deviation);
        return sum - distance ** 2 / 2 - deviation - Math.log(2 * Math.PI) / 2;
      }, 0);
    }),
    values: eachStep((observation) => network("critic", observation)[0]!),
    entropies: eachStep(() =>
      deviations.reduce((sum, deviation) => sum + deviation + Math.log(2 * Math.PI * Math.E) / 2, 0),
    ),
  };
}

/**
 * Stretches of several lengths, with episodes that end and are cut within them, NaN where nothing is used, values beyond the
 * clip; `far`: rewards of 1000 ± 0.1; `extreme`: log-ratios of up to ± 800. None of these is next to the bound of 20, where
 * the rounding of a log-ratio in float32 is that of its exponential's sixth digit.
 */
function randomTrajectories(
  random: Random,
  weights: Weights,
  draw: { readonly extreme: boolean; readonly far: boolean },
) {
  const uniform = (low: number, high: number) => low + (high - low) * random.float();
  const floats = (length: number, next: () => number) => Float32Array.from({ length }, next);
  return Array.from({ length: 1 + random.integer(5) }, (_, environment): Trajectory => {
    const steps = 1 + random.integer(12);
    const [terminated, truncated] = [0.1, 0.15].map((share) =>
      Uint8Array.from({ length: steps }, () => (random.float() < share ? 1 : 0)),
    ) as [Uint8Array, Uint8Array];
    const isOver = terminated[steps - 1] === 1 || truncated[steps - 1] === 1;
    const blank: Trajectory = {
      environment,
      policyVersion: weights.policyVersion,
      observations: floats(steps * observationSize, () => uniform(-2, 2)),
      actions: floats(steps * actionSize, () => uniform(-1, 1)),
      logprobs: new Float32Array(steps),
      values: new Float32Array(steps),
      rewards: floats(steps, () => (draw.far ? 1000 + uniform(-0.1, 0.1) : uniform(-1, 1))),
      terminated,
      truncated,
      finalValues: floats(steps, () => 0).map((_, step) =>
        truncated[step] === 1 && terminated[step] === 0 ? uniform(-1, 1) : Number.NaN,
      ),
      lastValue: isOver ? Number.NaN : uniform(-1, 1),
    };
    const now = scoresOf(weights, blank);
    const apart = () =>
      draw.extreme && random.float() < 0.2 ? [-800, -100, -25, 25, 100, 800][random.integer(6)]! : uniform(-0.5, 0.5);
    return {
      ...blank,
      logprobs: Float32Array.from(now.logprobs, (own) => own + apart()),
      values: draw.far ? blank.values : Float32Array.from(now.values, (own) => own + uniform(-0.4, 0.4)),
    };
  });
}

test.each(cases)("%s: loss and reported loss are the reference's", async (name, options, numRanks) => {
  const random = createRandom(`${seed}/${name}`);
  const actors = await startActors(options, numRanks);
  const largest = { near: 0, extreme: 0 };
  for (let each = 0; each < 20; each++) {
    const weights = (await actors[0]!.weights())!;
    const draw = { extreme: each % 2 === 1, far: options.discount === 0 };
    const trajectories = randomTrajectories(random, weights, draw);
    const expected = referenceControlStep(options, trajectories, (trajectory) => scoresOf(weights, trajectory));
    const { loss, reported } = await shippedStep(actors, trajectories, random);
    for (const own of [loss, ...reported]) {
      // In float32, in which the engine takes it, the exponential of 20 is wrong by 6e-7 of itself.
      const error = Math.abs(own! - expected.loss) / Math.max(1, expected.magnitude);
      expect(error, `TREADLE_SEED=${seed}, step ${each}: ${own} and ${expected.loss}`).toBeLessThan(
        1e-6 * (draw.extreme ? 2 : 1),
      );
      const kind = draw.extreme ? "extreme" : "near";
      largest[kind] = Math.max(largest[kind], error);
    }
  }
  const errors = [largest.near, largest.extreme].map((error) => error.toExponential(1)).join(" | ");
  if (process.env.TREADLE_TABLE) console.log(`| ${name} | ${errors} |`);
});

test.each(cases)(
  "%s: the gradient is what finite differences of the reference say",
  async (name, options, numRanks) => {
    const random = createRandom(`${seed}/slopes/${name}`);
    const actors = await startActors(options, numRanks);
    let compared = 0;
    for (let each = 0; each < 6; each++) {
      const weights = (await actors[0]!.weights())!;
      const trajectories = randomTrajectories(random, weights, { extreme: false, far: options.discount === 0 });
      const { gradient } = await shippedStep(actors, trajectories, random);
      let offset = 0;
      for (const { name: parameter, data } of weights.parameters) {
        const at = random.integer(data.length);
        const lossAt = (change: number) =>
          referenceControlStep(options, trajectories, (one) => scoresOf(weights, one, { name: parameter, at, change }))
            .loss;
        const width = 1e-5;
        const [below, here, above] = [lossAt(-width), lossAt(0), lossAt(width)];
        const slope = (above - below) / (2 * width);
        const own = gradient[offset + at]!;
        offset += data.length;
        // Where a clip begins within the difference, there is no slope to compare with.
        if (Math.abs(above - 2 * here + below) > 1e-8) continue;
        const error = Math.abs(own - slope) / Math.max(1, Math.abs(slope));
        expect(error, `TREADLE_SEED=${seed}, step ${each}, ${parameter} ${at}: ${own} and ${slope}`).toBeLessThan(1e-5);
        if (Math.abs(slope) > 1e-3) compared += 1;
      }
    }
    expect(compared).toBeGreaterThan(10);
  },
);
