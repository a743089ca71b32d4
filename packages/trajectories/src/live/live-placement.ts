import { TreadleError } from "@treadle/contracts";
import { type Interference, interferenceFactor, neverDecreases } from "../interference.ts";
import { fastestFirst, queueAwareFactor } from "../rollout/groups.ts";
import { ReplacedGroups } from "../rollout/migration.ts";
import {
  type MigrationRule,
  nowhere,
  type PlacementPolicy,
  placementPolicy,
  worthwhileShare,
} from "../rollout/placement.ts";
import type { WorkerLoads } from "../rollout/worker-loads.ts";

/** Where episodes begin: at the rank that took their prompt, wherever least is queued, or in groups by predicted length. */
export const livePlacements = ["own", "least-load", "predicted"] as const;
export type LivePlacement = (typeof livePlacements)[number];

/** When an episode goes on at another rank after a turn: never, or by a rule. */
export const liveMigrations = ["never", "scaled", "anew", "pays"] as const satisfies readonly (
  | "never"
  | MigrationRule
)[];
export type LiveMigration = (typeof liveMigrations)[number];

export type LivePlacementOptions = {
  readonly placement: LivePlacement;
  readonly migrate: LiveMigration;
  /** tokens of each episode, as predicted at the start */
  readonly predictions: readonly number[];
  /** of each rank: seconds that a token takes alone; ranks count as equal unless that is known of all of them */
  readonly tokenTimes?: readonly (number | undefined)[] | undefined;
  /** of these predictions: the noise-aware factor takes half of it */
  readonly logSd: number;
  /** the rank that took the prompts */
  readonly own: number;
  readonly loads: WorkerLoads;
  readonly F: Interference;
  /** episodes that a rank computes at once */
  readonly places: number;
  /** episodes that a rank has of other batches */
  readonly beside: (rank: number) => number;
};

/**
 * The policy of a live batch. Each rank of the group places what it took as all others place theirs, the longest at the fastest
 * ranks. Time is counted in tokens alone at the slowest rank, what a move has to read again included. Throws `problem.invalid` for rules that do not go together.
 */
export function livePlacement(options: LivePlacementOptions): PlacementPolicy {
  const { placement, migrate, predictions, logSd, own, loads, F, places, beside } = options;
  const owners = loads.numWorkers;
  const tokenTimes = relativeTimes(options.tokenTimes ?? [], owners);
  const workers = tokenTimes.map((tokenTime) => ({ tokenTime }));
  if (migrate === "scaled" && placement !== "predicted") {
    throw new TreadleError(
      "problem.invalid",
      `migration is 'scaled' where placement is '${placement}': it scales groups, which 'predicted' alone makes; choose that, or migrate 'pays'`,
    );
  }
  if (placement === "predicted" && predictions.length > 0) {
    const problem = {
      trajectories: predictions.map((pred) => ({
        context: 0,
        steps: [{ tokens: 1, tool: 0, observe: 0, pred, predTool: 0 }],
      })),
      workers,
      F,
      maxBatch: places,
      placement: {
        type: "dp" as const,
        robust: logSd / 2,
        ...(migrate === "never" ? {} : { migrate: true, rankBy: "total" as const }),
      },
    };
    return placementPolicy(problem, loads, { rule: migrate === "never" ? undefined : migrate, owners, beside });
  }
  const workerFor = (_: number, home: number): number => {
    if (home !== nowhere) return home;
    return placement === "least-load" ? loads.leastLoaded : own;
  };
  const still = {
    workerFor,
    worksOnAt: (_: number, home: number) => home,
    moved: () => {},
    finished: () => {},
    groupSizes: null,
  };
  if (migrate === "never" || predictions.length === 0) return still;
  if (!neverDecreases(F)) {
    throw new TreadleError(
      "problem.invalid",
      "migration needs an interference factor that never falls; raise later values of its table",
    );
  }
  const factor = interferenceFactor(F);
  const aware = queueAwareFactor(factor, places, logSd / 2);
  const inOrder = fastestFirst(tokenTimes);
  const groups = new ReplacedGroups({
    groups: {
      workers: inOrder,
      sizes: inOrder.map((rank) => (rank === own ? predictions.length : 0)),
      workerOf: new Int32Array(predictions.length).fill(own),
    },
    predictions,
    tokenTimes,
    factor: queueAwareFactor(factor, places, 0),
    placingFactor: (k) => aware(k * owners),
    worthwhile: migrate === "pays" ? worthwhileShare : 0,
    beside,
  });
  return {
    workerFor,
    groupSizes: null,
    worksOnAt: (episode, home, { remainingTokens, generatedTokens, transferSeconds }) => {
      const rankedTokens = remainingTokens + generatedTokens;
      return groups.target(episode, { home, rankedTokens, remainingTokens, transferSeconds });
    },
    moved: (episode, home) => groups.moved(episode, home),
    finished: (episode) => groups.finished(episode),
  };
}

/** Of each rank, what a token takes beside the slowest of them. */
function relativeTimes(seconds: readonly (number | undefined)[], numRanks: number): number[] {
  const known = seconds.filter((each) => each !== undefined);
  if (known.length < numRanks) return new Array<number>(numRanks).fill(1);
  const slowest = Math.max(...known);
  return known.map((each) => each / slowest);
}
