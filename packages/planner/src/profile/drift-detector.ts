import { median } from "@treadle/contracts";

export type DriftOptions = {
  /** steps whose median is compared */
  readonly window: number;
  /** relative deviation that counts as drift */
  readonly threshold: number;
};

/**
 * Tells when steps take another time than they used to: the median of the last `window` steps has left the band of
 * ± `threshold` around the reference. The reference is the prediction, or, until one is given, the first full window.
 * Pure; one step at a time.
 */
export class DriftDetector {
  readonly #options: DriftOptions;
  #reference: number | undefined;
  #recent: number[] = [];

  constructor(options: DriftOptions, referenceSeconds?: number) {
    this.#options = options;
    this.#reference = referenceSeconds;
  }

  get reference(): number | undefined {
    return this.#reference;
  }

  /** Measured over reference, when that is outside of the band; then a fresh window begins. */
  observe(seconds: number): number | undefined {
    const { window, threshold } = this.#options;
    this.#recent.push(seconds);
    if (this.#recent.length < window) return undefined;
    const measured = median(this.#recent.slice(-window));
    if (this.#reference === undefined) {
      this.#reference = measured;
      return undefined;
    }
    this.#recent = this.#recent.slice(-window);
    const ratio = measured / this.#reference;
    if (ratio <= 1 + threshold && ratio >= 1 / (1 + threshold)) return undefined;
    this.#recent = [];
    return ratio;
  }
}
