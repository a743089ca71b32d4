import { type Sink, type Source, Worker } from "@treadle/runtime";
import { z } from "zod";
import type { VectorEnvironment } from "./environment.ts";
import { createInvertedPendulum } from "./inverted-pendulum.ts";
import type { Action, Observation } from "./items.ts";

export const SimulatorConfig = z.strictObject({
  environment: z.literal("inverted-pendulum"),
  numEnvironments: z.int().positive(),
  maxSteps: z.int().positive().default(1000),
});
export type SimulatorConfig = z.infer<typeof SimulatorConfig>;

/** Steps environments with the actions that a policy sends; episodes go on from one call to the next. */
export class SimulatorWorker extends Worker<SimulatorConfig> {
  static override readonly module: string = import.meta.url;
  #environment!: VectorEnvironment;
  #observations!: Float32Array;
  #returns!: Float64Array;
  #finished: number[] = [];

  override async setup(): Promise<void> {
    const { numEnvironments, maxSteps } = this.config;
    this.#environment = await this.createEnvironment({ numEnvironments, maxSteps, seed: this.seed + this.rank });
    this.#observations = this.#environment.reset();
    this.#returns = new Float64Array(numEnvironments);
  }
  override async teardown(): Promise<void> {
    this.#environment[Symbol.dispose]();
  }

  /** A subclass brings its own. */
  protected createEnvironment(options: {
    numEnvironments: number;
    maxSteps: number;
    seed: number;
  }): Promise<VectorEnvironment> {
    return createInvertedPendulum(options);
  }

  /** Puts `horizon + 1` observations and takes `horizon` actions; `reward` is the mean return of the last episodes. */
  async simulate(
    actions: Source<Action>,
    observations: Sink<Observation>,
    horizon: number,
  ): Promise<{ reward: number; environmentSteps: number }> {
    await using _ = await this.devices.lock();
    const { numEnvironments } = this.config;
    await observations.put({
      observations: this.#observations,
      finalObservations: this.#observations,
      rewards: new Float32Array(numEnvironments),
      terminated: new Uint8Array(numEnvironments),
      truncated: new Uint8Array(numEnvironments),
    });
    for (let time = 0; time < horizon; time++) {
      const [action] = (await actions.take({ items: 1 })) ?? [];
      if (!action) break;
      const transition = this.#environment.step(action.actions);
      this.#observations = transition.observations;
      this.#count(transition);
      await observations.put(transition);
    }
    const sum = this.#finished.reduce((total, value) => total + value, 0);
    return { reward: sum / Math.max(1, this.#finished.length), environmentSteps: horizon * numEnvironments };
  }

  #count({ rewards, terminated, truncated }: Observation): void {
    rewards.forEach((reward, index) => {
      const total = (this.#returns[index] ?? 0) + reward;
      const ended = terminated[index] || truncated[index];
      this.#returns[index] = ended ? 0 : total;
      if (ended) this.#finished.push(total);
    });
    this.#finished = this.#finished.slice(-this.config.numEnvironments);
  }
}
