import { parseConfig } from "@treadle/learning";
import { z } from "zod";
import { cartPoleModel, disturb } from "./cart-pole-model.ts";
import type { EnvironmentPlugin } from "./environment.ts";
import { createMujocoEnvironment } from "./mujoco-environment.ts";

const SwingUpConfig = z.strictObject({
  name: z.literal("cart-pole-swing-up"),
  /** actions of an episode, 40 ms each */
  maxSteps: z.int().positive().default(250),
});

/**
 * Bringing a hanging pole up and keeping it there, with a motor too weak to lift it at once. The reward of a step is in
 * [0, 1]: how upright the pole is, less where the cart is away from the middle (after the task of the DeepMind Control
 * Suite). Observed are the cart's place, the angle's cosine and sine, and both velocities. Only time ends an episode.
 */
export const cartPoleSwingUp: EnvironmentPlugin = {
  name: "cart-pole-swing-up",
  create(config, path) {
    const { maxSteps } = parseConfig(SwingUpConfig, config, path);
    const model = cartPoleModel({
      timestep: 0.02,
      halfTrack: 1.8,
      cartMass: 1,
      poleMass: 0.1,
      poleLength: 1,
      poleRadius: 0.045,
      slideDamping: 0.0005,
      hingeDamping: 0.0001,
      force: 10,
      maxControl: 1,
    });
    return (scale) =>
      createMujocoEnvironment(
        {
          model,
          stepsPerAction: 2,
          observationSize: 5,
          maxSteps,
          begin(state, random) {
            disturb(state, random);
            state.qpos[1] = (state.qpos[1] ?? 0) + Math.PI;
          },
          // Velocities in units that keep what the networks see near one.
          observe({ qpos: [place = 0, angle = 0], qvel: [speed = 0, turning = 0] }) {
            return [place, Math.cos(angle), Math.sin(angle), speed / 3, turning / 6];
          },
          judge({ qpos: [place = 0, angle = 0] }) {
            const upright = (1 + Math.cos(angle)) / 2;
            const centred = (1 + Math.exp(-(place ** 2))) / 2;
            return { reward: upright ** 2 * centred, terminated: false };
          },
        },
        scale,
      );
  },
};
