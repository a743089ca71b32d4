/**
 * The one error class and the one catalogue of Treadle.
 *
 * Supervisors branch on `disposition`, never on text. Messages are lower case without a full stop and say what
 * happened, the value in quotes, what was allowed, and the remedy.
 */

/**
 * What whoever catches an error may do about it:
 * `misuse` the user must change something; `retryable` the same work may succeed if tried again (a peer died);
 * `fatal` it will not; `cancelled` somebody asked for it to stop.
 */
export type Disposition = "misuse" | "retryable" | "fatal" | "cancelled";

/** Every code that Treadle can raise, with its disposition and what it means. `docs/reference/errors.md` is made of it. */
export const errorCatalogue = {
  "action.cancelled": {
    disposition: "cancelled",
    meaning: "an action was cancelled by its caller, the end of its trajectory, or a shutdown",
  },
  "action.deadline": { disposition: "fatal", meaning: "an action outlived its deadline" },
  "action.failed": { disposition: "fatal", meaning: "what an action executes threw; the cause is its error" },
  "action.impossible": { disposition: "misuse", meaning: "an action asks for more than its resources can ever give" },
  "action.invalid": { disposition: "misuse", meaning: "an action's specification has wrong fields or values" },
  "artifact.refused": {
    disposition: "misuse",
    meaning: "an artefact's name or size is not one that a run's folder takes",
  },
  "call.cancelled": { disposition: "cancelled", meaning: "a call was cancelled by its caller or by a shutdown" },
  "call.failed": { disposition: "fatal", meaning: "a worker method threw; the cause carries its message and stack" },
  "call.timeout": { disposition: "fatal", meaning: "a call outlived its deadline" },
  "call.unknown-method": { disposition: "misuse", meaning: "a method was called that the worker class does not have" },
  "channel.closed": { disposition: "misuse", meaning: "an item was put into a stream whose producers have all ended" },
  "channel.invalid-item": { disposition: "misuse", meaning: "an item does not fit the channel's schema" },
  "channel.pick-failed": {
    disposition: "misuse",
    meaning: "a workflow's own pick policy threw, took too long, or chose what it was not given",
  },
  "channel.producer-failed": {
    disposition: "fatal",
    meaning: "a producer of the stream failed; the cause is its error",
  },
  "checkpoint.corrupt": {
    disposition: "fatal",
    meaning: "a file of a state or checkpoint is missing, changed, or not one that its manifest names",
  },
  "checkpoint.missing": {
    disposition: "misuse",
    meaning: "no state or checkpoint of that name exists in the run folder",
  },
  "checkpoint.parts": {
    disposition: "misuse",
    meaning:
      "a state has the parts of another number of ranks than its group has, and the class cannot divide it differently",
  },
  "config.invalid": { disposition: "misuse", meaning: "the configuration has wrong or unknown keys or values" },
  "config.unreadable": { disposition: "misuse", meaning: "the configuration file is missing or is not valid YAML" },
  "control-plane.refused": {
    disposition: "misuse",
    meaning: "the NATS server refuses this process, or lacks what Treadle needs of it",
  },
  "control-plane.unreachable": { disposition: "retryable", meaning: "no NATS server answers" },
  "control-plane.untrusted": {
    disposition: "misuse",
    meaning:
      "a runner, a node agent or a kept run shows no key that the other was given, or none is given where strangers listen",
  },
  "data.invalid": {
    disposition: "misuse",
    meaning: "a file of prompts, or a row of it, is not what the configuration says",
  },
  "dashboard.unavailable": { disposition: "misuse", meaning: "the dashboard cannot be served where it is asked for" },
  "device.memory-not-freed": {
    disposition: "retryable",
    meaning: "an evicted service did not give its device memory back in time",
  },
  "device.out-of-memory": { disposition: "misuse", meaning: "a component needs more memory than its device has" },
  "disk.full": { disposition: "fatal", meaning: "a file system that the run writes to has no space left" },
  "engine.busy": { disposition: "misuse", meaning: "an engine was released while it computes" },
  "engine.collective-timeout": {
    disposition: "fatal",
    meaning: "ranks that compute together did not all come to a collective in time",
  },
  "engine.diverged": { disposition: "fatal", meaning: "a gradient became infinite or not a number" },
  "engine.invalid-request": { disposition: "misuse", meaning: "an engine was asked for something its model cannot do" },
  "engine.poisoned": {
    disposition: "retryable",
    meaning:
      "a load of weights into a server was incomplete, or another client changed them; it generates nothing before a complete load",
  },
  "engine.released": { disposition: "misuse", meaning: "an engine was used while its memory was released" },
  "engine.weights-mismatch": {
    disposition: "fatal",
    meaning: "the weights that arrived are not those that were announced",
  },
  "journal.corrupt": { disposition: "fatal", meaning: "a journal record before the last one cannot be read" },
  "learning.invalid-batch": {
    disposition: "misuse",
    meaning: "episodes, advantages or a batch do not fit together or the loss",
  },
  "learning.reward-failed": { disposition: "fatal", meaning: "a reward threw or did not return a finite number" },
  "link.closed": { disposition: "retryable", meaning: "the other process of a link went away" },
  "link.frame-too-large": { disposition: "misuse", meaning: "a frame exceeds the link's limit" },
  "link.protocol": { disposition: "fatal", meaning: "the other side of a link does not speak the protocol" },
  "link.refused": { disposition: "retryable", meaning: "no process listens at the address" },
  "link.unauthorized": {
    disposition: "misuse",
    meaning: "the other process has another token, run or protocol version",
  },
  "link.unsupported-value": { disposition: "misuse", meaning: "a message holds a value that cannot leave its process" },
  "lock.stale-token": {
    disposition: "fatal",
    meaning: "a device lock was used with a fencing token that has been revoked",
  },
  "lock.timeout": {
    disposition: "fatal",
    meaning: "a device lock was not granted in time; the message has the wait-for chain",
  },
  "metrics.unavailable": { disposition: "misuse", meaning: "metrics cannot be served where they are asked for" },
  "node.forbidden": {
    disposition: "misuse",
    meaning: "a node agent's own configuration does not allow what a runner asks of it",
  },
  "node.lost": {
    disposition: "retryable",
    meaning: "a node agent or a runner left the cluster, or went silent for longer than its lease",
  },
  "node.name-taken": { disposition: "misuse", meaning: "a node agent of the same name is in the cluster" },
  "node.unavailable": { disposition: "misuse", meaning: "no node agent can or will run the workers of this run" },
  "placement.impossible": { disposition: "misuse", meaning: "the placement cannot be realised on these devices" },
  "placement.invalid": {
    disposition: "misuse",
    meaning: "a placement expression or wish does not parse, names what is not there, or contradicts another",
  },
  "platform.unsupported": {
    disposition: "misuse",
    meaning: "the operating system, or the way in which packages are installed, lacks what Treadle is built on",
  },
  "pool.ended": {
    disposition: "fatal",
    meaning: "the pool has ended a run which did not yield its devices, or gave no sign of life",
  },
  "pool.lost": { disposition: "fatal", meaning: "the process that shares devices among several runs is gone" },
  "pool.refused": { disposition: "misuse", meaning: "a run cannot take part in a pool of devices" },
  "pool.taken": { disposition: "misuse", meaning: "another process has the pool, or a pool of the same devices" },
  "problem.invalid": {
    disposition: "misuse",
    meaning: "flags of a command, or a problem given to a planner, have wrong values or are not known",
  },
  "profile.invalid": { disposition: "misuse", meaning: "a profile file does not hold a profile" },
  "profile.missing": { disposition: "misuse", meaning: "a workflow has not been profiled" },
  "project.exists": { disposition: "misuse", meaning: "a new project would replace files that are there" },
  "project.not-installed": { disposition: "fatal", meaning: "the packages of a new project could not be installed" },
  "recording.invalid": {
    disposition: "misuse",
    meaning: "what a run recorded is of another version, cut short, altered, or decided differently now",
  },
  "rendezvous.incomplete": {
    disposition: "misuse",
    meaning: "ranks of a group did not come to its rendezvous in time; the message names them",
  },
  "run.incomplete": {
    disposition: "misuse",
    meaning: "a run's folder lacks a file that is asked for, or has only a part of it",
  },
  "run.locked": { disposition: "misuse", meaning: "another runner uses the same run folder" },
  "run.not-found": { disposition: "misuse", meaning: "no run of that id exists" },
  "run.rolled-back": {
    disposition: "retryable",
    meaning: "a rank died with changes that no saved state has; the run goes on after its last committed step",
  },
  "run.stopped": { disposition: "cancelled", meaning: "the run was stopped by the user" },
  "runner.unreachable": { disposition: "retryable", meaning: "a starting worker did not reach its runner in time" },
  "sandbox.failed": { disposition: "retryable", meaning: "a sandbox could not be created, or died" },
  "sandbox.lost": {
    disposition: "fatal",
    meaning: "a trajectory's sandbox died, and with it the files that its actions had left",
  },
  "sandbox.unavailable": { disposition: "misuse", meaning: "this machine lacks what a sandbox driver needs" },
  "service.failed": {
    disposition: "retryable",
    meaning: "a model service did not start, does not answer, or is not there",
  },
  "workflow.invalid": {
    disposition: "misuse",
    meaning: "a workflow module does not export a workflow, or misuses the API",
  },
  "worker.died": { disposition: "retryable", meaning: "a worker process ended without being asked to" },
  "worker.gave-up": { disposition: "fatal", meaning: "a worker died more often than its restart policy allows" },
  "worker.late": {
    disposition: "fatal",
    meaning:
      "a worker waited too long for another one; the message names the one that holds it up, and how it was waited for",
  },
  "worker.load-failed": {
    disposition: "misuse",
    meaning: "a worker module cannot be loaded or does not export the class",
  },
  "worker.setup-failed": { disposition: "fatal", meaning: "a worker's constructor or setup threw" },
  "worker.unresponsive": {
    disposition: "retryable",
    meaning: "a worker process stopped sending heartbeats and was ended",
  },
} as const satisfies Record<string, { disposition: Disposition; meaning: string }>;

