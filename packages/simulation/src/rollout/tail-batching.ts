import { type Interference, type RecordedEpisode, tailRound } from "@treadle/trajectories";
import { noisyForecasting } from "./forecasts.ts";
import type { RolloutScenario } from "./scenario.ts";
import { drawSteps, simulateWay, type Workload } from "./ways.ts";

/** Of prompts, as `rollout.tail: batch` has it by default. */
const oversampling = 1.25;

/**
 * Steps whose prompts race until as many are done as a step wants, and steps of those that lost, which are waited for: as
 * `tailRound` shares them out, up to the first of the latter. Equal workers of that degree, cache placement, round-robin.
 */
export function tailBatching(
  scenario: RolloutScenario,
  workload: Workload,
  episodes: number,
  F: Interference,
  degree: number,
): { readonly name: string; readonly tokensPerSecond: number } {
  const { gpus, samples, seed } = scenario;
  const numWanted = Math.ceil(episodes / samples);
  const way = {
    degrees: new Array<number>(Math.floor(gpus / degree)).fill(degree),
    scheduler: "rr" as const,
    placement: { type: "cache" as const },
  };
  const begun = Math.ceil(numWanted * oversampling) * samples;
  const steps = drawSteps(scenario, workload, begun, Math.ceil(1 / (oversampling - 1)) + 1);
  const late: (readonly RecordedEpisode[])[] = [];
  let [tokens, seconds] = [0, 0];
  for (let step = 1; ; step++) {
    const given = { step, numWanted, numLate: late.length, numLateSteps: 0 };
    const { fresh } = tailRound(given, { prompts: oversampling, lateJoin: false });
    const prompts = fresh
      ? promptsOf(steps[fresh.round - 1]!.slice(0, fresh.count * samples), samples)
      : late.splice(0, numWanted);
    const played = prompts.flat();
    const { finish } = simulateWay(scenario, F, played, noisyForecasting(played, 0, seed), way);
    const ends = prompts.map((_, at) => Math.max(...finish.slice(at * samples, (at + 1) * samples)));
    const inOrder = [...prompts.keys()].sort((a, b) => ends[a]! - ends[b]! || a - b);
    const kept = inOrder.slice(0, numWanted);
    late.push(...inOrder.slice(numWanted).map((at) => prompts[at]!));
    seconds += ends[kept.at(-1)!]!;
    for (const at of kept) for (const { turns } of prompts[at]!) for (const turn of turns) tokens += turn.tokens;
    if (fresh === undefined) return { name: `tail batching, degree ${degree}`, tokensPerSecond: tokens / seconds };
  }
}

const promptsOf = (episodes: readonly RecordedEpisode[], samples: number): (readonly RecordedEpisode[])[] =>
  Array.from({ length: episodes.length / samples }, (_, at) => episodes.slice(at * samples, (at + 1) * samples));
