/** What a run has come to: counted over its steps, resumed ones included, and said in its summary. Pure. */
import type { RunSummary } from "@treadle/contracts";
import { stepSeconds } from "@treadle/observe";
import type { Metrics } from "../../author/workflow.ts";

type Counted = { readonly seconds: number; readonly metrics: Metrics };

export class RunTally {
  readonly #seconds: number[] = [];
  readonly #rewards: number[] = [];
  readonly #accuracies: number[] = [];
  #accuracyAtStart: number | null = null;
  #tokens = 0;
  #policyVersion = 0;
  #lastMetrics: Metrics = {};

  /** Steps of this run and of the runners before it. */
  get numSteps(): number {
    return this.#seconds.length;
  }
  /** of the last step */
  get lastMetrics(): Metrics {
    return this.#lastMetrics;
  }

  evaluated(accuracy: number): void {
    this.#accuracies.push(accuracy);
    if (this.numSteps === 0) this.#accuracyAtStart = accuracy;
  }

  /** A step that is committed now; its accuracy has been told already. */
  committed({ seconds, metrics }: Counted): void {
    const { reward, tokens = 0, policyVersion } = metrics;
    if (reward !== undefined) this.#rewards.push(reward);
    if (policyVersion !== undefined) this.#policyVersion = policyVersion;
    this.#lastMetrics = metrics;
    this.#seconds.push(seconds);
    this.#tokens += tokens;
  }

  /** A step that an earlier runner had committed. */
  resumed(step: Counted): void {
    this.committed(step);
    this.resumedOnce(step);
  }

  /** What an earlier runner did once. */
  resumedOnce({ metrics }: { readonly metrics: Metrics }): void {
    const accuracy = metrics["accuracy"];
    if (accuracy !== undefined) this.evaluated(accuracy);
  }

  summary(run: Pick<RunSummary, "runId" | "mode" | "seconds" | "restarts">): RunSummary {
    const training = this.#seconds.reduce((sum, value) => sum + value, 0);
    return {
      runId: run.runId,
      mode: run.mode,
      steps: this.numSteps,
      seconds: run.seconds,
      rewardFirst: this.#rewards[0] ?? null,
      rewardLast: this.#rewards.at(-1) ?? null,
      evalBefore: this.#accuracies[0] ?? null,
      evalAtStart: this.#accuracyAtStart,
      evalAfter: this.#accuracies.at(-1) ?? null,
      tokensPerSecond: training > 0 ? this.#tokens / training : 0,
      stepSeconds: this.#seconds.length > 0 ? stepSeconds(this.#seconds) : { mean: 0, p50: 0, p95: 0 },
      policyVersion: this.#policyVersion,
      restarts: run.restarts,
    };
  }
}
