/** What went wrong first in work that nobody awaits by itself. */
export class FirstFailure {
  /** Rejects with it, and never resolves. */
  readonly happened: Promise<never>;
  #reject!: (error: unknown) => void;

  constructor() {
    this.happened = new Promise<never>((_, reject) => {
      this.#reject = reject;
    });
    this.happened.catch(() => {});
  }

  readonly fail = (error: unknown): void => this.#reject(error);
}
