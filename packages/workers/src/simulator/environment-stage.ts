import type { EnvironmentFactory, EnvironmentScale, Transition, VectorEnvironment } from "./environment.ts";
import { requireActions } from "./exchange.ts";
import type { Action } from "./items.ts";

/** An episode that has ended, by what orders it among those of all stages. */
export type EndedEpisode = {
  /** steps of its stage before, in this call */
  readonly step: number;
  readonly environment: number;
  readonly return: number;
};

/** Those of a simulator's environments that step together, and what is known of their episodes. */
export class EnvironmentStage implements Disposable {
  readonly firstEnvironment: number;
  readonly numEnvironments: number;
  readonly #environment: VectorEnvironment;
  readonly #returns: Float64Array;
  #observations: Float32Array;
  #ended: EndedEpisode[] = [];
  #step = 0;

  private constructor(environment: VectorEnvironment, { firstEnvironment, numEnvironments }: EnvironmentScale) {
    this.firstEnvironment = firstEnvironment;
    this.numEnvironments = numEnvironments;
    this.#environment = environment;
    this.#returns = new Float64Array(numEnvironments);
    this.#observations = environment.reset();
  }

  static async create(create: EnvironmentFactory, scale: EnvironmentScale): Promise<EnvironmentStage> {
    return new EnvironmentStage(await create(scale), scale);
  }

  /** what they show now */
  get observations(): Float32Array {
    return this.#observations;
  }

  step(action: Action): Transition {
    requireActions(action, this.numEnvironments, this.#environment.actionSize);
    const transition = this.#environment.step(action.actions);
    this.#observations = transition.observations;
    transition.rewards.forEach((reward, row) => {
      const total = (this.#returns[row] ?? 0) + reward;
      const isEnd = transition.terminated[row] || transition.truncated[row];
      this.#returns[row] = isEnd ? 0 : total;
      if (isEnd) this.#ended.push({ step: this.#step, environment: this.firstEnvironment + row, return: total });
    });
    this.#step += 1;
    return transition;
  }

  /** Episodes that have ended since this was asked last. */
  takeEnded(): EndedEpisode[] {
    const ended = this.#ended;
    this.#ended = [];
    this.#step = 0;
    return ended;
  }

  [Symbol.dispose](): void {
    this.#environment[Symbol.dispose]();
  }
}

/** So many consecutive parts of as many environments as possible alike; none is empty. */
export function stagesOf(
  stages: number,
  { numEnvironments, firstEnvironment, seed }: EnvironmentScale,
): EnvironmentScale[] {
  const count = Math.min(stages, numEnvironments);
  const from = (stage: number) => Math.floor((stage * numEnvironments) / count);
  return Array.from({ length: count }, (_, stage) => ({
    numEnvironments: from(stage + 1) - from(stage),
    firstEnvironment: firstEnvironment + from(stage),
    seed,
  }));
}
