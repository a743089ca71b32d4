/**
 * The columns of all lanes of one drawing, as pixels of one picture with a strip for each lane. Drawn one by one they would
 * be tens of thousands of rectangles a frame.
 */
import type { ColumnBlock } from "../view/lane-columns.ts";

export class LaneStrips {
  readonly #canvas = document.createElement("canvas");
  // The processor writes every frame.
  readonly #context = this.#canvas.getContext("2d", { willReadFrequently: true }) as CanvasRenderingContext2D;
  readonly #values = new Map<string, number>();
  #image = new ImageData(1, 1);
  #pixels = new Uint32Array(this.#image.data.buffer);
  #rows = 1;
  #used: boolean[] = [];

  /** Empties it: so many strips of so many pixels. */
  begin(numStrips: number, columns: number, rows: number): void {
    const height = Math.max(1, numStrips * rows);
    if (this.#image.width !== columns || this.#image.height !== height) {
      [this.#canvas.width, this.#canvas.height] = [columns, height];
      this.#image = new ImageData(columns, height);
      this.#pixels = new Uint32Array(this.#image.data.buffer);
    } else this.#pixels.fill(0);
    this.#rows = rows;
    this.#used = new Array<boolean>(numStrips).fill(false);
  }

  /** `low` and `high` of the block are in rows, from the bottom. */
  fill(strip: number, { column, width, low, high }: ColumnBlock, colour: string): void {
    const value = this.#valueOf(colour);
    const pixels = this.#pixels;
    const stride = this.#image.width;
    const bottom = (strip + 1) * this.#rows;
    for (let row = bottom - high; row < bottom - low; row++) {
      const from = row * stride + column;
      for (let at = from; at < from + width; at++) pixels[at] = value;
    }
    this.#used[strip] = true;
  }

  /** Once all are filled; `place` says where the top of a strip comes. */
  draw(context: CanvasRenderingContext2D, left: number, height: number, place: (strip: number) => number): void {
    this.#context.putImageData(this.#image, 0, 0);
    const { width } = this.#image;
    for (const [strip, isUsed] of this.#used.entries())
      if (isUsed)
        context.drawImage(
          this.#canvas,
          ...([0, strip * this.#rows, width, this.#rows] as const),
          ...([left, place(strip), width, height] as const),
        );
  }

  /** As four bytes of a pixel lie in memory. */
  #valueOf(colour: string): number {
    let value = this.#values.get(colour);
    if (value === undefined) {
      this.#context.fillStyle = colour;
      // As the standard has it, an opaque colour reads as `#rrggbb`. What is read of pixels, some browsers disturb.
      const [red, green, blue] = [1, 3, 5].map((at) =>
        Number.parseInt((this.#context.fillStyle as string).slice(at, at + 2), 16),
      ) as [number, number, number];
      value = ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
      this.#values.set(colour, value);
    }
    return value;
  }
}
