import { createHash } from "node:crypto";
import { type FileHandle, open } from "node:fs/promises";
import { type CheckpointHeader, digestBytes, readHeader, refuse } from "../checkpoint.ts";
import { type ParameterShape, sizeOf } from "../parameters.ts";
import { PieceReader } from "../pieces.ts";
import { refuseInfinite, type TrainedWeights } from "./trained-weights.ts";

const pieceBytes = 4 * 2 ** 20;
/** Of a number: parameters and both moments are float32. */
const numberBytes = 4;
const partsOfEach = 3;

/** One that a single process has saved. */
export class CheckpointFile implements TrainedWeights {
  readonly header: CheckpointHeader;
  readonly #file: FileHandle;
  readonly #places: ReadonlyMap<string, { readonly shape: readonly number[]; readonly position: number }>;

  private constructor(file: FileHandle, header: CheckpointHeader, start: number) {
    this.#file = file;
    this.header = header;
    let position = start;
    this.#places = new Map(
      header.layout.map(({ name, shape }) => {
        const place = { shape, position };
        position += sizeOf({ shape }) * numberBytes;
        return [name, place] as const;
      }),
    );
  }

  /** Reads it to its end, in pieces of which one is in memory. Throws `checkpoint.corrupt` unless it is whole, and as it was written. */
  static async open(path: string): Promise<CheckpointFile> {
    const file = await open(path);
    try {
      const { size } = await file.stat();
      const hash = createHash("sha256");
      await using reader = new PieceReader(piecesFrom(file, 0, size));
      const header = await readHeader(async (into, otherwise) => {
        if ((await reader.fill(into)) < into.byteLength) refuse(otherwise);
        hash.update(new Uint8Array(into.buffer, into.byteOffset, into.byteLength));
      });
      const start = reader.numBytes;
      const numbers = header.layout.reduce((sum, each) => sum + sizeOf(each), 0) * partsOfEach;
      const end = start + numbers * numberBytes;
      if (size !== end + digestBytes) refuse(`it has '${size}' bytes where its header tells of '${end + digestBytes}'`);
      for await (const piece of piecesFrom(file, start, end)) hash.update(piece);
      const digest = new Uint8Array(digestBytes);
      await file.read(digest, 0, digestBytes, end);
      if (!hash.digest().equals(digest)) refuse("its checksum does not match its content");
      return new CheckpointFile(file, header, start);
    } catch (error) {
      await file.close();
      throw error;
    }
  }

  shapeOf(name: string): readonly number[] | undefined {
    return this.#places.get(name)?.shape;
  }

  async read(name: string, at: number, count: number): Promise<Float32Array> {
    const numbers = new Float32Array(count);
    const { position } = this.#places.get(name)!;
    const { bytesRead } = await this.#file.read(
      new Uint8Array(numbers.buffer),
      0,
      undefined,
      position + at * numberBytes,
    );
    if (bytesRead < numbers.byteLength) refuse(`it ends in '${name}'`);
    refuseInfinite(name, at, numbers);
    return numbers;
  }

  whole({ name, shape }: ParameterShape): Promise<Float32Array> {
    return this.read(name, 0, sizeOf({ shape }));
  }

  close(): Promise<void> {
    return this.#file.close();
  }
}

/** Each is overwritten by the next. */
async function* piecesFrom(file: FileHandle, start: number, end: number): AsyncGenerator<Uint8Array> {
  const buffer = new Uint8Array(pieceBytes);
  for (let at = start; at < end; ) {
    const { bytesRead } = await file.read(buffer, 0, Math.min(pieceBytes, end - at), at);
    if (bytesRead === 0) refuse(`it ends at '${at}' of '${end}' bytes`);
    yield buffer.subarray(0, bytesRead);
    at += bytesRead;
  }
}
