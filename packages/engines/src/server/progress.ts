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
  /** from the wait until what was seen at its end is told: one question is of one look */
  #isAsking = false;
  #hasMore = false;
  #isOver = false;

  constructor(sequences: Sequences, options: ProgressOptions) {
    this.#sequences = sequences;
    this.#options = options;
  }

  /** Throws `service.failed` for what cannot be part of an answer. */
  arrive(request: SequenceRequest, part: TokenPart): void {
    this.#sequences.arrive(request, part);
    this.#hasMore = true;
    this.#ask();
  }

  /** What is confirmed already. */
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

  #ask(): void {
    if (this.#isAsking || !this.#hasMore || this.#isOver) return;
    this.#isAsking = true;
    const { clock, everyMs, confirm } = this.#options;
    this.#cancel = clock.after(everyMs, () => {
      this.#hasMore = false;
      this.#sequences.see();
      const confirmed = () => {
        this.#sequences.confirmSeen();
        this.tell();
      };
      // Whoever finds other weights says so to the call; a server that is gone is noticed by its watch.
      const done = () => {
        this.#isAsking = false;
        this.#ask();
      };
      void confirm()
        .then(confirmed, () => {})
        .then(done);
    });
  }
}
