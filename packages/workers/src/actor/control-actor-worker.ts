import { type LossMetrics, TreadleError } from "@treadle/contracts";
import { ActorCriticConfig, ActorCriticEngine } from "@treadle/engines";
import { createRandom, generalisedAdvantages, minibatchesOf, momentsOf, standardiser } from "@treadle/learning";
import type { Source } from "@treadle/runtime";
import { z } from "zod";
import { TrainerWorker } from "../engine-worker.ts";
import type { Trajectory } from "../simulator/items.ts";
import { checkTrajectory } from "./check-trajectory.ts";
import { momentsOverRanks } from "./rank-moments.ts";

export const ControlActorConfig = z.strictObject({
  model: ActorCriticConfig,
  epochs: z.int().positive(),
  minibatches: z.int().positive(),
  learningRate: z.number().positive(),
  maxGradNorm: z.number().positive(),
  discount: z.number().min(0).max(1),
  lambda: z.number().min(0).max(1),
  clip: z.number().positive(),
  /** of half the squared error between value and return */
  valueCoefficient: z.number().nonnegative(),
  /** how far a value may move from the collected one before moving further stops paying; absent means any distance */
  valueClip: z.number().positive().optional(),
  entropyCoefficient: z.number().nonnegative(),
  /** advantages get mean 0 and deviation 1 over a step's rows, on all ranks */
  normaliseAdvantages: z.boolean().default(true),
  /** of Adam: how slowly its estimate of squared gradients forgets; papers and libraries have 0.999 */
  beta2: z.number().min(0).lt(1).default(0.99),
  /** W2: trajectories that are more calls of `train` old are refused; the workflow's `flow.maxStaleness` */
  maxStaleness: z.int().nonnegative().default(0),
});
export type ControlActorConfig = z.infer<typeof ControlActorConfig>;

/** Reported as means over the rows of all ranks. */
const averaged = ["loss", "kl", "clipFraction", "entropy", "valueLoss"] as const;

type Row = { trajectory: Trajectory; time: number; advantage: number; return: number };

/** Trains an actor-critic with PPO; ranks are replicas, and gradients are summed over them before every step. */
export class ControlActorWorker extends TrainerWorker<ControlActorConfig, ActorCriticEngine> {
  static override readonly module: string = import.meta.url;
  static override readonly saves = ["train"];

  override async setup(): Promise<void> {
    this.engine = await ActorCriticEngine.create(this.config.model);
    await this.publish();
  }

  /** `epochs * minibatches` optimiser steps over the stream, whatever part of each round comes to this rank. */
  train(trajectories: Source<Trajectory>): Promise<Record<string, number>> {
    return this.training(() => this.#train(trajectories));
  }

  async #train(trajectories: Source<Trajectory>): Promise<Record<string, number>> {
    await using _ = await this.devices.lock();
    await this.dropPartialGradient();
    const collected: Trajectory[] = [];
    for await (const batch of trajectories.batches({ acknowledge: "call", gang: true })) {
      for (const trajectory of batch) {
        checkTrajectory(trajectory, this.config.model, this.engine.policyVersion);
        this.#refuseStale(trajectory);
      }
      collected.push(...batch);
    }
    // Which simulator was ready first must not decide which rows meet in a minibatch.
    collected.sort((a, b) => a.environment - b.environment);
    const rows = collected.flatMap((trajectory) => rowsOf(trajectory, this.config));
    if (this.config.normaliseAdvantages) await this.#normalise(rows);
    const random = createRandom(`${this.seed}/${this.rank}/${this.engine.policyVersion}`);
    const minibatches = [...minibatchesOf(rows, this.config, random)];
    const counts = await this.messages.allReduceSum(Float64Array.from(minibatches, ({ length }) => length));
    using _compute = this.timer("forward-backward");
    const steps: LossMetrics[] = [];
    for (const [index, minibatch] of minibatches.entries()) steps.push(await this.#step(minibatch, counts[index] ?? 0));
    await this.publish();
    const own = Float64Array.from(["weight", ...averaged] as const, (name) =>
      steps.reduce((total, sums) => total + sums[name], 0),
    );
    const [weight = 0, ...sums] = await this.messages.allReduceSum(own);
    const means = averaged.map((name, at) => [name, sums[at]! / Math.max(1, weight)] as const);
    const samples = weight / this.config.epochs;
    return { ...Object.fromEntries(means), samples, policyVersion: this.engine.policyVersion };
  }

  /** Returns the sums over this rank's rows; `count` are those of all ranks. */
  async #step(rows: readonly Row[], count: number): Promise<LossMetrics> {
    const { clip, learningRate, maxGradNorm, beta2 } = this.config;
    let metrics: LossMetrics = { weight: 0, loss: 0, kl: 0, clipFraction: 0, entropy: 0, valueLoss: 0 };
    if (rows.length > 0) {
      const { valueCoefficient, valueClip, entropyCoefficient } = this.config;
      const loss = { clipLow: clip, clipHigh: clip, valueCoefficient, valueClip, entropyCoefficient };
      this.hasGradient = true;
      metrics = await this.engine.forwardBackward(toBatch(rows, this.config.model), loss);
    }
    if (this.worldSize > 1)
      await this.engine.setGradients(await this.messages.allReduceSum(await this.engine.gradients()));
    const scale = count > 0 ? 1 / count : 0;
    const step = { learningRate: count > 0 ? learningRate : 0, scale, maxGradNorm, weightDecay: 0, beta2 };
    await this.engine.optimStep(step);
    this.hasGradient = false;
    return metrics;
  }

