/** The trace of a run: span batches of all processes, appended as they come, and what they say of utilisation. */
import { appendFileSync } from "node:fs";
import type { RunEvent } from "@treadle/contracts";
import { SpanBatch, utilisation } from "@treadle/observe";

const windowMs = 5000;

export class RunTrace {
  readonly #path: string;
  readonly #onEvent: (event: RunEvent) => void;
  #recent: SpanBatch[] = [];
  #lastReportMs = 0;

  constructor(path: string, onEvent: (event: RunEvent) => void) {
    this.#path = path;
    this.#onEvent = onEvent;
  }

  add(body: unknown): void {
    const batch = SpanBatch.parse(body);
    appendFileSync(this.#path, `${JSON.stringify(batch)}\n`);
    this.#recent.push(batch);
    const nowMs = Date.now();
    if (nowMs - this.#lastReportMs < 1000) return;
    this.#lastReportMs = nowMs;
    const fromMs = nowMs - windowMs;
    this.#recent = this.#recent.filter((each) => each.records.some((record) => record.startMs > fromMs));
    this.#onEvent({ type: "utilisation", atMs: nowMs, components: utilisation(this.#recent, { fromMs, toMs: nowMs }) });
  }

  close(): void {
    this.#recent = [];
  }
}
