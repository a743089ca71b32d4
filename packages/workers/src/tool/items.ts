import { z } from "zod";

/** What a policy asks of its tool within one trajectory. */
export const ToolCall = z.object({
  trajectory: z.string(),
  text: z.string(),
  /** calls that were answered before: where sandboxes belong to trajectories, it goes on in one that has answered so many */
  numAnswered: z.int().nonnegative().default(0),
});
export type ToolCall = z.input<typeof ToolCall>;

/** Status of a call that goes on in a sandbox which is here no more, or has run other calls since, so that nothing was run. */
export const sandboxGone = "sandbox-gone";

/** What the tool answered; a call that outlived its limits or failed has no exit code of 0. */
export type ToolResult = {
  readonly trajectory: string;
  readonly status: string;
  /** null unless it ended by itself */
  readonly exitCode: number | null;
  readonly output: string;
};

/** Over the calls since the last report; times are means in seconds. */
export type ToolReport = {
  readonly toolCalls: number;
  /** calls that did not end by themselves with exit code 0 */
  readonly toolFailures: number;
  /** action completion time: queueing, execution and overhead together */
  readonly actSeconds: number;
  readonly actP95Seconds: number;
  readonly queueingSeconds: number;
  readonly executionSeconds: number;
  readonly overheadSeconds: number;
  /** share of the pool's core time that was granted to somebody, and that was spent in calls */
  readonly coresHeld: number;
  readonly coresBusy: number;
  /** that a call was granted, mean */
  readonly coresGranted: number;
};
