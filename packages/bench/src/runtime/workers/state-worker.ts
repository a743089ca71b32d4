import { setImmediate as turn } from "node:timers/promises";
import { type StateWriter, Worker } from "@treadle/runtime";

type StateConfig = { readonly stateMiB: number; readonly stepMs: number };

const pieceBytes = 2 ** 22;
const numbers = 2 ** 16;

/** Computes for a known number of rounds, turning its event loop between them, and has a state of a known size. */
export class StateWorker extends Worker<StateConfig> {
  static override readonly module = import.meta.url;
  static override readonly saves = ["train"];
  readonly #numbers = new Float64Array(numbers).fill(1.000001);
  /** of the state; pieces of it are saved as often as its size wants, so that a small machine has room for a large one */
  readonly #piece = new Uint8Array(pieceBytes).map((_, index) => index * 31);
  #rounds = 0;

  /** So many rounds as take a step's time when nothing is saved. */
  async calibrate(): Promise<void> {
    for (let rounds = 8; ; rounds *= 2) {
      const startedMs = performance.now();
      this.#rounds = rounds;
      await this.compute();
      const ms = performance.now() - startedMs;
      if (ms < this.config.stepMs / 4) continue;
      this.#rounds = Math.ceil((rounds * this.config.stepMs) / ms);
      return;
    }
  }

  async compute(): Promise<void> {
    for (let round = 0; round < this.#rounds; round++) {
      for (let pass = 0; pass < 16; pass++) {
        for (let at = 0; at < numbers; at++) this.#numbers[at] = Math.sqrt((this.#numbers[at] as number) * 1.000002);
      }
      await turn();
    }
  }

  async train(): Promise<void> {
    await this.compute();
  }

  override async checkpoint(state: StateWriter): Promise<void> {
    state.write("weights", this.#pieces());
  }

  *#pieces(): Generator<Uint8Array> {
    for (let mib = 0; mib < this.config.stateMiB; mib += pieceBytes / 2 ** 20) yield this.#piece;
  }
}
