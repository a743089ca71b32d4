/** Whether a run goes on, and how it ended, by what its folder says. Pure. */

export type RunPhase = "running" | "finished" | "failed" | "stopped" | "interrupted";

export type RunTraces = {
  /** milliseconds since the runner last beat; undefined when nobody holds the folder */
  readonly beatAgeMs: number | undefined;
  readonly hasSummary: boolean;
  readonly hasFailed: boolean;
  /** the journal says that all steps are done */
  readonly isJournalFinished: boolean;
  /** since anything in the folder changed */
  readonly silentMs: number;
};

/** A runner beats once a second; one that is silent for so long is gone. */
const goneMs = 15_000;

/** A runner that lives is believed before what an earlier one of the same run left. */
export function runPhase(traces: RunTraces): RunPhase {
  const { beatAgeMs, hasSummary, hasFailed, isJournalFinished } = traces;
  if (beatAgeMs !== undefined && beatAgeMs < goneMs) return hasSummary && isJournalFinished ? "finished" : "running";
  if (hasFailed) return "failed";
  if (isJournalFinished) return "finished";
  return hasSummary ? "stopped" : "interrupted";
}

/** What a person does about it. A run of which nothing says what it is of cannot go on. */
export function remedyOf(phase: RunPhase, runId: string, hasConfig: boolean): string | undefined {
  if (!hasConfig && phase !== "running" && phase !== "finished")
    return "its config.json is missing or not whole, so it cannot go on; start it again with: treadle run";
  switch (phase) {
    case "interrupted":
      return `its runner is gone; go on with: treadle resume ${runId}`;
    case "stopped":
      return `stopped before its last step; go on with: treadle resume ${runId}`;
    case "failed":
      return `go on after the last finished step with: treadle resume ${runId}`;
    default:
      return undefined;
  }
}
