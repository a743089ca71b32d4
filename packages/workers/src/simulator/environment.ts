/** Control signals of all environments after one step; arrays are row-major over the environments. */
export type Transition = {
  /** what the next action is chosen on: of a finished environment, the first of its next episode */
  readonly observations: Float32Array;
  /** what the step led to, before any reset */
  readonly finalObservations: Float32Array;
  readonly rewards: Float32Array;
  /** 1 where the task itself ended, 0 elsewhere */
  readonly terminated: Uint8Array;
  /** 1 where only the time limit ended the episode */
  readonly truncated: Uint8Array;
};

/** `numEnvironments` copies of one task that step together and reset by themselves. Equal seeds give equal runs. */
export interface VectorEnvironment extends Disposable {
  readonly observationSize: number;
  readonly actionSize: number;
  readonly numEnvironments: number;
  /** Starts a new episode in each; returns `[numEnvironments, observationSize]`. */
  reset(): Float32Array;
  /** Takes `[numEnvironments, actionSize]`. */
  step(actions: Float32Array): Transition;
}
