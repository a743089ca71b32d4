import { interferenceFactor, neverDecreases } from "../interference.ts";
import { formGroups, paperEstimate, scheduledEstimate } from "./groups.ts";
import { type MigrationRule, nowhere, UnfinishedGroups } from "./migration.ts";
import type { RolloutProblem } from "./problem.ts";
import type { WorkerLoads } from "./worker-loads.ts";

/** Where steps go: inputs in, a worker out. */
export type PlacementPolicy = {
  /** The worker that takes a trajectory's next step. Its home is the worker that has its keys and values, if any. */
  readonly workerFor: (trajectory: number, home: number) => number;
  /** The worker that a trajectory shall go on at, as predicted after a step which is not its last. */
  readonly worksOnAt: (trajectory: number, home: number, predicted: Prediction) => number;
  /** Its home is another one now. */
  readonly moved: (trajectory: number, home: number) => void;
  readonly finished: (trajectory: number) => void;
  /** sizes of the groups of `dp`, fastest worker first */
  readonly groupSizes: readonly number[] | null;
};

export type Prediction = {
  readonly remainingTokens: number;
  readonly generatedTokens: number;
  /** that moving it now takes */
  readonly transferSeconds: number;
};

export type Stated = Pick<RolloutProblem, "trajectories" | "workers" | "F" | "maxBatch" | "placement">;

/** What a problem does not say. */
export type PlacementOptions = {
  readonly migrationRule?: MigrationRule | undefined;
  /** where steps begin under `dp`: in its groups, the default, or in turn at each worker, whatever is predicted */
  readonly start?: "groups" | "even" | undefined;
  /** how long a group takes: `paper`, the default, as `solve rollout` is defined, or as ranks of a run estimate it */
  readonly estimate?: "paper" | "scheduled" | undefined;
};

export function placementPolicy(problem: Stated, loads: WorkerLoads, options: PlacementOptions = {}): PlacementPolicy {
  const { trajectories, placement } = problem;
  const numWorkers = loads.numWorkers;
  const byCache = (trajectory: number): number =>
    (placement.by === "prompt" ? trajectories[trajectory]!.prompt! : trajectory) % numWorkers;
  const still = { ...unmoved, groupSizes: null };
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
      return grouped(problem, options);
  }
}

const unmoved = { worksOnAt: (_: number, home: number) => home, moved: () => {}, finished: () => {} };

function grouped(
  { trajectories, workers, F, maxBatch, placement }: Stated,
  { migrationRule = "scaled", start = "groups", estimate: chosen = "paper" }: PlacementOptions,
): PlacementPolicy {
  const predictions = trajectories.map(({ steps }) => steps[0]!.pred);
  const tokenTimes = workers.map(({ tokenTime }) => tokenTime);
  const factor = interferenceFactor(F);
  const { robust = 0 } = placement;
  const estimate =
    chosen === "paper" ? paperEstimate(factor, maxBatch, robust) : scheduledEstimate(factor, maxBatch, robust);
  const isMonotone = neverDecreases(F);
  const formed = formGroups({ predictions, tokenTimes, estimate, isMonotone });
  const groups = start === "even" ? { ...formed, workerOf: formed.workerOf.map((_, i) => i % workers.length) } : formed;
  const placed = {
    workerFor: (trajectory: number, home: number) => (home === nowhere ? groups.workerOf[trajectory]! : home),
    groupSizes: groups.sizes,
  };
  if (placement.migrate !== true) return { ...placed, ...unmoved };
  // Placing anew needs a factor that never falls; where one does, groups shrink as they are.
  const unfinished = UnfinishedGroups.of(isMonotone ? migrationRule : "scaled", groups, predictions, {
    tokenTimes,
    factor,
    places: maxBatch,
    estimate,
  });
  const isByTotal = placement.rankBy === "total";
  return {
    ...placed,
    worksOnAt: (trajectory, home, { remainingTokens, generatedTokens, transferSeconds }) => {
      const rankedTokens = isByTotal ? remainingTokens + generatedTokens : remainingTokens;
      unfinished.predicted(trajectory, { rankedTokens, remainingTokens });
      return unfinished.target(trajectory, { home, remainingTokens, transferSeconds });
    },
    moved: (trajectory, home) => unfinished.moved(trajectory, home),
    finished: (trajectory) => unfinished.finished(trajectory),
  };
}
