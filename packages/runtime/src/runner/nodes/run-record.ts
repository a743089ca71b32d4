/** What is kept at the control plane of how a run goes, for when its runner has left, or is gone without a word. */
import { setTimeout as delay } from "node:timers/promises";
import type { ControlPlane, RunInfo, RunRecord } from "@treadle/contracts";

/** Steps may be shorter; the last of them is written down in the end. */
const intervalMs = 1000;
const timeoutMs = 5000;
const openMs = 500;

export class KeptRecord {
  readonly #plane: ControlPlane;
  readonly #onNotice: (text: string) => void;
  #info: RunInfo | undefined;
  #step = 0;
  #isWriting = false;
  #hasEnded = false;

  constructor(plane: ControlPlane, onNotice: (text: string) => void) {
    this.#plane = plane;
    this.#onNotice = onNotice;
  }

  /** From now on it is kept. Waits for little: servers that elect who leads keep it later. */
  async open(info: RunInfo): Promise<void> {
    this.#info = info;
    await Promise.race([this.#write("running"), delay(openMs, undefined, { ref: false })]);
  }

  /** The last step that counts. */
  committed(step: number): void {
    this.#step = step;
    if (this.#info === undefined || this.#isWriting || this.#hasEnded) return;
    this.#isWriting = true;
    void (async () => {
      await this.#write("running");
      await delay(intervalMs, undefined, { ref: false });
      this.#isWriting = false;
      if (this.#step > step) this.committed(this.#step);
    })();
  }

  async ended(state: Exclude<RunRecord["state"], "running">, failure?: string): Promise<void> {
    this.#hasEnded = true;
    await this.#write(state, failure);
  }

  async #write(state: RunRecord["state"], failure?: string): Promise<void> {
    if (this.#info === undefined) return;
    const ended = state === "running" ? {} : { endedAt: new Date().toISOString() };
    const reason = failure === undefined ? {} : { failure };
    const record: RunRecord = { ...this.#info, state, step: this.#step, ...ended, ...reason };
    const kept = this.#plane.keep(record.runId, record).catch((error: Error) => {
      // One that runs writes it again.
      if (state !== "running") this.#onNotice(`the state of the run could not be kept: ${error.message}`);
    });
    await Promise.race([kept, delay(timeoutMs, undefined, { ref: false })]);
  }
}
