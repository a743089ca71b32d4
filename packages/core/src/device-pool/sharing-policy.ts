/** What decides which runs compute on one device at the same instant, as the pool's state machine asks it. */
import type { Work, WorkSample } from "@treadle/contracts";

/** What computes, or waits for its devices. */
export type Computing = {
  readonly run: string;
  /** undefined where the run does not say */
  readonly work: Work | undefined;
  /** its run's part of the devices' memory; of unequal parts the smallest */
  readonly memory: number;
  readonly devices: readonly string[];
  /** since it computes under this lease, or waits */
  readonly sinceMs: number;
  readonly maxSlowdown: number | undefined;
};

export type SharingQuestion = {
  /** the next that would begin */
  readonly waiter: Computing;
  /** of `running`, those that have some of its devices, and would go on beside it */
  readonly holders: readonly Computing[];
  /** all that compute, and all others that wait */
  readonly running: readonly Computing[];
  readonly waiting: readonly Computing[];
};

/** It owns no clock and asks nobody: what runs report comes in, with the time. Equal inputs at equal times have equal answers. */
export interface SharingPolicy {
  /** grows with what it has learnt: an answer holds until then */
  readonly version: number;
  worked(run: string, sample: WorkSample, memory: number, nowMs: number): void;
  gone(run: string): void;
  /** Whether the waiter begins beside the holders now, or waits for them. */
  sharesNow(question: SharingQuestion, nowMs: number): boolean;
  /** How many times as long a work takes beside others; 1 where nobody has measured it. */
  slowdown(work: Work, beside: readonly Work[], memory: number): number;
}
