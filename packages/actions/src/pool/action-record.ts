import type { ActionSpec } from "../formulation/action-spec.ts";
import type { Grant } from "../managers/manager.ts";
import type { Alike, Formulated } from "./alike.ts";
import type { QueueEntry } from "./fair-queue.ts";
import type { Bound } from "./pool-binding.ts";

/** What an action's execution is given. */
export type ActionContext = {
  readonly id: string;
  /** by resource, as in the cost vector */
  readonly allocation: Readonly<Record<string, Grant>>;
  /** why it was granted that, in words */
  readonly why: string;
  /** aborts when the action is cancelled, outlives its deadline, or the pool closes */
  readonly signal: AbortSignal;
  /** 0 at the first attempt */
  readonly attempt: number;
  /** What was before was overhead, such as starting a sandbox: the execution begins now. */
  begin(): void;
  /** It was ended before it was done, as by a time limit: its duration says nothing of its kind. */
  wasCut(): void;
  /** The service refused: its duration says nothing, and its quotas learn nothing good of it. */
  wasRefused(): void;
  /** Tells a quota that its service refused the call; then throw a retryable error. Returns for how many ms it grants nothing; undefined where it is no quota. */
  throttled(resource: string, retryAfterMs?: number): number | undefined;
};

export type ActionHandle<Result> = {
  readonly id: string;
  /** Rejects with `action.cancelled`, `action.deadline`, or `action.failed` with the cause (or a TreadleError as it is). */
  readonly result: Promise<Result>;
  /** from submission to the last start, backoff between attempts included; undefined before the start */
  readonly queueingSeconds: number | undefined;
  /** of the last attempt; undefined before its end */
  readonly executionSeconds: number | undefined;
  readonly overheadSeconds: number | undefined;
  /** what the current or last attempt holds or held */
  readonly allocation: Readonly<Record<string, Grant>> | undefined;
  cancel(reason?: string): void;
};

export type ActionState = "waiting" | "backoff" | "running" | "settled";

/** One action from submission to settlement; owned by the pool. */
export type ActionRecord = Omit<QueueEntry, "demand"> & {
  /** dominant share of its least units, or of what its trajectory will reserve with it */
  share: number;
  /** share-seconds that are expected of it */
  demand: number;
  readonly id: string;
  readonly spec: ActionSpec;
  readonly execute: (context: ActionContext) => Promise<unknown>;
  readonly submittedMs: number;
  readonly abort: AbortController;
  readonly settle: { resolve(value: unknown): void; reject(error: unknown): void };
  state: ActionState;
  attempt: number;
  /** to see whether its curve still holds, it runs on so many units where they are free */
  readonly probeUnits: number | undefined;
  /** those of which the same is expected */
  readonly alike: Alike;
  /** as it was when it was bound last */
  formulated: Formulated | undefined;
  /** the same with pools for resources; undefined while some resource has no pool for it */
  bound: Bound | undefined;
  grantedMs: number | undefined;
  startedMs: number | undefined;
  endedMs: number | undefined;
  expectedSeconds: number | undefined;
  allocation: Record<string, Grant> | undefined;
  /** the same as a decision sees it */
  holds: readonly { readonly pool: string; readonly units: number; readonly fixed: boolean }[];
  disarm: (() => void)[];
  /** resolves when nothing of it runs any more */
  running: Promise<void> | undefined;
};
