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

/** A lock that was asked for. Disposed before it is granted, it is given back once it is, unless the end of its call withdraws it first. */
export class DevicesAhead implements AsyncDisposable {
  readonly #locking: Promise<AsyncDisposable>;
  #granted: AsyncDisposable | undefined;
  #ready: Promise<void> | undefined;

  constructor(locking: Promise<AsyncDisposable>) {
    this.#locking = locking.then((granted) => {
      this.#granted = granted;
      return granted;
    });
    this.#locking.catch(() => {}); // whoever needs them, or waits for batches, is told
  }

  /** Resolves when the call has its devices, and `prepare` has run on them once. */
  ready(prepare: () => Promise<void>): Promise<void> {
    this.#ready ??= this.#locking.then(prepare);
    return this.#ready;
  }

  /**
   * The same batches, until the lock is refused: then the wait for the next one throws that. Whoever makes them may be who keeps
   * the devices, so that the batch never comes.
   */
  unlessRefused<T>(batches: AsyncIterable<T>): AsyncIterable<T> {
    const refused = new Promise<never>((_, reject) => this.#locking.catch(reject));
    refused.catch(() => {}); // nobody may be waiting
    const iterator = batches[Symbol.asyncIterator]();
    return {
      [Symbol.asyncIterator]: () => ({
        // A take that is left waiting is called off at the end of the call, and the race has a handler for that too.
        next: () => Promise.race([refused, iterator.next()]),
        async return() {
          return (await iterator.return?.()) ?? { done: true, value: undefined };
        },
      }),
    };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#granted) return await this.#granted[Symbol.asyncDispose]();
    // The call ends without waiting for them; what the runner says of them is the call's end to throw.
    this.#locking.then((granted) => granted[Symbol.asyncDispose]()).catch(() => {});
  }
}
