import type { Completion } from "@treadle/contracts";
import { EmulatedEngine, type GenerationEngine } from "@treadle/engines";
import { expect, test } from "vitest";
import { EngineWorker } from "../src/engine-worker.ts";
import { contextOf } from "./support/context.ts";

const profile = { decode: { baseSeconds: 3600 }, response: { medianTokens: 10 } };
const sampling = { maxTokens: 100, temperature: 1, stopTokens: [0], seed: 1 };

/** Decodes for hours. */
class Decoding extends EngineWorker<object, GenerationEngine> {
  static override readonly module: string = import.meta.url;
  completions!: Promise<Completion[]>;

  override async setup(): Promise<void> {
    this.engine = EmulatedEngine.create(profile);
    this.completions = this.engine.generate([Int32Array.of(1)], sampling);
    this.completions.catch(() => {}); // each test looks at it
  }
  close(): Promise<void> {
    return this.engine.close();
  }
}

async function decoding(isHeld: boolean): Promise<Decoding> {
  const context = contextOf({}, "rollout");
  const worker = new Decoding({ ...context, devices: { ...context.devices, isHeld } } as never);
  await worker.setup();
  return worker;
}

test("devices that are taken from a call in the midst of its generation are refused, and the generation goes on", async () => {
  const worker = await decoding(true);
  await expect(worker.offload()).rejects.toMatchObject({
    code: "engine.busy",
    message: expect.stringContaining("the devices of 'rollout/0' were taken while its engine computes"),
  });
  expect(worker.idle()).toBeInstanceOf(Promise);
  await worker.close();
  await expect(worker.completions).rejects.toMatchObject({ code: "engine.released" });
});

test("what a call that is over has left behind ends when its devices are needed", async () => {
  const worker = await decoding(false);
  await worker.offload();
  expect(await worker.completions).toMatchObject([{ finishReason: "abort" }]);
  expect(worker.idle()).toBeUndefined();
});
