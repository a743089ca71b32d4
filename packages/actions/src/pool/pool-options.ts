/** What a pool is made with, and what is said of a trajectory that it opens. */
import type { Clock } from "@treadle/contracts";
import type { DecideOptions } from "../decide/decide.ts";
import type { ActionHistory } from "../formulation/action-history.ts";
import type { Grant, ResourceManager } from "../managers/manager.ts";
import type { ActionContext } from "./action-record.ts";

export type ActionPoolOptions = {
  readonly managers: readonly ResourceManager[];
  /** default: real time */
  readonly clock?: Clock | undefined;
  readonly decide?: Partial<DecideOptions> | undefined;
  /** what is known of actions already; it learns from all that run */
  readonly history?: ActionHistory | undefined;
  /** shares of tenants; 1 where nothing is said */
  readonly tenantWeights?: ReadonlyMap<string, number> | undefined;
  /** how much earlier one level of priority counts as submitted: priority orders, and nobody starves */
  readonly priorityLevelMs?: number | undefined;
  /** Makes a grant usable, such as restoring a service. Its time is overhead. */
  readonly prepare?: ((grant: Grant, context: ActionContext) => Promise<void>) | undefined;
};

export type TrajectoryOptions = {
  /** whose share what it reserves counts against */
  readonly tenant?: string | undefined;
  /** to reserve on the node it goes to */
  readonly memoryBytes?: number | undefined;
  /** the one that it has to go to, while that is there */
  readonly node?: string | undefined;
  /** runs after its last action has ended */
  readonly onClose?: (() => Promise<void> | void) | undefined;
};
