/** A trainer and a scorer on PyTorch, whose weights the test moves. */
import type { Weights } from "@treadle/contracts";
import { ActorWorker, InferenceWorker } from "@treadle/workers";

const tokens = Int32Array.of(1, 2, 3, 4, 5, 6);

export class PublishingActor extends ActorWorker {
  static override readonly module: string = import.meta.url;
  #numExports = 0;
  #numReads = 0;

  override async setup(): Promise<void> {
    await super.setup();
    const { engine } = this;
    const exported = engine.exportWeights.bind(engine);
    engine.exportWeights = (): Promise<Weights> | Weights => {
      this.#numExports++;
      return exported();
    };
    const read = engine.readTicket?.bind(engine);
    if (!read) return;
    engine.readTicket = (ticket) => {
      this.#numReads++;
      return read(ticket);
    };
  }

  async numReads(): Promise<number> {
    return this.#numReads;
  }

  /** A step without anything to learn from; how often weights were exported to Node, and what the model says. */
  async stepOnce(): Promise<{ numExports: number; logprobs: Float32Array }> {
    await using _ = await this.devices.lock();
    await this.engine.forwardBackward(
      { rows: 1, columns: tokens.length, tokens, weights: new Float32Array(tokens.length).fill(1) },
      { type: "cross-entropy" },
    );
    await this.engine.optimStep({ learningRate: 0.05 });
    await this.publish();
    return { numExports: this.#numExports, logprobs: await this.#score() };
  }

  #score(): Promise<Float32Array> {
    return this.engine.logprobs({ rows: 1, columns: tokens.length, tokens });
  }
}

export class PullingInference extends InferenceWorker {
  static override readonly module: string = import.meta.url;

  async scores(): Promise<{ policyVersion: number; logprobs: Float32Array }> {
    await using _ = await this.devices.lock();
    const logprobs = await this.engine.logprobs({ rows: 1, columns: tokens.length, tokens });
    return { policyVersion: this.engine.policyVersion, logprobs };
  }
}