export type ErrorCode = keyof typeof errorCatalogue;

/** Where an error arose. */
export type ErrorOrigin = {
  readonly worker?: string | undefined;
  readonly node?: string | undefined;
  readonly method?: string | undefined;
  readonly step?: number | undefined;
  readonly logTail?: readonly string[] | undefined;
};

/** An error as it crosses a process boundary. */
export type ErrorRecord = {
  readonly code: string;
  readonly message: string;
  readonly details?: Readonly<Record<string, unknown>> | undefined;
  readonly origin?: ErrorOrigin | undefined;
  readonly stack?: string | undefined;
  readonly cause?: ErrorRecord | undefined;
};

export class TreadleError extends Error {
  readonly code: ErrorCode;
  readonly disposition: Disposition;
  readonly details: Readonly<Record<string, unknown>>;
  readonly origin: ErrorOrigin;

  constructor(
    code: ErrorCode,
    message: string,
    options: { details?: Record<string, unknown> | undefined; cause?: unknown; origin?: ErrorOrigin | undefined } = {},
  ) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.name = "TreadleError";
    this.code = code;
    this.disposition = errorCatalogue[code].disposition;
    this.details = options.details ?? {};
    this.origin = options.origin ?? {};
  }
}

export const maxCauseDepth = 8;

/** What people read of anything thrown, also of what has no text. */
export function thrownText(thrown: unknown): string {
  if (thrown instanceof Error) return thrown.message;
  try {
    return String(thrown);
  } catch {
    return `an ${typeof thrown} without a text`;
  }
}

