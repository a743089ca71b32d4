/** Low-rank adapters on PyTorch: what they train, what others get of them, and what they refuse (LA1 to LA3). */
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { crc32, type LossSpec, type Weights } from "@treadle/contracts";
import { TorchEngine } from "@treadle/engines";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { lacksTorch } from "../../../test/support/torch.ts";
import { readTensors } from "../src/server/safetensors.ts";
import { wholeOf } from "../src/testing/whole-of.ts";
import { expectClose } from "./expect-close.ts";
import { randomBatch, smallConfig } from "./small-transformer.ts";

const reason = lacksTorch();
const rank = 3;
const alpha = 5;
const targets = ["q_proj", "o_proj", "down_proj"];
const loss: LossSpec = {
  type: "policy-gradient",
  ratio: "token",
  clipLow: 0.2,
  clipHigh: 0.28,
  klCoefficient: 0.1,
  entropyCoefficient: 0.01,
};
const step = { learningRate: 0.02, scale: 0.1, maxGradNorm: 1, weightDecay: 0.1 };

type Matrix = { readonly data: Float32Array; readonly shape: readonly number[] };

/** What is trained, as a checkpoint has it: the first third of its numbers. */
function trainedIn(checkpoint: Uint8Array): Map<string, Matrix> {
  const view = new DataView(checkpoint.buffer, checkpoint.byteOffset);
  const length = view.getUint32(4, true);
  const header = JSON.parse(Buffer.from(checkpoint.subarray(8, 8 + length)).toString()) as {
    readonly layout: readonly { readonly name: string; readonly shape: readonly number[] }[];
  };
  return slices(new Float32Array(checkpoint.slice(8 + length, -32).buffer), header.layout);
}

function slices(flat: Float32Array, layout: readonly { readonly name: string; readonly shape: readonly number[] }[]) {
  let offset = 0;
  return new Map(
    layout.map(({ name, shape }) => {
      const size = shape.reduce((product, each) => product * each, 1);
      offset += size;
      return [name, { data: flat.subarray(offset - size, offset), shape }];
    }),
  );
}

const transposed = ({ data, shape: [rows = 0, columns = 0] }: Matrix): Matrix => ({
  data: Float32Array.from({ length: data.length }, (_, at) => data[(at % rows) * columns + Math.floor(at / rows)]!),
  shape: [columns, rows],
});

function product(a: Matrix, b: Matrix, factor: number): Matrix {
  const [rows = 0, inner = 0] = a.shape;
  const columns = b.shape[1] ?? 0;
  const data = Float32Array.from({ length: rows * columns }, (_, at) => {
    let sum = 0;
    for (let k = 0; k < inner; k++)
      sum += a.data[Math.floor(at / columns) * inner + k]! * b.data[k * columns + (at % columns)]!;
    return factor * sum;
  });
  return { data, shape: [rows, columns] };
}

const dataOf = (weights: Weights): number[] => weights.parameters.flatMap(({ data }) => [...data]);

