import type { EpisodeRecording } from "@treadle/contracts";
import type { Plugin, PluginRegistry } from "@treadle/learning";

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
  /** what can be drawn of it, where anything can */
  readonly drawing?: Drawing | undefined;
  /** Starts a new episode in each; returns `[numEnvironments, observationSize]`. */
  reset(): Float32Array;
  /** Takes `[numEnvironments, actionSize]`. */
  step(actions: Float32Array): Transition;
}

/** Side views of an environment's bodies. */
export interface Drawing {
  readonly secondsPerStep: number;
  readonly shapes: EpisodeRecording["shapes"];
  /** the frame of one environment as it is now, one projection a shape */
  frameOf(environment: number): number[][];
}

/** How many copies, and which of the run's they are: an environment's episodes depend on `seed` and its own number alone. */
export type EnvironmentScale = {
  readonly numEnvironments: number;
  /** the number of the first one among all of the run */
  readonly firstEnvironment: number;
  readonly seed: number;
};

export type EnvironmentFactory = (scale: EnvironmentScale) => Promise<VectorEnvironment>;

/** A kind of environment: checks its options when it is named, makes environments when they are needed. */
export type EnvironmentPlugin = Plugin<EnvironmentFactory>;

/** Environments by name. */
export type EnvironmentRegistry = PluginRegistry<EnvironmentFactory>;
