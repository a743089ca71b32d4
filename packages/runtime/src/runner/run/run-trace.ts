/** The trace of a run: span batches of all processes, appended as they come, and what they say of utilisation. */
import type { RunEvent, SpanBatch } from "@treadle/contracts";
import { TraceWriter, traceNow, utilisation } from "@treadle/observe";

const windowMs = 5000;

export class RunTrace {
  readonly #writer: TraceWriter;
  readonly #onEvent: (event: RunEvent) => void;
  #recent: SpanBatch[] = [];
  #lastReportMs = 0;
  #isReporting = true;

  constructor(path: string, onEvent: (event: RunEvent) => void) {
    this.#writer = new TraceWriter(path);
    this.#onEvent = onEvent;
  }

  add(batch: SpanBatch): void {
    this.#writer.append(batch);
    this.#recent.push(batch);
    const nowMs = traceNow(); // the time that spans have
    if (!this.#isReporting || nowMs - this.#lastReportMs < 1000) return;
    this.#lastReportMs = nowMs;
    const fromMs = nowMs - windowMs;
    this.#recent = this.#recent.filter((each) => each.records.some((record) => record.startMs > fromMs));
    this.#onEvent({
      type: "utilisation",
      atMs: Date.now(),
      components: utilisation(this.#recent, { fromMs, toMs: nowMs }),
    });
  }

  /** Spans that still come are written and not reported: the end of the run is its last event. */
  stopReporting(): void {
    this.#isReporting = false;
  }

  close(): void {
    this.#recent = [];
    this.#writer.close();
  }
}
