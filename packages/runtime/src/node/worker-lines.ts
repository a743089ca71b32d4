/** What a worker process writes for its agent, a line each; a user's code may write the like by chance. */
import { type ErrorRecord, ErrorRecordShape, maxStackLength } from "@treadle/contracts";
import { z } from "zod";

const Heartbeat = z.object({
  busyMs: z.number(),
  rssBytes: z.number(),
  stack: z.string().max(maxStackLength).optional(),
});
export type Heartbeat = z.infer<typeof Heartbeat>;

export const failureMark = "#treadle-failure ";

/** Longer failures would not fit into a message of the control plane, and the runner would never hear of the end. */
const maxFailureLength = 128 * 1024;
const maxMessageLength = 10_000;

/** What the process says of its own end; a line that only looks like it is an ordinary one. */
export function parseFailure(line: string): ErrorRecord | undefined {
  if (!line.startsWith(failureMark)) return undefined;
  const record = parseLine(ErrorRecordShape, line.slice(failureMark.length));
  if (record === undefined || line.length <= maxFailureLength) return record;
  return { code: record.code.slice(0, 100), message: record.message.slice(0, maxMessageLength) };
}

export const parseHeartbeat = (line: string): Heartbeat | undefined => parseLine(Heartbeat, line);

function parseLine<T>(schema: z.ZodType<T>, text: string): T | undefined {
  try {
    return schema.safeParse(JSON.parse(text)).data;
  } catch {
    return undefined;
  }
}
