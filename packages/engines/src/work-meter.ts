/** What an engine has computed since somebody asked last: its forward passes, the tokens of all of them, and how long they took. */
export type WorkSums = {
  readonly passes: number;
  readonly tokens: number;
  readonly ms: number;
  /** its milliseconds are of a profile: who else has the processors changes nothing of them */
  readonly isEmulated?: true;
};

export class WorkMeter {
  #passes = 0;
  #tokens = 0;
  #ms = 0;

  add({ passes, tokens, ms }: WorkSums): void {
    this.#passes += passes;
    this.#tokens += tokens;
    this.#ms += ms;
  }

  take(): WorkSums {
    const sums = { passes: this.#passes, tokens: this.#tokens, ms: this.#ms };
    [this.#passes, this.#tokens, this.#ms] = [0, 0, 0];
    return sums;
  }
}
