/** One run's workers on one node as spans: their starts, their ends that were asked for, and their deaths. */
import type { ExitReport } from "@treadle/contracts";
import type { NodeSpans, Span } from "@treadle/observe";

export class WorkerSpans {
  readonly #spans: NodeSpans;
  readonly #run: string;
  /** by worker and incarnation */
  readonly #starting = new Map<string, Span>();
  readonly #ending = new Map<string, Span>();
  #isClosing = false;

  constructor(spans: NodeSpans, run: string) {
    this.#spans = spans;
    this.#run = run;
  }

  /** A start takes until the process beats, or has ended. */
  starting(worker: string, incarnation: number): void {
    this.#starting.set(keyOf(worker, incarnation), this.#begin(`start ${worker}`, incarnation));
  }

  beats(worker: string, incarnation: number): void {
    if (this.#starting.size > 0) this.#endOf(this.#starting, keyOf(worker, incarnation));
  }

  /** No process was made. */
  notStarted(worker: string, incarnation: number, reason: string): void {
    this.#endOf(this.#starting, keyOf(worker, incarnation), { reason });
  }

  /** The runner has asked for the end of a process, which then takes until it is gone. */
  ending(worker: string, incarnation: number, how: "stop" | "end", reason?: string): void {
    const key = keyOf(worker, incarnation);
    if (this.#ending.has(key)) return;
    const span = this.#begin(`${how} ${worker}`, incarnation);
    if (reason !== undefined) span.set({ reason });
    this.#ending.set(key, span);
  }

  /** From now on the ends of processes are no deaths. */
  closing(): void {
    this.#isClosing = true;
  }

  exited({ worker, incarnation, pid, code, signal, failure }: ExitReport): void {
    const key = keyOf(worker, incarnation);
    const attributes = {
      ...(pid === undefined ? {} : { pid }),
      ...(code === null ? {} : { exitCode: code }),
      ...(signal === null ? {} : { signal }),
      ...(failure === undefined ? {} : { reason: `${failure.code}: ${failure.message}` }),
    };
    this.#endOf(this.#starting, key, attributes);
    const wasAsked = this.#endOf(this.#ending, key, attributes) || this.#isClosing;
    if (wasAsked || (code === 0 && failure === undefined)) return;
    const options = { run: this.#run, attributes: { ...attributes, incarnation } };
    this.#spans.span(`${worker} died`, "failure", options).end();
  }

  #begin(name: string, incarnation: number): Span {
    return this.#spans.span(name, "call", { run: this.#run, attributes: { incarnation } });
  }

  #endOf(spans: Map<string, Span>, key: string, attributes?: Parameters<Span["end"]>[0]): boolean {
    spans.get(key)?.end(attributes);
    return spans.delete(key);
  }
}

/** Of one life of a worker. */
export const keyOf = (worker: string, incarnation: number): string => `${worker}#${incarnation}`;
