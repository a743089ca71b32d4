/** Workers that wait for each other, one of which may hang. */

import type { Weights } from "@treadle/contracts";
import { ActorCriticConfig, ActorCriticEngine, type Engine } from "@treadle/engines";
import { Worker, type WorkerGroup } from "@treadle/runtime";
import { pullWeights } from "@treadle/workers";

const model = ActorCriticConfig.parse({ observationSize: 1, actionSize: 1, hidden: [4], microBatchRows: 8 });

/** Ranks that make a collective; each is told whether it comes to it. */
export class MeetingRanks extends Worker {
  static override readonly module: string = import.meta.url;

  async meet(collective: "broadcast" | "gather" | "allReduceSum", absent?: number): Promise<void> {
    if (this.rank === absent) return new Promise(() => {});
    if (collective === "broadcast") await this.messages.broadcast("value");
    else if (collective === "gather") await this.messages.gather(this.rank);
    else await this.messages.allReduceSum(Float32Array.of(this.rank));
  }

  /** All ranks get what another group's rank broadcasts; with how it begins and what its numbers add up to. */
  async receive(from: string, tag: string): Promise<number> {
    const data = await this.messages.broadcastFrom<Float32Array>(from, tag);
    return data.reduce((sum, each) => sum + each, 0);
  }
}

/** Publishes weights: of version 1, or never. */
export class Publisher extends Worker<{ readonly hangs: boolean }> {
  static override readonly module: string = import.meta.url;

  async weights(): Promise<Weights | undefined> {
    if (this.config.hangs) return new Promise(() => {});
    const engine = await ActorCriticEngine.create(model);
    await engine.optimStep({ learningRate: 0.1 });
    return engine.exportWeights();
  }

  async publish(to: WorkerGroup<MeetingRanks>, tag: string, length: number): Promise<void> {
    await this.messages.broadcastTo(to, new Float32Array(length).fill(1), tag);
  }
}

export class Puller extends Worker {
  static override readonly module: string = import.meta.url;

  async pull(from: WorkerGroup<Publisher>): Promise<number> {
    const engine: Engine = await ActorCriticEngine.create(model);
    await pullWeights(engine, from, this);
    return engine.policyVersion;
  }
}
