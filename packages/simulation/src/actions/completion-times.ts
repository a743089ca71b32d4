/** Completion times of one simulated step, in seconds. */
export type StepFigures = {
  /** mean over all actions */
  readonly act: number;
  readonly tool: number;
  readonly reward: number;
  /** mean over trajectories of the sum of completion times of their actions (ARL-Tangram §6.3) */
  readonly trajectory: number;
  /** until the last trajectory has its reward */
  readonly step: number;
  /** core-seconds in use, of those there are */
  readonly utilisation: number;
};

type Kind = "tool" | "reward";

/** Adds up what a policy did with a step. */
export class CompletionTimes {
  readonly #sums: Record<Kind, { seconds: number; count: number }> = {
    tool: { seconds: 0, count: 0 },
    reward: { seconds: 0, count: 0 },
  };
  #busySeconds = 0;

  add(kind: Kind, seconds: number): void {
    this.#sums[kind].seconds += seconds;
    this.#sums[kind].count++;
  }

  addBusy(coreSeconds: number): void {
    this.#busySeconds += coreSeconds;
  }

  figures(step: number, cores: number): StepFigures {
    const { tool, reward } = this.#sums;
    const mean = ({ seconds, count }: { seconds: number; count: number }): number => seconds / Math.max(1, count);
    const all = { seconds: tool.seconds + reward.seconds, count: tool.count + reward.count };
    return {
      act: mean(all),
      tool: mean(tool),
      reward: mean(reward),
      trajectory: all.seconds / Math.max(1, reward.count),
      step,
      utilisation: this.#busySeconds / (cores * step),
    };
  }
}
