/** What decides which runs compute on one device at the same instant, as the pool's state machine asks it. */
import type { SharingQuestion, SharingVerdict, Work, WorkSample } from "@treadle/contracts";

/** It owns no clock and asks nobody: what runs report comes in, with the time. Equal inputs at equal times have equal answers. */
export interface SharingPolicy {
  /** grows with what it has learnt: an answer holds until then */
  readonly version: number;
  worked(run: string, sample: WorkSample, memory: number, nowMs: number): void;
  gone(run: string): void;
  /** Whether the waiter begins beside the holders now, or waits for them. */
  sharesNow(question: SharingQuestion, nowMs: number): SharingVerdict;
  /** How many times as long a work takes beside others; 1 where nobody has measured it. */
  slowdown(work: Work, beside: readonly Work[], memory: number): number;
}
