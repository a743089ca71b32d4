/**
 * What a run looks like now, folded from its events alone.
 *
 * DV1 `fold` is pure: the same events give the same state, live or from a recording, and no state is ever changed in place.
 * DV2 the state is bounded: curves are thinned, notices and step times are the last ones.
 */
import type { ErrorRecord, PlacementRow, RunEvent, RunSummary, UtilisationShares } from "@treadle/contracts";
import { type Curve, emptyCurve, extendCurve } from "./curve.ts";

export type Notice = {
  readonly atMs: number;
  readonly level: "info" | "good" | "warn" | "error";
  readonly text: string;
};

export type WorkerState = {
  readonly status: "running" | "dead";
  readonly pid: number | undefined;
  readonly restarts: number;
};

export type QueueState = { readonly depth: number; readonly capacity: number | undefined; readonly peak: number };

export type RunState = {
  readonly runId: string;
  readonly workflow: string;
  readonly mode: string;
  readonly folder: string;
  /** steps in all; 0 until the run has started */
  readonly numSteps: number;
  readonly resumedFrom: number;
  readonly startedAtMs: number | undefined;
  /** when the first step of this runner began */
  readonly firstStepAtMs: number | undefined;
  readonly lastEventAtMs: number | undefined;
  readonly phase:
    | { readonly name: string; readonly done?: number | undefined; readonly total?: number | undefined }
    | undefined;
  readonly explanation: readonly string[];
  readonly placement: readonly PlacementRow[];
  /** last finished step */
  readonly step: number;
  /** step under way */
  readonly activeStep: number | undefined;
  /** of the last steps, oldest first */
  readonly recentSeconds: readonly number[];
  readonly recentTokens: readonly number[];
  readonly metrics: Readonly<Record<string, number>>;
  readonly reward: Curve;
  readonly accuracy: Curve;
  readonly tokensPerSecond: Curve;
  readonly policyVersion: number;
  readonly utilisation: Readonly<Record<string, UtilisationShares>>;
  readonly queues: Readonly<Record<string, QueueState>>;
  readonly waits: Readonly<Record<string, { readonly on: string; readonly sinceMs: number }>>;
  readonly workers: Readonly<Record<string, WorkerState>>;
  readonly restarts: number;
  readonly checkpoint: { readonly step: number; readonly path: string } | undefined;
  /** the episode that was left for people last */
  readonly sample: Omit<Extract<RunEvent, { type: "sample" }>, "type" | "atMs"> | undefined;
  readonly notices: readonly Notice[];
  readonly summary: RunSummary | undefined;
  readonly failure: ErrorRecord | undefined;
};

const maxRecentSteps = 64;
const maxNotices = 50;

export const initialState: RunState = {
  runId: "",
  workflow: "",
  mode: "",
  folder: "",
  numSteps: 0,
  resumedFrom: 0,
  startedAtMs: undefined,
  firstStepAtMs: undefined,
  lastEventAtMs: undefined,
  phase: undefined,
  explanation: [],
  placement: [],
  step: 0,
  activeStep: undefined,
  recentSeconds: [],
  recentTokens: [],
  metrics: {},
  reward: emptyCurve,
  accuracy: emptyCurve,
  tokensPerSecond: emptyCurve,
  policyVersion: 0,
  utilisation: {},
  queues: {},
  waits: {},
  workers: {},
  restarts: 0,
  checkpoint: undefined,
  sample: undefined,
  notices: [],
  summary: undefined,
  failure: undefined,
};

/** What `auto` does with a mode. */
const doing = {
  profiling: () => "profiling",
  trial: (mode: string) => `trying ${mode}`,
  chosen: (mode: string) => mode,
} as const;

