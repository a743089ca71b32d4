/**
 * A promise that tells when somebody begins to wait for it. What was asked for ahead of its use costs nobody any time
 * until then.
 */
export class WhenAwaited<T> extends Promise<T> {
  readonly #awaited: () => void;

  constructor(promise: Promise<T>, awaited: () => void) {
    super((resolve, reject) => promise.then(resolve, reject));
    this.#awaited = awaited;
  }

  /** What is made of it is an ordinary promise. */
  static override get [Symbol.species](): PromiseConstructor {
    return Promise;
  }

  // biome-ignore lint/suspicious/noThenProperty: `await` calls it, which is what this is for
  override then<A = T, B = never>(
    fulfilled?: ((value: T) => A | PromiseLike<A>) | null,
    rejected?: ((reason: unknown) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    this.#awaited();
    return super.then(fulfilled, rejected);
  }
}
