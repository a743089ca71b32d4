import * as grpc from "@grpc/grpc-js";
import { TreadleError } from "@treadle/contracts";
import type { z } from "zod";

/** What the door itself refuses. */
export class StatusError extends Error {
  readonly status: grpc.status;

  constructor(status: grpc.status, message: string) {
    super(message);
    this.status = status;
  }
}

/** Throws INVALID_ARGUMENT with every problem and its path. */
export function read<Schema extends z.ZodType>(schema: Schema, message: unknown): z.infer<Schema> {
  const parsed = schema.safeParse(message);
  if (parsed.success) return parsed.data;
  const problems = parsed.error.issues.map((i) => `${i.path.join(".") || "message"}: ${i.message}`);
  throw new StatusError(grpc.status.INVALID_ARGUMENT, problems.join("; "));
}

/** The error's code travels as `treadle-code`, so that a client branches on it and not on text. */
export function toStatus(error: unknown): Partial<grpc.ServiceError> & { code: grpc.status; details: string } {
  const metadata = new grpc.Metadata();
  if (error instanceof StatusError) return { code: error.status, details: error.message, metadata };
  if (!(error instanceof TreadleError))
    return { code: grpc.status.INTERNAL, details: error instanceof Error ? error.message : String(error), metadata };
  metadata.set("treadle-code", error.code);
  const byDisposition = {
    misuse: grpc.status.INVALID_ARGUMENT,
    retryable: grpc.status.UNAVAILABLE,
    fatal: grpc.status.INTERNAL,
    cancelled: grpc.status.CANCELLED,
  } as const;
  const byCode: Partial<Record<typeof error.code, grpc.status>> = {
    "action.deadline": grpc.status.DEADLINE_EXCEEDED,
    "sandbox.lost": grpc.status.DATA_LOSS,
  };
  const code = byCode[error.code] ?? byDisposition[error.disposition];
  return { code, details: error.message, metadata };
}

/** What the other side said: the library's error says no more than this, at greater length. */
export const detailsOf = ({ details, message }: grpc.ServiceError): string =>
  (details || message).replace(/\s*Resolution note:\s*$/, "").replace(/\.$/, "");

/** Any call, as far as its end goes. */
export type EndingCall = { readonly cancelled: boolean; once(event: "cancelled", listener: () => void): unknown };

/** Aborts when the client ends the call, it is late, or its connection is lost. */
export function goneOf(call: EndingCall): AbortSignal {
  const gone = new AbortController();
  const abort = (): void => gone.abort(new TreadleError("action.cancelled", "its caller went away"));
  if (call.cancelled) abort();
  else call.once("cancelled", abort);
  return gone.signal;
}