export function fold(previous: RunState, event: RunEvent): RunState {
  const state: RunState = { ...previous, lastEventAtMs: event.atMs };
  switch (event.type) {
    case "run-started": {
      const { runId, workflow, mode, steps, folder, resumedFrom = 0 } = event;
      const started = { ...state, runId, workflow, mode, folder, numSteps: steps, resumedFrom, step: resumedFrom };
      const text = `resumed after step ${resumedFrom}`;
      return {
        ...started,
        startedAtMs: event.atMs,
        notices: event.resumedFrom === undefined ? state.notices : note(state, event.atMs, "info", text),
      };
    }
    case "plan":
      return {
        ...state,
        explanation: event.explanation,
        placement: event.placement,
        mode: event.phase ? `auto, ${doing[event.phase](event.mode)}` : state.mode,
      };
    case "phase":
      return { ...state, phase: { name: event.name, done: event.done, total: event.total } };
    case "step-started":
      return {
        ...state,
        phase: undefined,
        activeStep: event.step,
        firstStepAtMs: state.firstStepAtMs ?? event.atMs,
      };
    case "step-finished":
      return foldStep(state, event);
    case "evaluation":
      return { ...state, accuracy: extendCurve(state.accuracy, event.step, event.accuracy) };
    case "checkpoint":
      return { ...state, checkpoint: { step: event.step, path: event.path } };
    case "worker-started":
      return withWorker(state, event.worker, { status: "running", pid: event.pid });
    case "worker-died":
      return {
        ...withWorker(state, event.worker, { status: "dead", pid: event.pid }),
        notices: note(state, event.atMs, "error", `${event.worker} died: ${deathReason(event)}`),
      };
    case "worker-restarted": {
      const restarts = (state.workers[event.worker]?.restarts ?? 0) + 1;
      const why = event.reason ? `: ${event.reason}` : "";
      const how = event.recovery === undefined ? "" : ` ${recoveryTime(event.recovery)}`;
      return {
        ...withWorker(state, event.worker, { status: "running", pid: event.pid, restarts }),
        restarts: state.restarts + 1,
        notices: note(state, event.atMs, "good", `${event.worker} restarted${why}${how}`),
      };
    }
    case "queue": {
      const peak = Math.max(state.queues[event.channel]?.peak ?? 0, event.depth);
      const queue = { depth: event.depth, capacity: event.capacity, peak };
      return { ...state, queues: { ...state.queues, [event.channel]: queue } };
    }
    case "utilisation":
      return { ...state, utilisation: event.components };
    case "waiting": {
      const { [event.who]: _, ...others } = state.waits;
      if (event.seconds === 0) return { ...state, waits: others };
      return {
        ...state,
        waits: { ...others, [event.who]: { on: event.on, sinceMs: event.atMs - event.seconds * 1000 } },
      };
    }
    case "log": {
      if (event.level === "trace" || event.level === "debug" || event.level === "info") return state;
      const level = event.level === "warn" ? "warn" : "error";
      return { ...state, notices: note(state, event.atMs, level, `${event.worker}: ${event.line}`) };
    }
    case "sample": {
      const { step, worker, reward, prompt, text } = event;
      // Of a step the first rank's.
      return state.sample?.step === step ? state : { ...state, sample: { step, worker, reward, prompt, text } };
    }
    case "run-finished":
      return { ...state, summary: event.summary, activeStep: undefined, phase: undefined, waits: {} };
    case "run-failed":
      return { ...state, failure: event.error, activeStep: undefined, phase: undefined };
  }
}

function foldStep(state: RunState, event: Extract<RunEvent, { type: "step-finished" }>): RunState {
  const { step, seconds, tokens, metrics } = event;
  const recentSeconds = [...state.recentSeconds, seconds].slice(-maxRecentSteps);
  const recentTokens = [...state.recentTokens, tokens].slice(-maxRecentSteps);
  const rate = seconds > 0 ? tokens / seconds : Number.NaN;
  return {
    ...state,
    step: Math.max(state.step, step),
    activeStep: state.activeStep !== undefined && state.activeStep <= step ? undefined : state.activeStep,
    recentSeconds,
    recentTokens,
    metrics,
    policyVersion: event.policyVersion ?? state.policyVersion,
    reward: extendCurve(state.reward, step, metrics.reward ?? Number.NaN),
    tokensPerSecond: extendCurve(state.tokensPerSecond, step, rate),
  };
}

/** `killed by SIGKILL`, `exit code 3`, and what is known beyond it. */
function deathReason({ code, signal, reason }: Extract<RunEvent, { type: "worker-died" }>): string {
  const how = signal ? `killed by ${signal}` : typeof code === "number" ? `exit code ${code}` : "";
  if (how === "" || reason.includes(signal ?? `code ${code}`)) return reason;
  return reason === "" ? how : `${how}, ${reason}`;
}

/** `in 2.4 s (detection 0.9, placement 0.0, start 0.8, state 0.3, redone 0.4)` */
function recoveryTime(recovery: Readonly<Record<string, number>>): string {
  const total = Object.values(recovery).reduce((sum, seconds) => sum + seconds, 0);
  const parts = Object.entries(recovery).map(([part, seconds]) => `${part} ${seconds.toFixed(1)}`);
  return `in ${total.toFixed(1)} s (${parts.join(", ")})`;
}

function withWorker(
  state: RunState,
  name: string,
  change: { status: WorkerState["status"]; pid: number | undefined; restarts?: number },
): RunState {
  const restarts = change.restarts ?? state.workers[name]?.restarts ?? 0;
  return { ...state, workers: { ...state.workers, [name]: { status: change.status, pid: change.pid, restarts } } };
}

/** Adds a notice; the same text again within a second is one notice. */
function note(state: RunState, atMs: number, level: Notice["level"], text: string): readonly Notice[] {
  const last = state.notices.at(-1);
  if (last && last.text === text && atMs - last.atMs < 1000) return state.notices;
  return [...state.notices, { atMs, level, text }].slice(-maxNotices);
}

/** Seconds left at the pace of the last steps; undefined until a step has finished. */
export function secondsLeft(state: RunState): number | undefined {
  if (state.recentSeconds.length === 0 || state.numSteps === 0) return undefined;
  const mean = state.recentSeconds.reduce((sum, value) => sum + value, 0) / state.recentSeconds.length;
  return Math.max(0, state.numSteps - state.step) * mean;
}

/** Tokens a second over the last steps; undefined until tokens were generated. */
export function recentTokensPerSecond(state: RunState): number | undefined {
  const tokens = state.recentTokens.reduce((sum, value) => sum + value, 0);
  const seconds = state.recentSeconds.reduce((sum, value) => sum + value, 0);
  return tokens > 0 && seconds > 0 ? tokens / seconds : undefined;
}
