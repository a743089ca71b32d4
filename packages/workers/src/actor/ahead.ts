/**
 * For a call that looks at what it takes before it computes: it asks for the first batch, then for its devices, and waits for neither.
 * So what was made for it is read, checked and turned into samples while others have the devices.
 */

/** The same batches, of which the first is asked for now. */
export function askedAhead<T>(batches: AsyncIterable<T>): AsyncIterable<T> {
  const iterator = batches[Symbol.asyncIterator]();
  let first: Promise<IteratorResult<T>> | undefined = iterator.next();
  first.catch(() => {}); // whoever iterates is told
  return {
    [Symbol.asyncIterator]: () => ({
      next() {
        const asked = first ?? iterator.next();
        first = undefined;
        return asked;
      },
      async return() {
        return (await iterator.return?.()) ?? { done: true, value: undefined };
      },
    }),
  };
}

/** A lock that was asked for. Disposed before it is granted, it is left to the end of its call, which withdraws it. */
export class DevicesAhead implements AsyncDisposable {
  readonly #locking: Promise<AsyncDisposable>;
  #granted: AsyncDisposable | undefined;
  #ready: Promise<void> | undefined;

  constructor(locking: Promise<AsyncDisposable>) {
    this.#locking = locking.then((granted) => {
      this.#granted = granted;
      return granted;
    });
    this.#locking.catch(() => {}); // whoever needs them is told
  }

  /** Resolves when the call has its devices, and `prepare` has run on them once. */
  ready(prepare: () => Promise<void>): Promise<void> {
    this.#ready ??= this.#locking.then(prepare);
    return this.#ready;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#granted?.[Symbol.asyncDispose]();
  }
}
