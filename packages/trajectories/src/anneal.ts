import type { Allocated, Allocation, DegreeOption } from "./allocation.ts";
import { placeExact } from "./place.ts";
import { seededRandom } from "./random.ts";

/** Heddle Alg. 2's α and ε; the threshold is relative to the initial makespan, since the temperature starts there. */
const coolingRate = 0.98;
const relativeThreshold = 1e-3;

/**
 * Heddle Alg. 2, sort-initialised simulated annealing: degrees are drawn at random until the budget is spent, kept
 * sorted, and changed by redistributing between two workers, splitting one, or merging two. Each state is judged by the
 * exact placement (the paper runs Formula 3, which gives the same value). The same seed gives the same answer.
 */
export function anneal({ sorted, options, gpus, tokensOf }: Allocation, seed: number): Allocated | undefined {
  const random = seededRandom(seed);
  const below = (limit: number): number => Math.floor(random() * limit);
  const degrees = options.map((option) => option.degree);
  const timeOf = new Map(options.map((option: DegreeOption) => [option.degree, option.tokenTime]));
  let evaluations = 0;
  let probes = 0;
  const judge = (state: readonly number[]): Allocated | undefined => {
    probes++;
    const placed = placeExact(
      sorted,
      state.map((degree) => timeOf.get(degree)!),
      tokensOf,
    );
    evaluations += placed?.evaluations ?? 0;
    return placed && { ...placed, degrees: state };
  };

  const draw = (): number[] => {
    const state: number[] = [];
    for (let free = gpus; ; ) {
      const fitting = degrees.filter((degree) => degree <= free);
      if (fitting.length === 0) return state.sort((a, b) => b - a);
      const degree = fitting[below(fitting.length)]!;
      state.push(degree);
      free -= degree;
    }
  };

  /** Pairs of degrees that add up to `sum`. */
  const pairs = (sum: number): [number, number][] =>
    degrees.filter((degree) => degrees.includes(sum - degree)).map((degree) => [degree, sum - degree]);

  const perturb = (state: readonly number[]): number[] => {
    const next = [...state];
    const takeAny = (): number => next.splice(below(next.length), 1)[0]!;
    const move = ["redistribute", "split", "merge"][below(3)];
    if (move === "split") {
      const choices = pairs(takeAny());
      if (choices.length === 0) return [...state];
      next.push(...choices[below(choices.length)]!);
    } else {
      if (next.length < 2) return [...state];
      const sum = takeAny() + takeAny();
      const choices =
        move === "merge" ? degrees.filter((degree) => degree === sum).map((degree) => [degree]) : pairs(sum);
      if (choices.length === 0) return [...state];
      next.push(...choices[below(choices.length)]!);
    }
    return next.sort((a, b) => b - a);
  };

  let current = judge(draw());
  // A budget drawn into few wide workers may not hold everything; draw again, as often as a run has moves.
  for (let attempt = 0; current === undefined && attempt < 1000; attempt++) current = judge(draw());
  if (current === undefined) return undefined;
  let best = current;
  for (
    let temperature = current.makespan, end = temperature * relativeThreshold;
    temperature > end;
    temperature *= coolingRate
  ) {
    const next = judge(perturb(current.degrees));
    if (next === undefined) continue;
    const worse = next.makespan - current.makespan;
    if (worse < 0 || random() < Math.exp(-worse / temperature)) current = next;
    if (current.makespan < best.makespan) best = current;
  }
  return { ...best, probes, evaluations };
}
