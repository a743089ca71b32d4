import type { MainModule, MjData, MjModel } from "@mujoco/mujoco";
import { createRandom, type Random } from "@treadle/learning";
import type { Drawing, EnvironmentScale, Transition, VectorEnvironment } from "./environment.ts";
import { createMujocoDrawing } from "./mujoco-drawing.ts";

/**
 * What a task sees of a state in the physics engine, by the engine's names. Views are good until the next step. The engine's
 * own types do not compile in a project that checks libraries.
 */
export type MujocoState = {
  /** simulated seconds */
  readonly time: number;
  /** positions and velocities of the joints, in the model's order */
  readonly qpos: Float64Array;
  readonly qvel: Float64Array;
  readonly ctrl: Float64Array;
  readonly sensordata: Float64Array;
  /** centres of the bodies, three numbers each; the first body is the world */
  readonly xpos: Float64Array;
};

/** What is particular about a task in the physics engine. */
export type MujocoTask = {
  /** MJCF: the bodies, their joints and the motors, whose controls are the actions */
  readonly model: string;
  readonly stepsPerAction: number;
  readonly observationSize: number;
  /** actions after which an episode is truncated */
  readonly maxSteps: number;
  /** puts a fresh state, all zero, where an episode begins */
  begin(state: MujocoState, random: Random): void;
  observe(state: MujocoState): ArrayLike<number>;
  /** of the state that an action has led to; one whose observation is not finite ends without reward, unasked */
  judge(state: MujocoState): { readonly reward: number; readonly terminated: boolean };
};

let loading: Promise<MainModule> | undefined;

/** `numEnvironments` states of one model. */
export async function createMujocoEnvironment(task: MujocoTask, scale: EnvironmentScale): Promise<VectorEnvironment> {
  loading ??= import("@mujoco/mujoco").then(({ default: load }) => load());
  return new MujocoEnvironment(await loading, task, scale);
}

class MujocoEnvironment implements VectorEnvironment {
  readonly observationSize: number;
  readonly actionSize: number;
  readonly numEnvironments: number;
  readonly drawing: Drawing;
  readonly #mujoco: MainModule;
  readonly #task: MujocoTask;
  readonly #scale: EnvironmentScale;
  readonly #model: MjModel;
  readonly #states: readonly MjData[];
  readonly #episodes: Int32Array;
  readonly #ages: Int32Array;

  constructor(mujoco: MainModule, task: MujocoTask, scale: EnvironmentScale) {
    this.#mujoco = mujoco;
    this.#task = task;
    this.#scale = scale;
    const model = mujoco.MjModel.from_xml_string(task.model);
    if (!model) throw new Error("the physics engine refused the task's model");
    this.#model = model;
    this.observationSize = task.observationSize;
    this.actionSize = model.nu;
    this.numEnvironments = scale.numEnvironments;
    this.#states = Array.from({ length: scale.numEnvironments }, () => new mujoco.MjData(model));
    this.#episodes = new Int32Array(scale.numEnvironments).fill(-1);
    this.#ages = new Int32Array(scale.numEnvironments);
    this.drawing = createMujocoDrawing(mujoco, model, this.#states, task.stepsPerAction);
  }

  reset(): Float32Array {
    const observations = new Float32Array(this.numEnvironments * this.observationSize);
    this.#states.forEach((state, index) => {
      this.#begin(state, index);
      this.#observe(state, observations, index);
    });
    return observations;
  }

  step(actions: Float32Array): Transition {
    const count = this.numEnvironments;
    const finalObservations = new Float32Array(count * this.observationSize);
    const observations = new Float32Array(count * this.observationSize);
    const rewards = new Float32Array(count);
    const terminated = new Uint8Array(count);
    const truncated = new Uint8Array(count);
    this.#states.forEach((state, index) => {
      for (let motor = 0; motor < this.actionSize; motor++) {
        state.ctrl[motor] = actions[index * this.actionSize + motor] ?? 0;
      }
      for (let step = 0; step < this.#task.stepsPerAction; step++) this.#mujoco.mj_step(this.#model, state);
      const isSound = this.#observe(state, finalObservations, index);
      const judged = isSound ? this.#task.judge(state) : { reward: 0, terminated: true };
      const age = (this.#ages[index] ?? 0) + 1;
      this.#ages[index] = age;
      rewards[index] = judged.reward;
      terminated[index] = judged.terminated ? 1 : 0;
      truncated[index] = !judged.terminated && age >= this.#task.maxSteps ? 1 : 0;
      if (terminated[index] || truncated[index]) this.#begin(state, index);
      this.#observe(state, observations, index);
    });
    return { observations, finalObservations, rewards, terminated, truncated };
  }

  [Symbol.dispose](): void {
    for (const state of this.#states) state.delete();
    this.#model.delete();
  }

  #begin(state: MjData, index: number): void {
    const episode = (this.#episodes[index] ?? -1) + 1;
    this.#episodes[index] = episode;
    this.#ages[index] = 0;
    this.#mujoco.mj_resetData(this.#model, state);
    const { seed, firstEnvironment } = this.#scale;
    this.#task.begin(state, createRandom(`${seed}/${firstEnvironment + index}/${episode}`));
  }

  /** A diverged state is shown as zeros, which no network chokes on. */
  #observe(state: MjData, into: Float32Array, index: number): boolean {
    const seen = this.#task.observe(state);
    let isSound = true;
    for (let i = 0; i < this.observationSize; i++) isSound &&= Number.isFinite(seen[i]);
    if (isSound) into.set(seen, index * this.observationSize);
    return isSound;
  }
}
