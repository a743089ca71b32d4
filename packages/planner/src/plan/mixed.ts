import { restOf } from "./candidate.ts";
import { evaluateSchedule } from "./evaluate.ts";
import { type FastResult, mostRefinedLevels, nothingFound } from "./fast.ts";
import { type PlanModel, type PlanSet, spatialSeconds, swapAt } from "./model.ts";
import type { Schedule } from "./problem.ts";
import { refineSplits } from "./refine.ts";
import type { Rough, RoughWay } from "./rough.ts";
import { modeOf } from "./schedule-mode.ts";

type Candidate = { readonly time: number; readonly compose: () => Schedule };

/** With rounding of splits to the grid, the best few are worth their true seconds. */
const mostComposed = 6;

/**
 * A good schedule that both takes turns and owns devices, soon: of two parts, each of which only takes turns or only owns
 * devices. With three components that is every hybrid there is. Splits are found on a grid, and then made the best for
 * what the schedule does. Nothing is looked for above `limit` seconds.
 */
export function solveMixed(model: PlanModel, rough: Rough, limit: number): FastResult {
  const ways = { turns: rough.way("temporal", limit), beside: rough.way("spatial", limit) };
  const candidates = [...inTurn(model, ways), ...sideBySide(model, ways)].sort((a, b) => a.time - b.time);
  let [time, schedule] = [Number.POSITIVE_INFINITY, null as Schedule | null];
  const offer = (found: Schedule): void => {
    const seconds = evaluateSchedule(model, found)[model.objective] ?? Number.POSITIVE_INFINITY;
    if (seconds < time && modeOf(model.problem, found) === "hybrid") [time, schedule] = [seconds, found];
  };
  for (const { compose } of candidates.slice(0, mostComposed)) offer(compose());
  if (schedule !== null && model.levels <= mostRefinedLevels) offer(refineSplits(model, schedule));
  if (time > limit) return nothingFound;
  const rows = ways.turns.bounds.numRows() + ways.beside.bounds.numRows();
  return { time, schedule, bound: 0, states: rows, candidates: candidates.length };
}

type Ways = { readonly turns: RoughWay; readonly beside: RoughWay };

const upperAt = ({ bounds }: RoughWay, set: PlanSet, level: number, itemsIndex: number): number =>
  bounds.upperAt(set, itemsIndex, level);

/** Both ways to do two parts of which at least one is done in `wanted`, which a single component cannot be. */
function* pairsOf(
  first: PlanSet,
  second: PlanSet,
  wanted: RoughWay,
  other: RoughWay,
): Generator<readonly [RoughWay, RoughWay]> {
  if (!first.single) yield [wanted, other];
  if (!second.single) yield [other, wanted];
  if (!first.single && !second.single) yield [wanted, wanted];
}

function* inTurn(model: PlanModel, { turns, beside }: Ways): Generator<Candidate> {
  const { levels, step, items, all } = model;
  for (const cut of all.cuts) {
    if (!cut.turns) continue;
    const { turnFirst, turnSecond } = cut;
    for (const [a, b] of pairsOf(turnFirst, turnSecond, beside, turns)) {
      const time = upperAt(a, turnFirst, levels, 0) + upperAt(b, turnSecond, levels, 0) + swapAt(cut, levels);
      if (!Number.isFinite(time)) continue;
      const compose = (): Schedule => ({
        op: "temporal",
        devices: levels * step,
        items: items[0]!,
        first: a.search.scheduleAt(turnFirst, levels, 0),
        second: b.search.scheduleAt(turnSecond, levels, 0),
      });
      yield { time, compose };
    }
  }
}

function* sideBySide(model: PlanModel, { turns, beside }: Ways): Generator<Candidate> {
  const { levels, step, items, all, objective, problem } = model;
  const { grid } = turns.bounds;
  for (const cut of all.cuts) {
    if (!cut.beside) continue;
    const { first, second } = cut;
    const parallel = problem.parallelIndependent && cut.independent;
    const whole = model.chunkings[0]!;
    for (const { itemsIndex, items: chunk, count } of parallel ? [...whole, { ...whole[0]!, count: 0 }] : whole) {
      for (const [a, b] of pairsOf(first, second, turns, beside)) {
        let best = Number.POSITIVE_INFINITY;
        let split = 0;
        for (const share of cut.free ? [levels] : grid.levels) {
          const rest = restOf(cut, levels, share);
          if (rest < 1) break;
          const time = spatialSeconds(
            objective,
            upperAt(a, first, share, itemsIndex),
            upperAt(b, second, rest, itemsIndex),
            count,
          );
          if (time < best) [best, split] = [time, share];
        }
        if (!Number.isFinite(best)) continue;
        const compose = (): Schedule => {
          const size = { devices: levels * step, items: items[0]! };
          const parts = {
            first: a.search.scheduleAt(first, split, itemsIndex),
            second: b.search.scheduleAt(second, restOf(cut, levels, split), itemsIndex),
          };
          return count === 0 ? { op: "parallel", ...size, ...parts } : { op: "pipeline", ...size, chunk, ...parts };
        };
        yield { time: best, compose };
      }
    }
  }
}
