import type { Actions } from "@treadle/engines";
import type { Observation, Trajectory } from "../simulator/items.ts";

/** The trajectories of one simulator's environments in one attempt at a horizon, as they grow. */
export class Horizon {
  readonly #attempt: string;
  readonly #trajectories: Trajectory[];
  #time = 0;

  /** `seen` is the attempt's first observation. */
  constructor(seen: Observation, policyVersion: number, { observationSize, actionSize }: Record<SizeName, number>) {
    this.#attempt = seen.attempt;
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

  /** Whether an observation is the next one of this attempt. */
  expects(seen: Observation): boolean {
    return seen.attempt === this.#attempt && seen.time === this.#time;
  }

  /** What the last actions have led to; `finalValues` where an episode was truncated. */
  observe({ rewards, terminated, truncated, time }: Observation, finalValues: Float32Array | undefined): void {
    if (time === 0) return;
    this.#trajectories.forEach((trajectory, row) => {
      trajectory.rewards[time - 1] = rewards[row] ?? 0;
      trajectory.terminated[time - 1] = terminated[row] ?? 0;
      trajectory.truncated[time - 1] = truncated[row] ?? 0;
      trajectory.finalValues[time - 1] = finalValues?.[row] ?? 0;
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

type SizeName = "observationSize" | "actionSize";

function copyRow(from: Float32Array, row: number, to: Float32Array, at: number, rows: number): void {
  const width = from.length / rows;
  to.set(from.subarray(row * width, (row + 1) * width), at * width);
}
