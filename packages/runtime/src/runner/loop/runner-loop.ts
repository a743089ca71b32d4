/**
 * The one place where a run's decisions are made: inputs go into `RunnerState` one at a time, and its effects to whoever
 * acts on them.
 *
 * Owner of: the state, the requests that wait for their answers, and the timers that the state asks for.
 *
 * - RL2 a process that was suspended itself has heard of nobody, which says nothing of them: no time passes for the state
 *   until what has arrived meanwhile was read.
 */
import {
  type Answer,
  inTurn,
  type RunnerEffect,
  type RunnerInput,
  type RunnerOptions,
  RunnerState,
} from "@treadle/core";
import type { RecordingWriter } from "./recording.ts";

type EffectOf<Type extends RunnerEffect["type"]> = Extract<RunnerEffect, { type: Type }>;
type Handlers = { [Type in RunnerEffect["type"]]?: (effect: EffectOf<Type>) => void };
type Waiting = { readonly resolve: (answer: Answer) => void; readonly reject: (error: unknown) => void };
type RequestInput = Extract<RunnerInput, { request: number }>;
/** A request without the id that the loop gives it. */
export type Asked = RequestInput extends infer Each
  ? Each extends RequestInput
    ? Omit<Each, "request">
    : never
  : never;

export type Recorder = Pick<RecordingWriter, "handled" | "refused">;

export type LoopOptions = {
  readonly now?: () => number;
  /** now, when absent */
  readonly startMs?: number;
  /** told every input, and what it led to */
  readonly recorder?: Recorder | undefined;
};

/** Looked at so often, whatever is due in between. */
const tickMs = 500;
const lateMs = 1500;
const readingMs = 1500;
/** Node takes a longer one for none. */
const longestTimerMs = 2 ** 31 - 1;

export class RunnerLoop {
  readonly state: RunnerState;
  readonly #now: () => number;
  readonly #recorder: Recorder | undefined;
  readonly #handlers: Handlers = {};
  readonly #waiting = new Map<number, Waiting>();
  #lastRequest = 0;
  #ticker: NodeJS.Timeout | undefined;
  #turnedMs = 0;
  #readsUntilMs = 0;
  #wake: { readonly atMs: number; readonly timer: NodeJS.Timeout } | undefined;

  constructor(options: RunnerOptions, { now = () => performance.now(), startMs = now(), recorder }: LoopOptions = {}) {
    this.#now = now;
    this.#recorder = recorder;
    this.state = new RunnerState(options, startMs);
    this.on("answer", ({ request, answer }) => this.#settle(request)?.resolve(answer));
    this.on("reject", ({ request, error }) => this.#settle(request)?.reject(error));
    this.on("wake", ({ atMs }) => this.#wakeAt(atMs));
  }

  /** Each kind of effect has one who acts on it. */
  on<Type extends RunnerEffect["type"]>(type: Type, act: (effect: EffectOf<Type>) => void): void {
    if (this.#handlers[type]) throw new Error(`two act on '${type}'`);
    this.#handlers[type] = act as never;
  }

  /** Throws what the state refuses at once, unless it comes while effects are acted on (RL1). */
  readonly feed = inTurn((input: RunnerInput) => this.#handle(input));

  /** Resolves with the answer; at once where nothing is waited for. */
  ask(asked: Asked): Promise<Answer> {
    const request = ++this.#lastRequest;
    return new Promise((resolve, reject) => {
      this.#waiting.set(request, { resolve, reject });
      try {
        this.feed({ ...asked, request } as RunnerInput);
      } catch (error) {
        this.#settle(request)?.reject(error);
      }
    });
  }

  /** From now on time passes for the state. */
  start(): void {
    this.#turnedMs = this.#now();
    this.#ticker ??= setInterval(() => this.#tick(), tickMs);
  }

  stop(): void {
    clearInterval(this.#ticker);
    clearTimeout(this.#wake?.timer);
  }

  #handle(input: RunnerInput): void {
    for (const effect of this.#decide(input, this.#now())) this.#handlers[effect.type]?.(effect as never);
  }

  #decide(input: RunnerInput, nowMs: number): readonly RunnerEffect[] {
    try {
      const effects = this.state.handle(input, nowMs);
      this.#recorder?.handled(input, nowMs, effects);
      return effects;
    } catch (error) {
      this.#recorder?.refused(input, nowMs, error);
      throw error;
    }
  }

  #tick(): void {
    const nowMs = this.#now();
    if (this.#ticker !== undefined && nowMs - this.#turnedMs > tickMs + lateMs) this.#readsUntilMs = nowMs + readingMs;
    this.#turnedMs = nowMs;
    if (nowMs >= this.#readsUntilMs) this.feed({ type: "tick" }); // RL2
  }

  #settle(request: number): Waiting | undefined {
    const waiting = this.#waiting.get(request);
    this.#waiting.delete(request);
    return waiting;
  }

  #wakeAt(atMs: number): void {
    if (this.#wake !== undefined && this.#wake.atMs <= atMs) return;
    clearTimeout(this.#wake?.timer);
    const timer = setTimeout(
      () => {
        this.#wake = undefined;
        this.#tick();
      },
      Math.min(Math.max(0, atMs - this.#now()) + 1, longestTimerMs),
    );
    this.#wake = { atMs, timer };
  }
}
