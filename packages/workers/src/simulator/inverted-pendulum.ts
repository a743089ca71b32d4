import loadMujoco, { type MainModule, type MjData, type MjModel } from "@mujoco/mujoco";
import { createRandom } from "@treadle/learning";
import type { Transition, VectorEnvironment } from "./environment.ts";

const cartPole = `
<mujoco model="cart-pole">
  <option timestep="0.02" integrator="RK4"/>
  <worldbody>
    <body name="cart">
      <joint name="slide" type="slide" axis="1 0 0" damping="1" limited="true" range="-1 1"/>
      <geom type="box" size="0.15 0.1 0.08" mass="9" contype="0" conaffinity="0"/>
      <body name="pole">
        <joint name="hinge" type="hinge" axis="0 1 0" damping="0.5"/>
        <geom type="capsule" fromto="0 0 0 0 0 0.6" size="0.045" mass="4.5" contype="0" conaffinity="0"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor joint="slide" gear="100" ctrllimited="true" ctrlrange="-3 3"/></actuator>
</mujoco>`;

const stepsPerAction = 2;
const maxAngleRadians = 0.2;
const observationSize = 4;

export type InvertedPendulumOptions = {
  readonly numEnvironments: number;
  readonly seed: number;
  /** actions after which an episode is truncated */
  readonly maxSteps: number;
};

/** Balancing a pole on a cart: reward 1 for each step that leaves it upright; observed are positions and velocities. */
export async function createInvertedPendulum(options: InvertedPendulumOptions): Promise<VectorEnvironment> {
  return new InvertedPendulum(await loadMujoco(), options);
}

class InvertedPendulum implements VectorEnvironment {
  readonly observationSize = observationSize;
  readonly actionSize = 1;
  readonly numEnvironments: number;
  readonly #mujoco: MainModule;
  readonly #options: InvertedPendulumOptions;
  readonly #model: MjModel;
  readonly #states: readonly MjData[];
  readonly #episodes: Int32Array;
  readonly #ages: Int32Array;

  constructor(mujoco: MainModule, options: InvertedPendulumOptions) {
    this.#mujoco = mujoco;
    this.#options = options;
    this.numEnvironments = options.numEnvironments;
    const model = mujoco.MjModel.from_xml_string(cartPole);
    if (!model) throw new Error("the physics engine refused the cart-pole model");
    this.#model = model;
    this.#states = Array.from({ length: options.numEnvironments }, () => new mujoco.MjData(model));
    this.#episodes = new Int32Array(options.numEnvironments).fill(-1);
    this.#ages = new Int32Array(options.numEnvironments);
  }

  reset(): Float32Array {
    const observations = new Float32Array(this.numEnvironments * observationSize);
    this.#states.forEach((state, index) => {
      this.#begin(state, index);
      observe(state, observations, index);
    });
    return observations;
  }

  step(actions: Float32Array): Transition {
    const count = this.numEnvironments;
    const finalObservations = new Float32Array(count * observationSize);
    const rewards = new Float32Array(count);
    const terminated = new Uint8Array(count);
    const truncated = new Uint8Array(count);
    const observations = new Float32Array(count * observationSize);
    this.#states.forEach((state, index) => {
      state.ctrl[0] = actions[index] ?? 0;
      for (let step = 0; step < stepsPerAction; step++) this.#mujoco.mj_step(this.#model, state);
      observe(state, finalObservations, index);
      const angle = finalObservations[index * observationSize + 1] ?? Number.NaN;
      const age = (this.#ages[index] ?? 0) + 1;
      this.#ages[index] = age;
      // Written so that a diverged simulation, whose angle is not a number, ends too.
      const upright = Math.abs(angle) <= maxAngleRadians;
      rewards[index] = upright ? 1 : 0;
      terminated[index] = upright ? 0 : 1;
      truncated[index] = upright && age >= this.#options.maxSteps ? 1 : 0;
      if (terminated[index] || truncated[index]) this.#begin(state, index);
      observe(state, observations, index);
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
    const random = createRandom(`${this.#options.seed}/${index}/${episode}`);
    this.#mujoco.mj_resetData(this.#model, state);
    for (const values of [state.qpos, state.qvel]) {
      for (let joint = 0; joint < 2; joint++) values[joint] = 0.02 * random.float() - 0.01;
    }
  }
}

/** Takes the views anew each time: they go stale when the engine's memory grows. */
function observe(state: MjData, observations: Float32Array, index: number): void {
  observations.set(state.qpos, index * observationSize);
  observations.set(state.qvel, index * observationSize + 2);
}
