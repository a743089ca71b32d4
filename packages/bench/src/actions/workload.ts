/** Actions of a coding task, drawn from a seed. */
import type { QueuedAction } from "@treadle/actions";
import { elasticOf, toChoices } from "@treadle/actions/internal";

export type Draw = () => number;

/** The same numbers at every call. */
export function randomNumbers(seed: number): Draw {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return (state + 0.5) / 2 ** 32;
  };
}

export const upTo32 = Array.from({ length: 32 }, (_, i) => i + 1);
export const doubling = [1, 2, 4, 8, 16, 32];

export const normal = (draw: Draw): number => Math.sqrt(-2 * Math.log(draw())) * Math.cos(2 * Math.PI * draw());
const serialShare = (draw: Draw): number => 0.005 * 60 ** draw();

/** A reward of a coding task: median 120 s on one core, serial share 0.5-30 %. `bend` makes durations not convex. */
export function reward(id: string, draw: Draw, units: readonly number[], bend = false): QueuedAction {
  const one = 120 * Math.exp(0.6 * normal(draw));
  const serial = serialShare(draw);
  const seconds = units.map((m) => one * (serial + (1 - serial) / m) * (bend ? 0.6 + 0.8 * draw() : 1));
  const choices = toChoices(id, units, seconds);
  return { id, demands: [["cpu", 1]], elastic: elasticOf("cpu", choices), seconds: choices.seconds[0] };
}
