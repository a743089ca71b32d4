import { TreadleError } from "@treadle/contracts";
import type { Engine } from "@treadle/engines";
import { expect, test } from "vitest";
import { EngineWorker } from "../src/engine-worker.ts";
import { contextOf } from "./support/context.ts";

class HoldingWorker extends EngineWorker<object, Engine> {
  hold(engine: Partial<Engine>): void {
    this.engine = engine as Engine;
  }
}

test("a worker ends with its engine's own process, for that reason; one whose engine has none stays", async () => {
  const reasons: TreadleError[] = [];
  const context = { ...contextOf({}, "rollout"), failProcess: (error: TreadleError) => reasons.push(error) };
  const worker = new HoldingWorker(context);
  worker.hold({});
  const gone = new TreadleError("service.failed", "the engine's Python process ended by signal SIGKILL");
  worker.hold({ ended: Promise.resolve(gone) });
  await new Promise(setImmediate);
  expect(reasons).toEqual([gone]);
});