  /** W2. Every optimiser step is a version, and a call takes `epochs * minibatches` of them. */
  #refuseStale({ environment, policyVersion }: Trajectory): void {
    const { maxStaleness, epochs, minibatches } = this.config;
    const maxVersions = maxStaleness * epochs * minibatches;
    const staleness = this.engine.policyVersion - policyVersion;
    if (staleness <= maxVersions) return;
    throw new TreadleError(
      "learning.invalid-batch",
      `a trajectory of environment '${environment}' is '${staleness}' policy versions old, at most ${maxVersions} are allowed (flow.maxStaleness); call 'rollout.pullWeights(actor)' at the beginning of each step`,
    );
  }

  async #normalise(rows: readonly Row[]): Promise<void> {
    const own = momentsOf(rows.map(({ advantage }) => advantage));
    const standardise = standardiser(await momentsOverRanks(this.messages, this.worldSize, own));
    for (const row of rows) row.advantage = standardise(row.advantage);
  }
}

/** Each step of a trajectory with its advantage and return. */
export function rowsOf(trajectory: Trajectory, options: { discount: number; lambda: number }): Row[] {
  const steps = trajectory.rewards.length;
  const { advantages, returns } = generalisedAdvantages(
    { ...trajectory, steps, environments: 1, lastValues: [trajectory.lastValue] },
    options,
  );
  return Array.from({ length: steps }, (_, time) => ({
    trajectory,
    time,
    advantage: advantages[time] ?? 0,
    return: returns[time] ?? 0,
  }));
}

function toBatch(rows: readonly Row[], { observationSize, actionSize }: ActorCriticConfig) {
  const cut = (name: "observations" | "actions", width: number) => {
    const all = new Float32Array(rows.length * width);
    rows.forEach(({ trajectory, time }, index) => {
      all.set(trajectory[name].subarray(time * width, (time + 1) * width), index * width);
    });
    return all;
  };
  return {
    rows: rows.length,
    observations: cut("observations", observationSize),
    actions: cut("actions", actionSize),
    weights: new Float32Array(rows.length).fill(1),
    advantages: Float32Array.from(rows, (row) => row.advantage),
    oldLogprobs: Float32Array.from(rows, ({ trajectory, time }) => trajectory.logprobs[time] ?? 0),
    returns: Float32Array.from(rows, (row) => row.return),
    oldValues: Float32Array.from(rows, ({ trajectory, time }) => trajectory.values[time] ?? 0),
  };
}
