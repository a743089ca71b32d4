import type { Completion, FinishReason } from "@treadle/contracts";
import type { GenerateOptions, GenerationEngine, JoiningCompletion } from "@treadle/engines";

/** An engine of one call whose turns and completions the test ends by hand, by the order in which they joined. */
export class HandEngine {
  readonly kind = "embedded";
  policyVersion = 0;
  readonly weightsId = "initial";
  readonly joined: JoiningCompletion[] = [];
  /** which of them were cut: each had chosen two tokens */
  readonly cut: number[] = [];
  /** as it was asked for when each joined, and since */
  readonly firstPriorities: (number | undefined)[] = [];
  readonly priorities: (number | undefined)[] = [];
  /** of each that joined: its call, its index there, and whether it has ended */
  readonly #calls: { readonly options: GenerateOptions; readonly at: number; hasEnded: boolean }[] = [];
  #over = (): void => {};

  get asEngine(): GenerationEngine {
    return this as unknown as GenerationEngine;
  }

  generate(_: unknown, __: unknown, options: GenerateOptions): Promise<Completion[]> {
    const first = this.joined.length;
    let isOver = false;
    return new Promise((resolve, reject) => {
      this.#over = () => {
        isOver = true;
        resolve([]);
      };
      options.signal?.addEventListener("abort", () => {
        isOver = true;
        reject(new Error("cancelled"));
      });
      const add = (joining: JoiningCompletion) => {
        if (isOver) return undefined;
        const index = this.joined.push(joining) - 1;
        this.#calls.push({ options, at: index - first, hasEnded: false });
        const priority = options.order?.priority(index - first);
        this.firstPriorities.push(priority);
        this.priorities.push(priority);
        return index - first;
      };
      options.join?.(add, (at) => {
        if (isOver || this.#calls[first + at]?.hasEnded !== false) return false;
        this.cut.push(first + at);
        this.end(first + at, 2, "abort", this.policyVersion);
        return true;
      });
    });
  }

  /** A turn is over; resolves with what is appended. One that may go on asks for its priority. */
  async turn(index: number, numTokens: number, policyVersion = 0): Promise<Int32Array | undefined> {
    const { options, at } = this.#calls[index]!;
    const answer = await options.extend?.(at, completionOf(numTokens, "stop", policyVersion));
    if (this.#calls[index]?.hasEnded) return undefined;
    if (answer) this.priorities[index] = options.order?.priority(at);
    else this.end(index, numTokens, "stop", policyVersion);
    return answer;
  }

  /** It has chosen so many more, behind so many. */
  progress(index: number, from: number, numTokens: number): void {
    const { options, at } = this.#calls[index]!;
    const { tokens, logprobs } = completionOf(numTokens);
    options.onProgress?.([{ index: at, attempt: 0, from, tokens, logprobs }]);
  }

  /** The call is over with the last of them. */
  end(index: number, numTokens = 3, finishReason: FinishReason = "stop", policyVersion = 0): void {
    const call = this.#calls[index]!;
    call.hasEnded = true;
    call.options.onCompletion?.(call.at, completionOf(numTokens, finishReason, policyVersion));
    if (this.#calls.every(({ hasEnded }) => hasEnded)) this.#over();
  }

  abort(): void {
    this.#over();
  }
}

export const completionOf = (
  numTokens: number,
  finishReason: FinishReason = "stop",
  policyVersion = 0,
): Completion => ({
  tokens: new Int32Array(numTokens),
  logprobs: new Float32Array(numTokens),
  temperature: 1,
  finishReason,
  policyVersion,
});

/** Until everything has happened that waits for nothing outside. */
export async function turns(): Promise<void> {
  for (let turn = 0; turn < 30; turn++) await new Promise((resolve) => setImmediate(resolve));
}
