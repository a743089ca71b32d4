import type { Clock } from "@treadle/contracts";
import type { GenerateOptions } from "../engine.ts";
import type { SequenceRequest, Sequences } from "./sequences.ts";
import type { TokenPart } from "./server-protocol.ts";

type ProgressOptions = {
  readonly clock: Clock;
  readonly everyMs: number;
  /** rejects unless what has arrived until now was chosen by the weights that were loaded */
  readonly confirm: () => Promise<void>;
  readonly tell: NonNullable<GenerateOptions["onProgress"]>;
  /** takes what `tell` throws */
  readonly fail: (error: unknown) => void;
};

/** Tells what arrives of a call's completions: at most once in `everyMs`, and nothing that other weights may have chosen. */
export class Progress {
  readonly #sequences: Sequences;
  readonly #options: ProgressOptions;
  #cancel: (() => void) | undefined;
  #isOver = false;

  constructor(sequences: Sequences, options: ProgressOptions) {
    this.#sequences = sequences;
    this.#options = options;
  }

  /** Throws `service.failed` for what cannot be part of an answer. */
  arrive(request: SequenceRequest, part: TokenPart): void {
    this.#sequences.arrive(request, part);
    this.#cancel ??= this.#options.clock.after(this.#options.everyMs, () => {
      this.#cancel = undefined;
      this.#sequences.see();
      // Whoever finds other weights says so to the call; a server that is gone is noticed by its watch.
      this.#options.confirm().then(
        () => this.tell(),
        () => {},
      );
    });
  }

  /** What is known of already. */
  tell(): void {
    if (this.#isOver) return;
    try {
      const pieces = this.#sequences.pieces();
      if (pieces.length > 0) this.#options.tell(pieces);
    } catch (error) {
      this.#options.fail(error);
    }
  }

  stop(): void {
    this.#isOver = true;
    this.#cancel?.();
  }
}
