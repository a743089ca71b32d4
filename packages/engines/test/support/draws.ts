import { mix, uniform } from "../../src/random.ts";

/** Random numbers by name: those of one name do not depend on what else is drawn. */
export class Draws {
  readonly #seed: number;
  #numDrawn = 0;

  constructor(seed: number) {
    this.#seed = seed;
  }

  split(name: string): Draws {
    return new Draws(mix(this.#seed, ...Buffer.from(name)));
  }

  float(): number {
    return uniform(this.#seed, this.#numDrawn++);
  }

  /** below the limit */
  integer(limit: number): number {
    return Math.floor(limit * this.float());
  }
}
