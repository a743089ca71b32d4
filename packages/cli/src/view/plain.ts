/** Lines for a log file or a pipe: one a step, aligned, and few enough to read after thousands of steps. */
import type { RunEvent } from "@treadle/contracts";
import { deviceRange, type RunState, secondsLeft } from "@treadle/dashboard/view";
import { formatClock, formatCount, formatPercent, formatSeconds, formatTime, significant, singleLine } from "./text.ts";

/** Steps that take longer than this say that they go on. */
const firstSilenceMs = 15_000;
/** what a step's line says elsewhere, or always says */
const notShown = new Set(["reward", "loss", "kl", "tokens", "policyVersion", "seconds", "accuracy"]);
const maxMetrics = 4;

const sampleIntervalMs = 60_000;
const maxSampleWidth = 100;
const cut = (text: string): string => (text.length > maxSampleWidth ? `${text.slice(0, maxSampleWidth)}…` : text);

export type PlainOptions = {
  /** every step up to this one gets a line */
  readonly verboseSteps?: number | undefined;
  /** later steps get one at most this often, the last one always */
  readonly stepIntervalMs?: number | undefined;
  /** warnings and errors of workers, at most so many a minute */
  readonly logsPerMinute?: number | undefined;
};

/** Turns events into lines. It goes by the events' own times, so a recording gives the same lines. */
export class PlainLines {
  readonly #verboseSteps: number;
  readonly #stepIntervalMs: number;
  readonly #logsPerMinute: number;
  /** when a line of a kind was last written */
  readonly #lastLineMs = new Map<string, number>();
  #logWindowMs = 0;
  #logsInWindow = 0;
  readonly #dropped = { workers: 0, runner: 0 };
  #phase = "";
  #lastTextMs: number | undefined;
  #silenceMs = firstSilenceMs;

  constructor(options: PlainOptions = {}) {
    this.#verboseSteps = options.verboseSteps ?? 20;
    this.#stepIntervalMs = options.stepIntervalMs ?? 5000;
    this.#logsPerMinute = options.logsPerMinute ?? 30;
  }

