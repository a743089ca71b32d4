import type { Actions } from "@treadle/engines";
import type { Observation, Trajectory } from "../simulator/items.ts";

type Sizes = { readonly observationSize: number; readonly actionSize: number };

/** What one simulator's attempt at a horizon has brought, by stage (SE3). */
export class Attempt {
  readonly #name: string;
  readonly #policyVersion: number;
  readonly #sizes: Sizes;
  readonly #horizons = new Map<number, Horizon>();
  readonly #finished = new Map<number, readonly Trajectory[]>();

  /** `seen` is an observation of its beginning. */
  constructor(seen: Observation, policyVersion: number, sizes: Sizes) {
    this.#name = seen.attempt;
    this.#policyVersion = policyVersion;
    this.#sizes = sizes;
  }

  isOf(seen: Observation): boolean {
    return seen.attempt === this.#name;
  }

  /** Where an observation belongs, or undefined where it is not the next one of its stage. */
  horizonOf(seen: Observation): Horizon | undefined {
    const known = this.#horizons.get(seen.stage);
    const horizon = known ?? (seen.time === 0 ? new Horizon(seen, this.#policyVersion, this.#sizes) : undefined);
    if (!known && horizon) this.#horizons.set(seen.stage, horizon);
    return horizon?.expects(seen) ? horizon : undefined;
  }

  /** All trajectories, once the last of all stages has ended. */
  finish({ stage, stages }: Observation, lastValues: Float32Array): Trajectory[] | undefined {
    this.#finished.set(stage, this.#horizons.get(stage)?.finish(lastValues) ?? []);
    return this.#finished.size === stages ? [...this.#finished.values()].flat() : undefined;
  }
}

/** The trajectories of the environments of one stage in one attempt at a horizon, as they grow. */
export class Horizon {
  readonly #trajectories: Trajectory[];
  #time = 0;

  constructor(seen: Observation, policyVersion: number, { observationSize, actionSize }: Sizes) {
    const steps = seen.horizon;
    this.#trajectories = Array.from(seen.rewards, (_, row) => ({
      environment: seen.firstEnvironment + row,
      policyVersion,
      observations: new Float32Array(steps * observationSize),
      actions: new Float32Array(steps * actionSize),
      logprobs: new Float32Array(steps),
      values: new Float32Array(steps),
      rewards: new Float32Array(steps),
      terminated: new Uint8Array(steps),
      truncated: new Uint8Array(steps),
      finalValues: new Float32Array(steps),
      lastValue: 0,
    }));
  }

  /** Whether an observation is the next one. */
  expects(seen: Observation): boolean {
    return seen.time === this.#time;
  }

  /** What the last actions have led to; `finalValues`, by row, where an episode was truncated. */
  observe({ rewards, terminated, truncated, time }: Observation, finalValues: ReadonlyMap<number, number>): void {
    if (time === 0) return;
    this.#trajectories.forEach((trajectory, row) => {
      trajectory.rewards[time - 1] = rewards[row] ?? 0;
      trajectory.terminated[time - 1] = terminated[row] ?? 0;
      trajectory.truncated[time - 1] = truncated[row] ?? 0;
      trajectory.finalValues[time - 1] = finalValues.get(row) ?? 0;
    });
  }

  /** What was done about an observation. */
  act({ observations, time }: Observation, { actions, logprobs, values }: Actions): void {
    this.#trajectories.forEach((trajectory, row) => {
      copyRow(observations, row, trajectory.observations, time, this.#trajectories.length);
      copyRow(actions, row, trajectory.actions, time, this.#trajectories.length);
      trajectory.logprobs[time] = logprobs[row] ?? 0;
      trajectory.values[time] = values[row] ?? 0;
    });
    this.#time = time + 1;
  }

  /** All of it, with the values of what comes after. */
  finish(lastValues: Float32Array): Trajectory[] {
    return this.#trajectories.map((trajectory, row) => ({ ...trajectory, lastValue: lastValues[row] ?? 0 }));
  }
}

function copyRow(from: Float32Array, row: number, to: Float32Array, at: number, rows: number): void {
  const width = from.length / rows;
  to.set(from.subarray(row * width, (row + 1) * width), at * width);
}
