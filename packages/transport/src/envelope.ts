/** What two peers say to each other, as arrays: the first element is the kind. */

import type { ErrorRecord } from "@treadle/contracts";

export const envelopeKind = {
  /** [request, id, method, body]; ids of one side count up from 1 */
  request: 0,
  /** [reply, id, result] */
  reply: 1,
  /** [failure, id, ErrorRecord] */
  failure: 2,
  /** [cancel, id]: the caller no longer waits */
  cancel: 3,
  /** [notify, method, body] */
  notify: 4,
} as const;

const maxCauses = 16;

function isOptional(value: unknown, type: "string" | "object"): boolean {
  return value === undefined || (typeof value === type && value !== null);
}

/** Whether `fromErrorRecord` may be given this value from the wire. */
export function isErrorRecord(value: unknown): value is ErrorRecord {
  let current = value;
  for (let depth = 0; depth < maxCauses; depth++) {
    if (current === null || typeof current !== "object") return false;
    const record = current as Record<string, unknown>;
    if (typeof record.code !== "string" || typeof record.message !== "string") return false;
    if (!isOptional(record.stack, "string") || !isOptional(record.details, "object")) return false;
    if (!isOptional(record.origin, "object")) return false;
    if (record.cause === undefined) return true;
    current = record.cause;
  }
  return false;
}
