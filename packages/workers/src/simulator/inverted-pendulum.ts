import { parseConfig } from "@treadle/learning";
import { z } from "zod";
import { cartPoleModel, disturb } from "./cart-pole-model.ts";
import type { EnvironmentPlugin } from "./environment.ts";
import { createMujocoEnvironment } from "./mujoco-environment.ts";

const maxAngleRadians = 0.2;

const InvertedPendulumConfig = z.strictObject({
  name: z.literal("inverted-pendulum"),
  /** actions after which an episode is truncated */
  maxSteps: z.int().positive().default(1000),
});

/** Balancing a pole on a cart: reward 1 for each step that leaves it upright; observed are positions and velocities. */
export const invertedPendulum: EnvironmentPlugin = {
  name: "inverted-pendulum",
  create(config, path) {
    const { maxSteps } = parseConfig(InvertedPendulumConfig, config, path);
    const model = cartPoleModel({
      timestep: 0.02,
      halfTrack: 1,
      cartMass: 9,
      poleMass: 4.5,
      poleLength: 0.6,
      poleRadius: 0.045,
      slideDamping: 1,
      hingeDamping: 0.5,
      force: 100,
      maxControl: 3,
    });
    return (scale) =>
      createMujocoEnvironment(
        {
          model,
          stepsPerAction: 2,
          observationSize: 4,
          maxSteps,
          begin: disturb,
          observe: ({ qpos, qvel }) => [...qpos, ...qvel],
          judge({ qpos: [, angle = 0] }) {
            const isUpright = Math.abs(angle) <= maxAngleRadians;
            return { reward: isUpright ? 1 : 0, terminated: !isUpright };
          },
        },
        scale,
      );
  },
};
