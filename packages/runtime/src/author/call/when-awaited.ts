/**
 * A promise that tells when somebody begins to wait for it. What was asked for ahead of its use costs nobody any time
 * until then.
 *
 * Who only guards it, by `catch`, `finally` or `then(undefined, …)`, does not wait for it yet: what that returns tells in its place. A
 * `then` with something to do next counts, since nothing tells it from what `await` and `Promise.all` call.
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
    const next = super.then(fulfilled, rejected);
    if (!fulfilled) return new WhenAwaited(next, this.#awaited);
    this.#awaited();
    return next;
  }

  override finally(settled?: (() => void) | null): Promise<T> {
    const next = super.then(
      async (value) => {
        await settled?.();
        return value;
      },
      async (error) => {
        await settled?.();
        throw error;
      },
    );
    return new WhenAwaited(next, this.#awaited);
  }
}
