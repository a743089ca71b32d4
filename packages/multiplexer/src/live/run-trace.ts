/**
 * What a run has computed in its last steps, as its ranks report it, and what it is likely to compute next: steps are alike
 * (JigsawRL §4.1, inter-step consistency), so what followed last time, after the same stages, follows again.
 */
import { median, type Work, type WorkSample } from "@treadle/contracts";

/** A stretch of a run in which one work computes, on any number of devices. */
export type Stage = {
  readonly work: Work;
  /** from the end of the stage before, in which the run computed nothing: tools, other works of no devices */
  readonly gapMs: number;
  /** alone, by device */
  readonly aloneMs: ReadonlyMap<string, number>;
};

type OpenStage = { readonly work: Work; readonly gapMs: number; readonly aloneMs: Map<string, number>; endMs: number };

const mostStages = 64;
/** Stages before, by which the place in a step is told. */
const longestContext = 8;
/** A pause within a work that is longer than this, and than so much of what came before it, ends a stage. */
const [pauseMs, pausePart] = [20, 0.1];
const usualOf = 5;

export class RunTrace {
  readonly #stages: OpenStage[] = [];
  /** by device, when a turn on it has ended last */
  readonly #ended = new Map<string, number>();

  /** `aloneMs`: what the sample would have taken alone. */
  worked({ work, devices, forMs, ends }: WorkSample, aloneMs: number, nowMs: number): void {
    const startMs = nowMs - forMs;
    const last = this.#stages.at(-1);
    const earlier = this.#stages.findLast((stage) => stage.work === work);
    // Ranks of one work that overlap are one stage, also where another work has begun meanwhile.
    const isOpen =
      earlier !== undefined && !this.#isOver(earlier, startMs) && (earlier === last || startMs <= earlier.endMs);
    const stage = isOpen ? earlier : this.#begin(work, startMs, last);
    for (const device of devices) stage.aloneMs.set(device, (stage.aloneMs.get(device) ?? 0) + aloneMs);
    stage.endMs = Math.max(stage.endMs, nowMs);
    if (ends) for (const device of devices) this.#ended.set(device, nowMs);
  }

  /** What the work usually takes alone on a device; undefined where it was never seen to its end. */
  usualMs(work: Work, device: string): number | undefined {
    const seen = this.#stages.filter((stage) => stage.work === work);
    const here = seen.flatMap(({ aloneMs }) => aloneMs.get(device) ?? []);
    const all = here.length > 0 ? here : seen.flatMap(({ aloneMs }) => [...aloneMs.values()]);
    return all.length === 0 ? undefined : median(all.slice(-usualOf));
  }

  endedMs(device: string): number {
    return this.#ended.get(device) ?? Number.NEGATIVE_INFINITY;
  }

  /** What is likely to follow a stage of this work, which goes on or is about to begin, until so much alone; at most `most`. */
  next(work: Work, untilMs: number, most: number): Stage[] {
    const past = this.#stages;
    const at = this.#placeOf(work);
    if (at < 0) return [];
    const next: Stage[] = [];
    let sumMs = 0;
    // What follows the same stage again, and again from there, since steps repeat.
    for (let i = at + 1; next.length < most && sumMs < untilMs; i++) {
      if (i >= past.length) i = at + 1;
      const stage = past[i];
      if (stage === undefined) break;
      next.push(stage);
      sumMs += stage.gapMs + Math.max(...stage.aloneMs.values());
    }
    return next;
  }

  #begin(work: Work, startMs: number, last: OpenStage | undefined): OpenStage {
    const gapMs = last === undefined ? 0 : Math.max(0, startMs - last.endMs);
    const stage = { work, gapMs, aloneMs: new Map<string, number>(), endMs: startMs };
    this.#stages.push(stage);
    if (this.#stages.length > mostStages) this.#stages.shift();
    return stage;
  }

  #isOver({ endMs, aloneMs }: OpenStage, startMs: number): boolean {
    const longestMs = Math.max(0, ...aloneMs.values());
    return startMs - endMs > Math.max(pauseMs, pausePart * longestMs);
  }

  /** The last stage of that work that was followed by another, after what is most like what has just been. */
  #placeOf(work: Work): number {
    const works = this.#stages.map((stage) => stage.work);
    // What goes on may be in the past already, at its end.
    const before = works.at(-1) === work ? works.length - 1 : works.length;
    let best = -1;
    let bestLength = -1;
    for (let at = before - 1; at >= 0; at--) {
      if (works[at] !== work || at + 1 >= works.length) continue;
      let length = 0;
      while (length < longestContext && at - length > 0 && works[at - 1 - length] === works[before - 1 - length])
        length++;
      if (length > bestLength) [best, bestLength] = [at, length];
    }
    return best;
  }
}
