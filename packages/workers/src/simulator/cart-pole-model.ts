import type { Random } from "@treadle/learning";
import type { MujocoState } from "./mujoco-environment.ts";

export type CartPole = {
  readonly timestep: number;
  /** metres from the middle of the track to its ends */
  readonly halfTrack: number;
  readonly cartMass: number;
  readonly poleMass: number;
  readonly poleLength: number;
  readonly poleRadius: number;
  readonly slideDamping: number;
  readonly hingeDamping: number;
  /** newtons of a control of 1 */
  readonly force: number;
  readonly maxControl: number;
};

/** MJCF of a pole on a cart on a track. `qpos` and `qvel` are of the cart and of the pole, whose angle is 0 upright. */
export function cartPoleModel(shape: CartPole): string {
  const { halfTrack, poleLength, maxControl } = shape;
  return `
<mujoco model="cart-pole">
  <option timestep="${shape.timestep}" integrator="RK4"/>
  <default><geom contype="0" conaffinity="0"/></default>
  <worldbody>
    <geom name="track" type="box" size="${halfTrack + 0.15} 0.02 0.01"/>
    <body name="cart">
      <joint name="slide" type="slide" axis="1 0 0" damping="${shape.slideDamping}" limited="true" range="${-halfTrack} ${halfTrack}"/>
      <geom name="cart" type="box" size="0.15 0.1 0.08" mass="${shape.cartMass}"/>
      <body name="pole">
        <joint name="hinge" type="hinge" axis="0 1 0" damping="${shape.hingeDamping}"/>
        <geom name="pole" type="capsule" fromto="0 0 0 0 0 ${poleLength}" size="${shape.poleRadius}" mass="${shape.poleMass}"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor joint="slide" gear="${shape.force}" ctrllimited="true" ctrlrange="${-maxControl} ${maxControl}"/></actuator>
</mujoco>`;
}

/** Adds to both joints' positions and velocities what is even between -0.01 and 0.01. */
export function disturb({ qpos, qvel }: MujocoState, random: Random): void {
  for (const values of [qpos, qvel]) {
    for (let joint = 0; joint < 2; joint++) values[joint] = (values[joint] ?? 0) + 0.02 * random.float() - 0.01;
  }
}
