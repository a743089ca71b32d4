import { z } from "zod";

const numbersOf = { sphere: 2, capsule: 4, box: 8 };

const Recording = z.object({
  environment: z.string(),
  /** steps of the run that were done before */
  step: z.int().nonnegative(),
  policyVersion: z.int().nonnegative(),
  /** sum of the episode's rewards, all its actions, also those without a frame */
  return: z.number(),
  numActions: z.int().nonnegative(),
  secondsPerFrame: z.number().positive(),
  shapes: z.array(
    z.discriminatedUnion("kind", [
      z.object({ kind: z.literal("sphere"), radius: z.number().positive() }),
      z.object({ kind: z.literal("capsule"), radius: z.number().positive() }),
      z.object({ kind: z.literal("box") }),
    ]),
  ),
  /**
   * For each frame and each shape its projection: the centre `x z`, then of a capsule its half axis `x z`, of a box its
   * three half axes.
   */
  frames: z.array(z.array(z.array(z.number()))),
});
/**
 * One episode as side views of its bodies, for people: what a simulator leaves in `<run>/artifacts/episodes/`, and a report
 * draws. Lengths in metres, `x` to the right and `z` up.
 */
export const EpisodeRecording = Recording.refine(
  ({ shapes, frames }) =>
    frames.every(
      (frame) =>
        frame.length === shapes.length &&
        frame.every((numbers, i) => numbers.length === numbersOf[(shapes[i] as { kind: keyof typeof numbersOf }).kind]),
    ),
  "a frame has one projection for each shape, of two numbers for a sphere, four for a capsule, eight for a box",
);
export type EpisodeRecording = z.infer<typeof EpisodeRecording>;

/** Where recordings lie below a run's artifacts, and what their names begin with. */
export const recordingFolder = "episodes";