  /** `state` is the state after the event. */
  lines(event: RunEvent, state: RunState): string[] {
    const texts = this.#texts(event, state);
    if (texts.length === 0) texts.push(...this.#silence(event.atMs, state));
    else {
      this.#lastTextMs = event.atMs;
      this.#silenceMs = firstSilenceMs;
    }
    return texts.map((text) => `${formatTime(event.atMs)}  ${text}`);
  }

  /** What goes on, where nothing has been said for a while: each time for twice as long as before. */
  #silence(atMs: number, state: RunState): string[] {
    const what = state.phase?.name ?? (state.activeStep === undefined ? undefined : `step ${state.activeStep}`);
    if (what === undefined || this.#lastTextMs === undefined) return [];
    const silentMs = atMs - this.#lastTextMs;
    if (silentMs < this.#silenceMs) return [];
    this.#silenceMs *= 2;
    return [`${what} goes on, ${formatSeconds(silentMs / 1000)} after the last line`];
  }

  #texts(event: RunEvent, state: RunState): string[] {
    switch (event.type) {
      case "run-started": {
        const resumed = event.resumedFrom === undefined ? "" : `, after step ${event.resumedFrom}`;
        return [
          `run ${event.runId}: ${event.workflow}, ${event.mode}, ${event.steps} steps${resumed}, in ${event.folder}`,
        ];
      }
      case "plan":
        return [
          ...event.placement.map(({ component, devices, mode, granularity }) => {
            const chunk = granularity === undefined ? "" : `, granularity ${granularity}`;
            const shared = devices.length === 0 ? "without devices" : mode;
            return `plan  ${component.padEnd(12)} ${deviceRange(devices)} (${shared}${chunk})`;
          }),
          ...event.explanation.map((line) => `plan  ${singleLine(line)}`),
        ];
      case "phase": {
        if (event.name === this.#phase) return this.#progressLine(event);
        this.#phase = event.name;
        this.#lastLineMs.set("phase", event.atMs);
        return [event.name];
      }
      case "step-started":
        this.#phase = "";
        return [];
      case "step-finished":
        return this.#stepLine(event, state);
      case "evaluation":
        if (!this.#isDue("evaluation", event.step, event.atMs, state)) return [];
        return [`evaluation  step ${event.step}  accuracy ${formatPercent(event.accuracy)}`];
      case "sample": {
        // Ranks leave theirs together, and one is enough here.
        if (state.sample?.worker !== event.worker || state.sample.step !== event.step) return [];
        if (!this.#isDue("sample", event.step, event.atMs, state, sampleIntervalMs)) return [];
        const shown = cut(`${singleLine(event.prompt)} → ${singleLine(event.text)}`);
        return [`sample  step ${event.step}  ${shown}  reward ${significant(event.reward)}`];
      }
      case "checkpoint":
        if (!this.#isDue("checkpoint", event.step, event.atMs, state)) return [];
        return [`checkpoint  step ${event.step}  ${event.path}`];
      case "worker-died":
      case "worker-restarted":
        return state.notices.slice(-1).map(({ text }) => singleLine(text));
      case "log":
        return this.#logLine(event);
      case "waiting":
        return event.seconds >= 10
          ? this.#limited(
              `${event.who} has waited ${formatSeconds(event.seconds)} on ${event.on}`,
              event.atMs,
              "runner",
            )
          : [];
      case "run-failed":
        return [`failed: ${singleLine(event.error.message)}`];
      default:
        return [];
    }
  }

  /** Early steps and the last one always have their lines; others when a line of their kind is some time ago. */
  #isDue(kind: string, step: number, atMs: number, state: RunState, intervalMs = this.#stepIntervalMs): boolean {
    const last = this.#lastLineMs.get(kind) ?? Number.NEGATIVE_INFINITY;
    const isEarly = step <= state.resumedFrom + this.#verboseSteps;
    if (!isEarly && step < state.numSteps && atMs - last < intervalMs) return false;
    this.#lastLineMs.set(kind, atMs);
    return true;
  }

  #progressLine({ name, done, total, atMs }: Extract<RunEvent, { type: "phase" }>): string[] {
    const lastMs = this.#lastLineMs.get("phase") ?? 0;
    if (done === undefined || total === undefined || atMs - lastMs < this.#stepIntervalMs) return [];
    this.#lastLineMs.set("phase", atMs);
    return [`${name}  ${formatCount(done)}/${formatCount(total)}`];
  }

  #stepLine(event: Extract<RunEvent, { type: "step-finished" }>, state: RunState): string[] {
    if (!this.#isDue("step", event.step, event.atMs, state)) return [];
    const width = String(state.numSteps).length;
    const parts = [`step ${String(event.step).padStart(width)}/${state.numSteps}`];
    const { reward, loss, kl } = event.metrics;
    if (reward !== undefined) parts.push(`reward ${significant(reward).padStart(6)}`);
    if (loss !== undefined) parts.push(`loss ${significant(loss).padStart(7)}`);
    if (kl !== undefined) parts.push(`kl ${significant(kl).padStart(7)}`);
    const own = Object.entries(event.metrics).filter(([name]) => !notShown.has(name));
    const numShown = parts.length - 1;
    for (const [name, value] of own.slice(0, Math.max(0, maxMetrics - numShown)))
      parts.push(`${name} ${significant(value).padStart(7)}`);
    parts.push(`${formatSeconds(event.seconds).padStart(7)}`);
    if (event.tokens > 0 && event.seconds > 0)
      parts.push(`${formatCount(event.tokens / event.seconds).padStart(6)} tokens/s`);
    const left = secondsLeft(state);
    if (left !== undefined && event.step < state.numSteps) parts.push(`${formatClock(left)} left`);
    return [parts.join("  ")];
  }

  #logLine(event: Extract<RunEvent, { type: "log" }>): string[] {
    if (event.level === "trace" || event.level === "debug" || event.level === "info") return [];
    const from = event.worker === "runner" ? "runner" : "workers";
    return this.#limited(`${event.level}  ${event.worker}: ${singleLine(event.line)}`, event.atMs, from);
  }

  #limited(text: string, atMs: number, from: "workers" | "runner"): string[] {
    const lines: string[] = [];
    const dropped = this.#dropped;
    if (atMs - this.#logWindowMs >= 60_000) {
      if (dropped.workers > 0) lines.push(`${dropped.workers} more warnings of workers are in their log files`);
      if (dropped.runner > 0) lines.push(`${dropped.runner} more of the runner are in the run's 'events.jsonl'`);
      this.#logWindowMs = atMs;
      this.#logsInWindow = 0;
      Object.assign(dropped, { workers: 0, runner: 0 });
    }
    if (this.#logsInWindow >= this.#logsPerMinute) {
      dropped[from]++;
      return lines;
    }
    this.#logsInWindow++;
    return [...lines, text];
  }
}
