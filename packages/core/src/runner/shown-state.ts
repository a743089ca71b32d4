/** What is under way in a run, as a person who looks at a hang wants to see it. Pure. */
import type { PendingCall, RankPhase } from "../ranks/rank-state.ts";
import type { RankTable } from "../ranks/rank-table.ts";
import type { StepCommits } from "../steps/step-commits.ts";
import type { CallBook } from "./call-book.ts";

/** A call on one rank that has not ended. */
export type ShownCall = {
  readonly call: string;
  readonly worker: string;
  readonly method: string;
  readonly step: number | undefined;
  /** it has returned, and ranks that hold one state with it have not */
  readonly replied: boolean;
  /** undefined while no process has it: then its rank's phase says why */
  readonly sentMs: number | undefined;
  readonly attempts: number;
  readonly retry: PendingCall["retry"];
};

export type ShownState = {
  /** those that the run uses */
  readonly nodes: readonly string[];
  readonly calls: readonly ShownCall[];
  /** not committed: what they wait for, and which step begins once they are */
  readonly steps: ReturnType<StepCommits["shown"]>;
};

export function shownState(calls: CallBook, ranks: RankTable, commits: StepCommits): ShownState {
  return {
    nodes: ranks.nodes,
    calls: calls.open.map(({ call, worker, method, step, replied }) => {
      const { sentMs, attempts = 0, retry } = ranks.get(worker)?.pending.get(call) ?? {};
      return { call, worker, method, step, replied, sentMs, attempts, retry };
    }),
    steps: commits.shown(),
  };
}

/** Why a call is with no process now; undefined where one has it. */
export function whyUnsent(ranks: RankTable, worker: string, call: string): string | undefined {
  const rank = ranks.get(worker);
  const pending = rank?.pending.get(call);
  if (rank === undefined || pending === undefined) return undefined;
  const { retry, sentMs } = pending;
  if (retry !== undefined) return retry.culprit === undefined ? "its next attempt" : `'${retry.culprit}' to be back`;
  return sentMs === undefined ? `its process to be ready (${inWords[rank.phase]})` : undefined;
}

const inWords: Readonly<Record<RankPhase, string>> = {
  down: "it starts after others",
  placing: "its node is gone",
  starting: "it starts",
  "setting-up": "it is set up",
  loading: "it loads",
  replaying: "it repeats earlier calls",
  ready: "it is ready",
  draining: "it ends",
};