describe.skipIf(reason)(reason ?? "low-rank adapters", () => {
  let folder: string;
  let plain: TorchEngine;
  let adapted: TorchEngine;
  let two: TorchEngine;
  let below: ReadonlyMap<string, Matrix>;
  const create = (
    lora: { readonly rank: number; readonly alpha: number; readonly targets: string[] } | undefined,
    {
      dtype = "float32",
      seed = smallConfig.seed,
      processes = 1,
    }: Partial<Record<"dtype", "float32" | "bfloat16">> & {
      readonly seed?: number | undefined;
      readonly processes?: number;
    } = {},
  ) =>
    TorchEngine.create(
      { ...smallConfig, ...(seed === undefined ? {} : { seed }) },
      { kind: "torch", dtype, weightsFolder: folder, ...(lora ? { lora } : {}) },
      { processes },
    );
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), "treadle-adapters-"));
    const lora = { rank, alpha, targets };
    [plain, adapted] = await Promise.all([create(undefined), create(lora)]);
    two = await create(lora, { processes: 2 });
    below = new Map((await plain.exportWeights()).parameters.map((each) => [each.name, each]));
  }, 600_000);
  afterAll(async () => {
    await Promise.all([plain, adapted, two].map((engine) => engine?.close()));
    await rm(folder, { recursive: true, force: true });
  });

  test("begin as nothing: the first weights are those below them, by bytes and by ticket", async () => {
    const expected = await plain.exportWeights();
    for (const engine of [adapted, two]) expect(await engine.exportWeights()).toEqual(expected);
    const published = await adapted.publish();
    if (!published || !("ticket" in published)) throw new Error("nothing was published");
    await plain.loadTicket(published.ticket);
    expect(dataOf(await plain.exportWeights())).toEqual(dataOf(expected));
    expect(adapted.numTrained).toBeLessThan(adapted.numParameters / 4);
  });

  test("have the gradients that the chain rule gives of whole ones, and change what the whole ones would, in one process or two", async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.integer({ min: 1, max: 6 }),
        fc.integer({ min: 2, max: 6 }),
        fc.nat(),
        async (rows, columns, seed) => {
          const state = trainedIn(await wholeOf(adapted.save()));
          await plain.loadWeights(await adapted.exportWeights());
          const batch = randomBatch(rows, columns, seed);
          const told = await Promise.all([plain, adapted, two].map((engine) => engine.forwardBackward(batch, loss)));
          for (const each of told) expectClose(Object.values(each), Object.values(told[0]!), 1e-4);
          const layout = (await plain.exportWeights()).parameters;
          const whole = slices(await plain.gradients(), layout);
          const own = slices(
            await adapted.gradients(),
            [...state].map(([name, { shape }]) => ({ name, shape })),
          );
          let compared = 0;
          for (const [name, { data }] of own) {
            if (!name.endsWith("lora_b")) continue;
            const [a, b] = [state.get(name.replace(/b$/, "a"))!, state.get(name)!];
            const ofWhole = whole.get(name.replace("lora_b", "weight"))!;
            expectClose(data, product(ofWhole, transposed(a), alpha / rank).data, 1e-3);
            const ofA = own.get(name.replace(/b$/, "a"))!;
            expectClose(ofA.data, product(transposed(b), ofWhole, alpha / rank).data, 1e-3);
            compared++;
          }
          expect(compared).toBe(targets.length * smallConfig.layers);
          expectClose(await two.gradients(), await adapted.gradients(), 1e-4);
          await plain.setGradients(new Float32Array(plain.numTrained));
          const { gradNorm } = await adapted.optimStep(step);
          expectClose([(await two.optimStep(step)).gradNorm], [gradNorm], 1e-4);
          const after = await wholeOf(adapted.save());
          for (const [name, { data }] of trainedIn(after)) expect([...data].every(Number.isFinite), name).toBe(true);
          await two.load([after]);
          expect(await wholeOf(two.save())).toEqual(after);
          const weights = await adapted.exportWeights();
          expectClose(dataOf(await two.exportWeights()), dataOf(weights), 1e-6);
          // Whoever gets the weights computes what the adapted model does.
          await plain.loadWeights(weights);
          expectClose(await plain.logprobs(batch), await adapted.logprobs(batch), 1e-5);
        },
      ),
      { numRuns: 6 },
    );
  });

  test("LA4 are published beside the whole weights as other tools load them, and over what is below them give the same", async () => {
    const loaded: Map<string, Matrix>[] = [];
    for (const engine of [adapted, two]) {
      const published = await engine.publish();
      if (!published || !("ticket" in published)) throw new Error("nothing was published");
      const { ticket } = published;
      const at = (name: string) => join(ticket.store, ticket.folder, name);
      const text = await readFile(at("adapter_config.json"));
      expect(JSON.parse(text.toString())).toMatchObject({
        ...{ peft_type: "LORA", task_type: "CAUSAL_LM", r: rank, lora_alpha: alpha, bias: "none", lora_dropout: 0 },
        ...{ target_modules: [...targets].sort(), use_rslora: false, use_dora: false, fan_in_fan_out: false },
      });
      const read = await readTensors(at("adapter_model.safetensors"));
      const state = trainedIn(await wholeOf(engine.save()));
      const named = new Map(read.map(({ name, data, shape }) => [name, { data, shape }]));
      expect([...named.keys()]).toEqual(
        [...state.keys()].map(
          (name) =>
            `base_model.model.${name.replace(/lora_([ab])$/, (_, kind) => `lora_${kind.toUpperCase()}.weight`)}`,
        ),
      );
      expect([...named.values()]).toEqual(
        [...state.values()].map(({ data, shape }) => ({ data: data.slice(), shape })),
      );
      expect(ticket.adapter).toMatchObject({
        rank,
        configCrc32: crc32(text),
        tensors: [...named].map(([name, { data, shape }]) => {
          return { name, shape, dtype: "F32", crc32: crc32(new Uint8Array(data.buffer)) };
        }),
      });
      for (const { name, data } of (await engine.exportWeights()).parameters) {
        const layer = `base_model.model.${name.replace(/\.weight$/, "")}`;
        const [a, b] = ["A", "B"].map((kind) => named.get(`${layer}.lora_${kind}.weight`));
        const change = a && b && product(b, a, alpha / rank).data;
        expectClose(
          data,
          below.get(name)!.data.map((each, i) => each + (change?.[i] ?? 0)),
          1e-6,
        );
      }
      loaded.push(named);
    }
    expect([...loaded[0]!.values()].some(({ data }) => data.some((each) => each !== 0))).toBe(true);
    const whole = await plain.publish();
    expect(whole && "ticket" in whole && whole.ticket).not.toHaveProperty("adapter");
  });

  test("go on from a checkpoint as without an interruption, and refuse one of other weights, of another scale, or of a whole model", async () => {
    const batch = randomBatch(4, 6, 11);
    const saved = await wholeOf(adapted.save());
    const train = async (engine: TorchEngine) => {
      await engine.forwardBackward(batch, loss);
      await engine.optimStep(step);
      return wholeOf(engine.save());
    };
    const expected = await train(adapted);
    const again = await create({ rank, alpha, targets });
    const others = await Promise.all([
      create({ rank, alpha, targets }, { seed: 99 }),
      create({ rank, alpha: alpha + 1, targets }),
    ]);
    try {
      await again.load([saved]);
      expect(await train(again)).toEqual(expected);
      for (const other of [...others, plain])
        await expect(other.load([saved])).rejects.toMatchObject({ code: "checkpoint.corrupt" });
      const ofPlain = await wholeOf(plain.save());
      await expect(again.load([ofPlain])).rejects.toMatchObject({ code: "checkpoint.corrupt" });
      expect(await wholeOf(again.save())).toEqual(expected);
    } finally {
      await Promise.all([again, ...others].map((engine) => engine.close()));
    }
  });

  test("learn: what is shown often becomes likely, below unchanged weights", async () => {
    const batch = {
      ...randomBatch(6, 6, 21),
      weights: new Float32Array(36).fill(1).map((one, at) => (at % 6 ? one : 0)),
    };
    const lossNow = async () => (await adapted.forwardBackward(batch, { type: "cross-entropy" })).loss;
    const first = await lossNow();
    let last = first;
    for (let round = 0; round < 40; round++) {
      await adapted.optimStep({ learningRate: 0.05, scale: 1 / 30, maxGradNorm: 1, weightDecay: 0 });
      last = await lossNow();
    }
    await adapted.setGradients(new Float32Array(adapted.numTrained));
    expect(last).toBeLessThan(first / 2);
    const adaptedLayers = (await adapted.exportWeights()).parameters.filter(({ name, data }) =>
      data.some((each, at) => each !== below.get(name)!.data[at]),
    );
    expect(adaptedLayers.length).toBe(targets.length * smallConfig.layers);
  });

  test("load no weights", async () => {
    const weights = await plain.exportWeights();
    for (const engine of [adapted, two])
      await expect(engine.loadWeights(weights)).rejects.toThrow("a model with an adapter loads no weights");
    const published = await plain.publish();
    if (!published || !("ticket" in published)) throw new Error("nothing was published");
    await expect(adapted.loadTicket(published.ticket)).rejects.toThrow("set engine.path to them");
  });

  test("are trained in float32 over a model in bfloat16, and take less memory than the whole", async () => {
    const [whole, engine] = await Promise.all([
      create(undefined, { dtype: "bfloat16" }),
      create({ rank, alpha, targets }, { dtype: "bfloat16" }),
    ]);
    try {
      const batch = randomBatch(4, 6, 5);
      for (const each of [whole, engine]) {
        await each.forwardBackward(batch, loss);
        await each.optimStep({ ...step, learningRate: 1e-4 });
      }
      expect(engine.memory().hostBytes).toBeLessThan(whole.memory().hostBytes / 2);
      const before = trainedIn(await wholeOf(engine.save()));
      await engine.forwardBackward(batch, loss);
      await engine.optimStep({ ...step, learningRate: 1e-6 });
      const after = trainedIn(await wholeOf(engine.save()));
      const moved = [...after].filter(([name, { data }]) =>
        data.some((each, at) => each !== before.get(name)!.data[at]),
      );
      expect(moved.length).toBeGreaterThan(0);
      // bfloat16 would have lost such small steps.
      const numbers = [...after.values()].flatMap(({ data }) => [...data]);
      expect(
        numbers.some((each) => each !== 0 && (new Uint32Array(new Float32Array([each]).buffer)[0]! & 0xffff) !== 0),
      ).toBe(true);
    } finally {
      await Promise.all([whole, engine].map((each) => each.close()));
    }
  });
});
