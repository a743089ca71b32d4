import { TreadleError } from "@treadle/contracts";
import { ofOthers } from "../call/of-others.ts";

/** How the durations of the ranks of one call become one number. */
export type Reduction = "mean" | "max" | "min";

export type RankReply<R> = {
  readonly value: R;
  readonly durationMs: number;
  readonly timers: Readonly<Record<string, number>>;
};

/**
 * A call of a group's method, under way on all its ranks. Awaiting it is the barrier and gives one result a rank, in
 * the order of the ranks. A handle that nobody awaits is fine: the step that it belongs to waits for it.
 */
export class CallHandle<R> implements PromiseLike<R[]> {
  readonly #ranks: readonly number[];
  readonly #replies: readonly Promise<RankReply<R>>[];
  readonly #cancel: (reason: TreadleError) => void;
  readonly label: string;

  constructor(
    label: string,
    ranks: readonly number[],
    replies: readonly Promise<RankReply<R>>[],
    cancel: (reason: TreadleError) => void,
  ) {
    this.label = label;
    this.#ranks = ranks;
    this.#replies = replies;
    this.#cancel = cancel;
    for (const reply of replies) reply.catch(() => {});
  }

  // biome-ignore lint/suspicious/noThenProperty: a handle is awaitable by design
  then<A = R[], B = never>(
    onFulfilled?: ((value: R[]) => A | PromiseLike<A>) | null,
    onRejected?: ((reason: unknown) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    const fulfilled = onFulfilled ?? ((values: R[]) => values as unknown as A);
    return this.#settled().then((replies) => fulfilled(replies.map((reply) => reply.value)), onRejected);
  }

  /** The results of some ranks only, without waiting for the others. */
  onRanks(...ranks: readonly number[]): Promise<R[]> {
    return ofOthers(this.#onRanks(ranks));
  }

  async #onRanks(ranks: readonly number[]): Promise<R[]> {
    const picked = ranks.map((rank) => {
      const index = this.#ranks.indexOf(rank);
      const reply = this.#replies[index];
      if (!reply) {
        throw new TreadleError(
          "workflow.invalid",
          `'${this.label}' was not called on rank '${rank}'; it was called on ranks ${this.#ranks.join(", ")}`,
        );
      }
      return reply;
    });
    return (await Promise.all(picked)).map((reply) => reply.value);
  }

  /** The result of the first rank of the call. */
  first(): Promise<R> {
    return ofOthers(this.#onRanks(this.#ranks.slice(0, 1)).then(([first]) => first as R));
  }

  /** Seconds that the method took on each rank. */
  async seconds(): Promise<number[]> {
    return (await this.#settled()).map((reply) => reply.durationMs / 1000);
  }

  /** Seconds of the method, or of one of its named timers, reduced over ranks. */
  async reducedSeconds(reduction: Reduction = "max", timer?: string): Promise<number> {
    const values = (await this.#settled()).map(
      (reply) => (timer === undefined ? reply.durationMs : (reply.timers[timer] ?? 0)) / 1000,
    );
    if (reduction === "max") return Math.max(...values);
    if (reduction === "min") return Math.min(...values);
    return values.reduce((sum, value) => sum + value, 0) / values.length;
  }

  /** Asks every rank to stop; the handle then rejects with `call.cancelled`. */
  cancel(reason = "by the workflow"): void {
    this.#cancel(new TreadleError("call.cancelled", `'${this.label}' was cancelled ${reason}`));
  }

  #settled(): Promise<RankReply<R>[]> {
    return ofOthers(Promise.all(this.#replies));
  }
}
