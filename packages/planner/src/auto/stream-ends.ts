/**
 * What components do once a step, such as an optimiser step, follows their last chunk. Samples of chunks have their share
 * of it, which hides it behind whatever is slower in a pipeline; here it comes where it is, at the end. Pure.
 */
import type { Profile } from "@treadle/contracts";
import type { Cost } from "../plan/evaluate.ts";

/** `seconds` without what is done once, and `tail`: what of that is still to be done when the last chunk is. */
type Stretch = { readonly seconds: number; readonly tail: number };

const sum = (values: readonly number[]): number => values.reduce((total, each) => total + each, 0);

/** Seconds of a whole step. */
export function stepWithEnds(cost: Cost, { components }: Pick<Profile, "components">, batch: number): number {
  const stretchOf = ({ schedule, parts, step, swap, swapBack }: Cost): Stretch => {
    const isWhole = schedule.items >= batch;
    const ended = ({ seconds, tail }: Stretch): Stretch =>
      isWhole ? { seconds: seconds + tail, tail: 0 } : { seconds, tail };
    if (schedule.op === "node") {
      const once = sum(schedule.node.split("+").map((name) => components[name]?.onceSeconds ?? 0));
      if (isWhole) return { seconds: step, tail: 0 };
      return { seconds: Math.max(0, step - (once * schedule.items) / batch), tail: once };
    }
    const inner = parts.map(stretchOf);
    const [seconds, tails] = [inner.map((part) => part.seconds), inner.map((part) => part.tail)];
    if (schedule.op === "temporal") return ended({ seconds: sum(seconds) + swap + swapBack, tail: sum(tails) });
    if (schedule.op === "parallel") return ended({ seconds: Math.max(...seconds), tail: Math.max(...tails) });
    const chunks = schedule.items / schedule.chunk;
    // A stage is done with its last chunk when the slowest up to it has let it through.
    const done = seconds.map((_, i) => {
      const upTo = seconds.slice(0, i + 1);
      return sum(upTo) + (chunks - 1) * Math.max(...upTo);
    });
    const all = done.at(-1) ?? 0;
    return ended({ seconds: all, tail: Math.max(0, ...tails.map((tail, i) => done[i]! + tail - all)) });
  };
  const whole = stretchOf(cost);
  return whole.seconds + whole.tail;
}
