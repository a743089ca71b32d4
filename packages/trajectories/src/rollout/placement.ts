import { interferenceFactor, neverDecreases } from "../interference.ts";
import { formGroups, queueAwareFactor } from "./groups.ts";
import { ScaledGroups } from "./migration.ts";
import type { RolloutProblem } from "./problem.ts";
import type { WorkerLoads } from "./worker-loads.ts";

/** A trajectory without a home. */
export const nowhere = -1;

/** Where steps go: inputs in, a worker out. */
export type PlacementPolicy = {
  /** The worker that takes a trajectory's next step. Its home is the worker that has its keys and values, if any. */
  readonly workerFor: (trajectory: number, home: number) => number;
  /** The worker that a trajectory shall go on at, as predicted after a step which is not its last. */
  readonly worksOnAt: (trajectory: number, home: number, predicted: Prediction) => number;
  readonly finished: (trajectory: number) => void;
  /** sizes of the groups of `dp`, fastest worker first */
  readonly groupSizes: readonly number[] | null;
};

export type Prediction = { readonly remainingTokens: number; readonly generatedTokens: number };

type Stated = Pick<RolloutProblem, "trajectories" | "workers" | "F" | "maxBatch" | "placement">;

export function placementPolicy(problem: Stated, loads: WorkerLoads): PlacementPolicy {
  const { trajectories, placement } = problem;
  const numWorkers = loads.numWorkers;
  const byCache = (trajectory: number): number =>
    (placement.by === "prompt" ? trajectories[trajectory]!.prompt! : trajectory) % numWorkers;
  const still = { worksOnAt: (_: number, home: number) => home, finished: () => {}, groupSizes: null };
  switch (placement.type) {
    case "cache":
      return { ...still, workerFor: byCache };
    case "least-load":
      return { ...still, workerFor: () => loads.leastLoaded };
    case "hybrid": {
      const threshold = placement.threshold!;
      const isSkewed = (): boolean => loads.most / Math.max(1, loads.least) > threshold;
      const stay = (trajectory: number, home: number): number => (home === nowhere ? byCache(trajectory) : home);
      return { ...still, workerFor: (t, home) => (isSkewed() ? loads.leastLoaded : stay(t, home)) };
    }
    case "dp":
      return grouped(problem);
  }
}

function grouped({ trajectories, workers, F, maxBatch, placement }: Stated): PlacementPolicy {
  const predictions = trajectories.map(({ steps }) => steps[0]!.pred);
  const groups = formGroups({
    predictions,
    tokenTimes: workers.map(({ tokenTime }) => tokenTime),
    factor: queueAwareFactor(interferenceFactor(F), maxBatch, placement.robust ?? 0),
    isMonotone: neverDecreases(F),
  });
  const placed = {
    workerFor: (trajectory: number, home: number) => (home === nowhere ? groups.workerOf[trajectory]! : home),
    groupSizes: groups.sizes,
  };
  if (placement.migrate !== true) return { ...placed, worksOnAt: (_, home) => home, finished: () => {} };
  const scaled = new ScaledGroups(groups, predictions);
  const isByTotal = placement.rankBy === "total";
  return {
    ...placed,
    worksOnAt: (trajectory, _, { remainingTokens, generatedTokens }) =>
      scaled.target(trajectory, isByTotal ? remainingTokens + generatedTokens : remainingTokens),
    finished: (trajectory) => scaled.finished(trajectory),
  };
}
