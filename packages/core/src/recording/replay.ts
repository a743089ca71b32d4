/**
 * A recorded run decided once more: the inputs of `RunnerState` go through it again, and its effects must be those that
 * the run saw. Pure.
 */
import type { RecordedTurn, RecordingHeader } from "@treadle/contracts";
import type { RunnerEffect } from "../runner/runner-messages.ts";
import { RunnerState } from "../runner/runner-state.ts";
import { digestOf, digestOfRefusal } from "./effects-digest.ts";
import { readInput } from "./recorded-input.ts";

export class Replay {
  readonly state: RunnerState;
  #numInputs = 0;
  #effects: readonly RunnerEffect[] = [];

  constructor({ options, startMs }: RecordingHeader) {
    this.state = new RunnerState(options, startMs);
  }

  get numInputs(): number {
    return this.#numInputs;
  }
  /** of the newest input */
  get effects(): readonly RunnerEffect[] {
    return this.#effects;
  }

  /** Whether the effects are those of the run. Throws for an input that was never written by a recorder. */
  next([atMs, digest, recorded]: RecordedTurn): boolean {
    this.#numInputs++;
    const input = readInput(recorded);
    try {
      this.#effects = this.state.handle(input, atMs);
      return digestOf(this.#effects) === digest;
    } catch (error) {
      this.#effects = [];
      return digestOfRefusal(error) === digest;
    }
  }
}
