import { TreadleError } from "@treadle/contracts";
import type { ActionRecord } from "./action-record.ts";

export function cancelled(id: string, why: string): TreadleError {
  return new TreadleError("action.cancelled", `action '${id}' was cancelled: ${why}`, { details: { id } });
}

export function lateMessage(record: ActionRecord, deadlineMs: number): string {
  return `action '${record.id}' did not end within ${deadlineMs} ms: it was ${record.state} at attempt ${record.attempt + 1}; raise deadlineMs or add capacity`;
}

/** Services ask for minutes; one wrong header would keep an action for good. */
const longestRetryAfterMs = 600_000;

/** Ms that must go by before the next attempt, as `retryAfterMs` in the details of a retryable error; 0 where it says nothing. */
export function retryAfterIn({ details }: TreadleError): number {
  const { retryAfterMs } = details;
  return typeof retryAfterMs === "number" ? Math.min(retryAfterMs, longestRetryAfterMs) : 0;
}
