/** What a worker process writes for its agent, a line each; a user's code may write the like by chance. */
import { type ErrorRecord, ErrorRecordShape, maxStackLength, toErrorRecord } from "@treadle/contracts";
import { z } from "zod";

const Heartbeat = z.object({
  busyMs: z.number(),
  rssBytes: z.number(),
  stack: z.string().max(maxStackLength).optional(),
});
export type Heartbeat = z.infer<typeof Heartbeat>;

export const failureMark = "#treadle-failure ";

/** Longer or deeper failures would not fit into a message of the control plane, and the runner would never hear of the end. */
const maxFailureLength = 128 * 1024;
const maxFailureDepth = 100;
const maxMessageLength = 10_000;
export const maxFailureLineLength = failureMark.length + maxFailureLength;

/** The line by which a process says why it ends. */
export function failureLine(error: unknown): string {
  const record = toErrorRecord(error);
  const whole = isDeeper(record, maxFailureDepth) ? undefined : JSON.stringify(record);
  const text = whole !== undefined && whole.length <= maxFailureLength ? whole : JSON.stringify(withoutDetails(record));
  return `${failureMark}${text}`;
}

/** What the process says of its own end; a line that only looks like it is an ordinary one. */
export function parseFailure(line: string): ErrorRecord | undefined {
  if (!line.startsWith(failureMark) || line.length > maxFailureLineLength) return undefined;
  const record = parseLine(ErrorRecordShape, line.slice(failureMark.length));
  return record !== undefined && isDeeper(record, maxFailureDepth) ? withoutDetails(record) : record;
}

export const parseHeartbeat = (line: string): Heartbeat | undefined => parseLine(Heartbeat, line);

const withoutDetails = ({ code, message }: ErrorRecord): ErrorRecord => ({
  code: code.slice(0, 100),
  message: message.slice(0, maxMessageLength),
});

/** Also of what names itself. */
function isDeeper(value: unknown, levels: number): boolean {
  if (value === null || typeof value !== "object") return false;
  return levels === 0 || Object.values(value).some((each) => isDeeper(each, levels - 1));
}

function parseLine<T>(schema: z.ZodType<T>, text: string): T | undefined {
  try {
    return schema.safeParse(JSON.parse(text)).data;
  } catch {
    return undefined;
  }
}
