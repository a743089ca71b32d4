import type { MainModule, MjData, MjModel } from "@mujoco/mujoco";
import type { EpisodeRecording } from "@treadle/contracts";
import type { Drawing } from "./environment.ts";

// mjtGeom
const sphere = 2;
const capsule = 3;
const box = 6;

/** Side views of a model's spheres, capsules and boxes, in the model's order; its other geometries are left out. */
export function createMujocoDrawing(
  mujoco: MainModule,
  model: MjModel,
  states: readonly MjData[],
  stepsPerAction: number,
): Drawing {
  const shapes: EpisodeRecording["shapes"] = [];
  const geometries: { readonly index: number; readonly axes: readonly (readonly [axis: number, half: number])[] }[] =
    [];
  for (let index = 0; index < model.ngeom; index++) {
    const [a, b, c] = model.geom_size.slice(3 * index, 3 * index + 3) as [number, number, number];
    const type = model.geom_type[index] as number;
    if (type === sphere) shapes.push({ kind: "sphere", radius: a });
    else if (type === capsule) shapes.push({ kind: "capsule", radius: a });
    else if (type === box) shapes.push({ kind: "box" });
    else continue;
    const halves = [a, b, c].map((half, axis) => [axis, half] as const);
    // A capsule lies along its own third axis, by its second size.
    geometries.push({ index, axes: type === box ? halves : type === capsule ? [[2, b]] : [] });
  }
  return {
    secondsPerStep: model.opt.timestep * stepsPerAction,
    shapes,
    frameOf(environment) {
      const state = states[environment] as MjData;
      mujoco.mj_kinematics(model, state); // after a step, places are those from before its last part
      const { geom_xpos: places, geom_xmat: rotations } = state;
      return geometries.map(({ index, axes }) => {
        const centre = [places[3 * index], places[3 * index + 2]];
        const halves = axes.flatMap(([axis, half]) => [
          half * rotations[9 * index + axis],
          half * rotations[9 * index + 6 + axis],
        ]);
        return [...centre, ...halves].map(round);
      });
    },
  };
}

/** to a millimetre */
const round = (value: number) => Math.round(1000 * value) / 1000;