/** Turns anything thrown into what may cross a process boundary. Causes deeper than eight are cut. */
export function toErrorRecord(error: unknown, depth = 0): ErrorRecord {
  const cause = error instanceof Error && error.cause !== undefined && depth < maxCauseDepth;
  if (error instanceof TreadleError) {
    return {
      code: error.code,
      message: error.message,
      details: error.details,
      origin: error.origin,
      stack: error.stack,
      cause: cause ? toErrorRecord(error.cause, depth + 1) : undefined,
    };
  }
  if (error instanceof Error) {
    return {
      code: "call.failed",
      message: error.message,
      stack: error.stack,
      cause: cause ? toErrorRecord(error.cause, depth + 1) : undefined,
    };
  }
  return { code: "call.failed", message: thrownText(error) };
}

/** The inverse of `toErrorRecord`; an unknown code from a newer peer becomes `call.failed`. */
export function fromErrorRecord(record: ErrorRecord): TreadleError {
  const code = Object.hasOwn(errorCatalogue, record.code) ? (record.code as ErrorCode) : "call.failed";
  const error = new TreadleError(code, record.message, {
    details: { ...record.details },
    origin: record.origin,
    ...(record.cause ? { cause: fromErrorRecord(record.cause) } : {}),
  });
  if (record.stack) error.stack = record.stack;
  return error;
}

/** The first failure of a chain of causes: what a person wants to read. */
export function rootCause(error: unknown): unknown {
  let current = error;
  while (current instanceof Error && current.cause !== undefined) current = current.cause;
  return current;
}
