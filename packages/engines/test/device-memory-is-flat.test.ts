import type { LossSpec, Sampling } from "@treadle/contracts";
import { ActorCriticEngine, TransformerEngine } from "@treadle/engines";
import { expect, test, vi } from "vitest";
import { randomBatch, smallConfig } from "./small-transformer.ts";

/** The array library owns one WebAssembly memory, which grows and never shrinks; it is caught when it is made. */
const memories = vi.hoisted(() => {
  type MemoryClass = new (descriptor: object) => { readonly buffer: ArrayBufferLike };
  const host = globalThis as unknown as { WebAssembly: { Memory: MemoryClass } };
  const { Memory } = host.WebAssembly;
  const caught: InstanceType<MemoryClass>[] = [];
  host.WebAssembly.Memory = class extends Memory {
    constructor(descriptor: object) {
      super(descriptor);
      caught.push(this);
    }
  };
  return caught;
});

const loss: LossSpec = {
  type: "policy-gradient",
  ratio: "token",
  clipLow: 0.2,
  clipHigh: 0.2,
  dualClip: 3,
  klCoefficient: 0.1,
  entropyCoefficient: 0.01,
};
const sampling: Sampling = { maxTokens: 3, temperature: 1, stopTokens: [], seed: 0 };

test("hundreds of steps of every kind leave the device's memory as it was", async () => {
  const transformer = await TransformerEngine.create(smallConfig);
  const control = await ActorCriticEngine.create({ observationSize: 3, actionSize: 2, microBatchRows: 16 });
  expect(memories.length).toBeGreaterThan(0);

  const batch = randomBatch(4, 6, 1);
  const rows = 16;
  const observations = Float32Array.from({ length: rows * 3 }, (_, i) => Math.sin(i));
  const weights = new Float32Array(rows).fill(1 / rows);
  const cycle = async (step: number) => {
    await transformer.generate([Int32Array.of(step % 7), Int32Array.of(1, 2)], sampling);
    await transformer.logprobs(batch);
    await transformer.forwardBackward(batch, loss);
    await transformer.forwardBackward(batch, { type: "cross-entropy" });
    await transformer.optimStep({ learningRate: 1e-3, maxGradNorm: 1 });
    const { actions, logprobs, values } = await control.act(observations, rows, { seed: step });
    const steps = { rows, observations, actions, weights, oldLogprobs: logprobs, returns: values, oldValues: values };
    const clip = { clipLow: 0.2, clipHigh: 0.2, valueCoefficient: 0.5, entropyCoefficient: 0 };
    await control.forwardBackward({ ...steps, advantages: values }, { ...clip, valueClip: 0.2 });
    await control.forwardBackward({ ...steps, advantages: values }, clip);
    await control.optimStep({ learningRate: 1e-3 });
    if (step % 10 === 0) {
      for (const engine of [transformer, control]) {
        await engine.release();
        await engine.restore();
      }
    }
  };
  const bytes = () => memories.reduce((sum, memory) => sum + memory.buffer.byteLength, 0);
  for (let step = 0; step < 20; step++) await cycle(step);
  const before = bytes();
  expect(before).toBeGreaterThan(0);
  for (let step = 0; step < 200; step++) await cycle(step);
  expect(bytes()).toBe(before);
  await Promise.all([transformer.close(), control.close()]);
});
