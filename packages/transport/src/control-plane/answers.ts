/** How the answer to a command travels: what its handler returned, or the error that it threw. */
import { ErrorRecordShape, fromErrorRecord, readMessage, toErrorRecord } from "@treadle/contracts";
import { z } from "zod";
import { parseBounded } from "./bounded-json.ts";

const Answer = z.union([z.object({ error: ErrorRecordShape }), z.object({ value: z.unknown() })]);

export async function answerTo(handle: () => unknown): Promise<string> {
  try {
    return JSON.stringify({ value: (await handle()) ?? null });
  } catch (error) {
    const { stack: _, ...record } = toErrorRecord(error);
    return JSON.stringify({ error: record });
  }
}

/** Throws the handler's error, and `link.protocol` on what is no answer. */
export function readAnswer(text: string): unknown {
  const answer = readMessage(Answer, parseBounded(text));
  if ("error" in answer) throw fromErrorRecord(answer.error);
  return answer.value;
}
