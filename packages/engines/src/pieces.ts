/** States and tensors have no bound; what hashes, sends or writes them takes less than 2 GiB at once, and so gets pieces. */

/** Of any size, in their order; asked for one after another. */
export type Pieces = Iterable<Uint8Array> | AsyncIterable<Uint8Array>;

const pieceBytes = 4 * 2 ** 20;

/** Views, not copies. */
export function* piecesOf(
  { buffer, byteOffset, byteLength }: ArrayBufferView,
  sizeBytes: number = pieceBytes,
): Generator<Uint8Array> {
  for (let start = 0; start < byteLength; start += sizeBytes)
    yield new Uint8Array(buffer, byteOffset + start, Math.min(sizeBytes, byteLength - start));
}

/** Fills arrays of known sizes from pieces of any. */
export class PieceReader {
  readonly #pieces: AsyncGenerator<Uint8Array>;
  #rest: Uint8Array = new Uint8Array();
  /** that were taken from the pieces */
  numBytes = 0;

  constructor(pieces: Pieces) {
    this.#pieces = inOrder(pieces);
  }

  /** Bytes that were there: fewer than it has room for only where the pieces end. */
  async fill({ buffer, byteOffset, byteLength }: ArrayBufferView): Promise<number> {
    const into = new Uint8Array(buffer, byteOffset, byteLength);
    let at = 0;
    while (at < into.length) {
      if (this.#rest.length === 0) {
        const next = await this.#pieces.next();
        if (next.done) break;
        this.#rest = next.value;
        continue;
      }
      const some = this.#rest.subarray(0, into.length - at);
      into.set(some, at);
      at += some.length;
      this.#rest = this.#rest.subarray(some.length);
    }
    this.numBytes += at;
    return at;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#pieces.return(undefined);
  }
}

async function* inOrder(pieces: Pieces): AsyncGenerator<Uint8Array> {
  yield* pieces;
}
