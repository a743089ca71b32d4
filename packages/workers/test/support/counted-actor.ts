import type { TokenRows } from "@treadle/engines";
import { ActorWorker } from "../../src/index.ts";

/** Counts what its engine is asked for, in order. */
export class CountedActor extends ActorWorker {
  readonly asked: string[] = [];
  protected override async createEngine() {
    const engine = await super.createEngine();
    return new Proxy(engine, {
      get: (target, name) => {
        const value = Reflect.get(target, name, target) as unknown;
        if (typeof value !== "function") return value;
        return (...given: unknown[]) => {
          if (["forwardBackward", "logprobs", "optimStep"].includes(String(name))) this.asked.push(String(name));
          const answer = value.apply(target, given) as unknown;
          return name === "logprobs" ? this.scored(answer as Promise<Float32Array>, given[0] as TokenRows) : answer;
        };
      },
    });
  }

  /** What its engine answers of rows. */
  protected scored(logprobs: Promise<Float32Array>, _rows: TokenRows): Promise<Float32Array> {
    return logprobs;
  }
}
