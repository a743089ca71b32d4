import { interferenceFactor, neverDecreases } from "../interference.ts";
import { formGroups, queueAwareFactor } from "./groups.ts";
import { type Migration, ReplacedGroups, ScaledGroups } from "./migration.ts";
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

/**
 * What `migrate` means: `scaled`, the paper's; `anew`, the unfinished are placed anew; `pays`, anew, and only where what is
 * left is over sooner by a tenth, the transfer included.
 */
export const migrationRules = ["scaled", "anew", "pays"] as const;
export type MigrationRule = (typeof migrationRules)[number];

export const worthwhileShare = 0.1;

export type Stated = Pick<RolloutProblem, "trajectories" | "workers" | "F" | "maxBatch" | "placement">;

export type PlacementOptions = {
  /** default: the paper's */
  readonly rule?: MigrationRule | undefined;
  /** as many owners place as many trajectories alike, so a group of k runs beside k of each other; default: one */
  readonly owners?: number | undefined;
  /** trajectories of other owners that a worker has */
  readonly beside?: ((worker: number) => number) | undefined;
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
  { rule = "scaled", owners = 1, beside }: PlacementOptions,
): PlacementPolicy {
  const predictions = trajectories.map(({ steps }) => steps[0]!.pred);
  const tokenTimes = workers.map(({ tokenTime }) => tokenTime);
  const factor = interferenceFactor(F);
  const aware = queueAwareFactor(factor, maxBatch, placement.robust ?? 0);
  const placingFactor = owners === 1 ? aware : (k: number) => aware(k * owners);
  const isMonotone = neverDecreases(F);
  const groups = formGroups({ predictions, tokenTimes, factor: placingFactor, isMonotone });
  const placed = {
    workerFor: (trajectory: number, home: number) => (home === nowhere ? groups.workerOf[trajectory]! : home),
    groupSizes: groups.sizes,
  };
  if (placement.migrate !== true) return { ...placed, ...unmoved };
  // Placing anew needs a factor that never falls; where one does, groups shrink as they are.
  const migration: Migration =
    rule === "scaled" || !isMonotone
      ? new ScaledGroups(groups, predictions)
      : new ReplacedGroups({
          groups,
          predictions,
          tokenTimes,
          factor: queueAwareFactor(factor, maxBatch, 0),
          placingFactor,
          worthwhile: rule === "pays" ? worthwhileShare : 0,
          beside,
        });
  const isByTotal = placement.rankBy === "total";
  return {
    ...placed,
    worksOnAt: (trajectory, home, { remainingTokens, generatedTokens, transferSeconds }) => {
      const rankedTokens = isByTotal ? remainingTokens + generatedTokens : remainingTokens;
      return migration.target(trajectory, { home, rankedTokens, remainingTokens, transferSeconds });
    },
    moved: (trajectory, home) => migration.moved(trajectory, home),
    finished: (trajectory) => migration.finished(trajectory),
  };
}
