/** What every engine promises, kept by one in another process; and what only such a one must. */
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { mkdtemp, readFile, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import type { Completion, LossSpec, Sampling } from "@treadle/contracts";
import { type GenerationEngine, TorchEngine, type TrainingEngine } from "@treadle/engines";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { lacksTorch, python } from "../../../test/support/torch.ts";
import { TransformerConfig } from "../src/embedded/transformer-config.ts";
import { sealWeights } from "../src/parameters.ts";
import { piecesOf } from "../src/pieces.ts";
import { wholeOf } from "../src/testing/whole-of.ts";
import { TorchClient } from "../src/torch/torch-client.ts";
import { TorchConfig } from "../src/torch/torch-config.ts";
import { TorchProcess } from "../src/torch/torch-process.ts";
import { describeGeneration } from "./generation-contract.ts";
import { randomBatch, smallConfig, smallTransformer } from "./small-transformer.ts";

const reason = lacksTorch();
const torch = { kind: "torch" } as const;
const patient = { callTimeoutMs: 600_000, healthTimeoutMs: 600_000 };
const withValues = { ...smallConfig, valueHead: true };
const sampling: Sampling = { maxTokens: 3, temperature: 1, stopTokens: [], seed: 9 };
const prompts = [[1, 2], [3], [4, 5, 6], [1, 2], [0, 0, 1], [6], [2, 3], [5], [1], [1, 4], [3, 3, 3]].map((tokens) =>
  Int32Array.from(tokens),
);
const loss: LossSpec = {
  type: "policy-gradient",
  ratio: "token",
  clipLow: 0.2,
  clipHigh: 0.28,
  dualClip: 3,
  klCoefficient: 0.1,
  entropyCoefficient: 0.01,
  value: { coefficient: 0.5, clip: 0.2 },
};

const expectClose = (actual: ArrayLike<number>, expected: ArrayLike<number>, digits = 4) => {
  expect(actual.length).toBe(expected.length);
  for (let i = 0; i < actual.length; i++) expect(actual[i]).toBeCloseTo(expected[i]!, digits);
};
const expectAlike = (actual: readonly Completion[], expected: readonly Completion[]) => {
  expect(actual.map(({ tokens }) => [...tokens])).toEqual(expected.map(({ tokens }) => [...tokens]));
  for (const [index, { logprobs }] of actual.entries()) expectClose(logprobs, expected[index]!.logprobs, 5);
};

type Conforming = GenerationEngine & TrainingEngine;
const kinds: readonly [string, string | undefined, () => Promise<Conforming>][] = [
  ["embedded", undefined, () => smallTransformer({ valueHead: true })],
  ["torch", reason, () => TorchEngine.create(withValues, torch)],
];

describe.each(kinds)("an engine of kind %s", (kind, lacks, create) => {
  describe.skipIf(lacks)(lacks ?? "conforms", () => {
    let engine: Conforming;
    let other: Conforming;
    beforeAll(async () => {
      [engine, other] = await Promise.all([create(), create()]);
    });
    afterAll(() => Promise.all([engine?.close(), other?.close()]));
    const zero = async () => engine.setGradients(new Float32Array((await engine.gradients()).length));

    test("begins alike for one configuration", async () => {
      expect(engine.kind).toBe(kind);
      expect(await engine.exportWeights()).toEqual(await other.exportWeights());
    });

    test("pads rows of a batch without a trace", async () => {
      const row = Int32Array.of(3, 1, 4);
      const alone = await engine.logprobs({ rows: 1, columns: 3, tokens: row });
      const padded = await engine.logprobs({
        rows: 2,
        columns: 6,
        tokens: Int32Array.of(...row, 0, 0, 0, 5, 5, 5, 5, 5, 5),
      });
      expectClose(padded.subarray(0, 3), alone, 5);
    });

    test("computes nothing for a batch without rows, which a rank has that is done before its fellow ranks", async () => {
      const none = new Float32Array(0);
      const nothing = { rows: 0, columns: 0, tokens: new Int32Array(0), weights: none };
      const arrays = { temperatures: none, advantages: none, oldLogprobs: none, refLogprobs: none };
      const targets = { returns: none, oldValues: none };
      await zero();
      expect(await engine.logprobs(nothing)).toEqual(new Float32Array(0));
      expect(await engine.forwardBackward({ ...nothing, ...arrays, ...targets }, loss)).toMatchObject({
        loss: 0,
        weight: 0,
      });
      expect((await engine.gradients()).every((value) => value === 0)).toBe(true);
    });

    test("refuses prompts, rows and losses that cannot be computed", async () => {
      const refused = { code: "engine.invalid-request" };
      for (const tokens of [[], [1, 1, 1, 1, 1, 1], [7]]) {
        await expect(engine.generate([Int32Array.from(tokens)], sampling)).rejects.toMatchObject(refused);
      }
      const tokens = Int32Array.of(1, 9);
      await expect(engine.logprobs({ rows: 1, columns: 2, tokens })).rejects.toMatchObject(refused);
      const { advantages: _, ...without } = randomBatch(2, 6, 1);
      await expect(engine.forwardBackward(without, loss)).rejects.toMatchObject(refused);
    });

    test("sums gradients: a batch in parts is the batch, and entries of weight 0 leave no trace", async () => {
      const batch = randomBatch(6, 6, 23);
      await zero();
      const whole = await engine.forwardBackward(batch, loss);
      const gradients = await engine.gradients();
      expect(gradients.some((value) => Math.abs(value) > 1e-3)).toBe(true);
      const part = (from: number, to: number) =>
        Object.fromEntries(
          Object.entries(batch).map(([name, value]) => {
            if (typeof value === "number") return [name, name === "rows" ? to - from : value];
            const width = name === "temperatures" ? 1 : batch.columns;
            return [name, value?.slice(from * width, to * width)];
          }),
        ) as unknown as typeof batch;
      await zero();
      const sums = [await engine.forwardBackward(part(0, 2), loss), await engine.forwardBackward(part(2, 6), loss)];
      expect(sums[0]!.loss + sums[1]!.loss).toBeCloseTo(whole.loss, 4);
      expectClose(await engine.gradients(), gradients);
      const unread = (values: Float32Array | undefined) =>
        values!.map((old, i) => (batch.weights[i] === 0 ? Number.NaN : old));
      await zero();
      await engine.forwardBackward(
        {
          ...batch,
          advantages: unread(batch.advantages),
          oldLogprobs: unread(batch.oldLogprobs),
          refLogprobs: unread(batch.refLogprobs),
          returns: unread(batch.returns),
          oldValues: unread(batch.oldValues),
        },
        loss,
      );
      expectClose(await engine.gradients(), gradients);
    });

    test("has the gradient that finite differences of its own loss show", async () => {
      const batch = randomBatch(3, 6, 31);
      await zero();
      await engine.forwardBackward(batch, { type: "cross-entropy" });
      const gradients = await engine.gradients();
      await zero();
      const weights = await engine.exportWeights();
      // Along the gradient itself, so that one difference tests every entry.
      const norm = Math.hypot(...gradients);
      const lossAt = async (distance: number) => {
        await other.setGradients(new Float32Array(gradients.length));
        let offset = 0;
        const parameters = weights.parameters.map(({ name, shape, data }) => {
          const moved = data.map((value, i) => value + (distance * gradients[offset + i]!) / norm);
          offset += data.length;
          return { name, shape, data: moved };
        });
        await other.loadWeights(sealWeights({ policyVersion: 0, parameters }));
        return (await other.forwardBackward(batch, { type: "cross-entropy" })).loss;
      };
      const step = 0.01;
      const slope = ((await lossAt(step)) - (await lossAt(-step))) / (2 * step);
      expect(Math.abs(slope / norm - 1)).toBeLessThan(0.01);
      await other.loadWeights(weights);
      await other.setGradients(new Float32Array(gradients.length));
    });

    test("steps as AdamW does, hands its weights on, and saves what another goes on from", async () => {
      const version = engine.policyVersion;
      const before = await engine.exportWeights();
      await zero();
      const size = (await engine.gradients()).length;
      await engine.setGradients(Float32Array.from({ length: size }, (_, i) => (i % 2 === 0 ? 0.3 : -0.3)));
      const { gradNorm } = await engine.optimStep({ learningRate: 0.01, weightDecay: 0.5, maxGradNorm: 1 });
      expect(gradNorm).toBeCloseTo(0.3 * Math.sqrt(size), 3);
      expect(engine.policyVersion).toBe(version + 1);
      const after = await engine.exportWeights();
      let offset = 0;
      after.parameters.forEach(({ data, shape }, index) => {
        const expected = before.parameters[index]!.data.map((old, i) => {
          const decay = shape.length > 1 ? 0.01 * 0.5 * old : 0;
          return old + ((offset + i) % 2 === 0 ? -0.01 : 0.01) - decay;
        });
        expectClose(data, expected, 4);
        offset += data.length;
      });
      await other.loadWeights(after);
      expect(await other.exportWeights()).toEqual(after);
      expect(other.policyVersion).toBe(engine.policyVersion);
      const saving = engine.save();
      await zero();
      await engine.setGradients(new Float32Array(size).fill(0.1));
      const stepping = engine.optimStep({ learningRate: 0.01 }); // what is saved is what was before it
      const saved = await wholeOf(saving);
      await stepping;
      for (const each of [engine, other]) await each.load(piecesOf(saved, 999));
      for (const each of [engine, other]) {
        await each.forwardBackward(randomBatch(4, 6, 3), loss);
        await each.optimStep({ learningRate: 0.01 });
      }
      expect(await other.exportWeights()).toEqual(await engine.exportWeights());
    });

    test("refuses weights, checkpoints and gradients that are not right, and stays as it was", async () => {
      const before = await engine.exportWeights();
      const saved = await wholeOf(engine.save());
      const [first, ...rest] = before.parameters;
      const mismatch = { code: "engine.weights-mismatch" };
      await expect(engine.loadWeights({ ...before, checksum: "0" })).rejects.toMatchObject(mismatch);
      await expect(engine.loadWeights({ ...before, parameters: rest })).rejects.toMatchObject(mismatch);
      const renamed = { ...before, parameters: [{ ...first!, name: "another" }, ...rest] };
      await expect(engine.loadWeights(renamed)).rejects.toMatchObject(mismatch);
      const damaged = saved.map((byte, i) => (i === saved.length >> 1 ? byte ^ 1 : byte));
      for (const wrong of [damaged, saved.subarray(0, -1), new Uint8Array(0)])
        await expect(engine.load([wrong])).rejects.toMatchObject({ code: "checkpoint.corrupt" });
      const broken = new Error("a file of it is gone");
      const pieces = async function* () {
        yield saved.subarray(0, saved.length >> 1);
        throw broken;
      };
      await expect(engine.load(pieces())).rejects.toBe(broken);
      const size = (await engine.gradients()).length;
      await engine.setGradients(new Float32Array(size).fill(Number.NaN));
      await expect(engine.optimStep({ learningRate: 0.1 })).rejects.toMatchObject({ code: "engine.diverged" });
      await zero();
      expect(await engine.exportWeights()).toEqual(before);
    });

    test("refuses to compute while released, answers what the host holds, and is restored as it was", async () => {
      const before = await engine.exportWeights();
      const expected = await engine.generate(prompts, sampling);
      await engine.pause();
      const running = engine.generate(prompts, sampling);
      const ended = expect(running).rejects.toMatchObject({ code: "engine.released" });
      await engine.release();
      await ended;
      engine.resume();
      expect(engine.memory().residentBytes).toBe(0);
      const released = { code: "engine.released" };
      await expect(engine.generate(prompts, sampling)).rejects.toMatchObject(released);
      await expect(engine.forwardBackward(randomBatch(2, 6, 1), loss)).rejects.toMatchObject(released);
      expect(await engine.exportWeights()).toEqual(before);
      await engine.restore();
      expectAlike(await engine.generate(prompts, sampling), expected);
    });

    test.skipIf(kind !== "torch")("tells what each tag holds, and releases and restores it by itself", async () => {
      const expected = await engine.generate(prompts, sampling);
      const before = engine.memory();
      // What trains stays in the memory of the host, where it computes.
      expect(before.tags?.map(({ tag, bytes }) => [tag, bytes]).toSorted()).toEqual([
        ["cache", before.residentBytes],
        ["optimiser", 0],
        ["weights", 0],
      ]);
      expect(before.residentBytes).toBeGreaterThan(0);
      const rows = { rows: 1, columns: 3, tokens: Int32Array.of(3, 1, 4) };
      const acts = {
        generate: () => engine.generate(prompts, sampling),
        score: () => engine.logprobs(rows),
        train: () => engine.forwardBackward(randomBatch(2, 6, 1), loss),
      };
      const needs = { cache: ["generate"], weights: ["generate", "score", "train"], optimiser: ["train"] } as const;
      for (const [tag, refused] of Object.entries(needs) as [keyof typeof needs, readonly string[]][]) {
        await engine.release([tag]);
        expect(engine.memory()).toMatchObject({ loadedBytes: before.loadedBytes, tags: before.tags });
        if (tag === "cache") expect(engine.memory().residentBytes).toBe(0);
        for (const [name, act] of Object.entries(acts)) {
          if (!refused.includes(name)) await act();
          else
            await expect(act()).rejects.toMatchObject({
              code: "engine.released",
              message: expect.stringContaining(tag),
            });
        }
        await engine.restore([tag]);
      }
      await zero();
      expectAlike(await engine.generate(prompts, sampling), expected);
    });

    describeGeneration(kind, lacks, async () => {
      const { parameters } = await other.exportWeights();
      await other.loadWeights(sealWeights({ policyVersion: 0, parameters }));
      const changed = parameters.map(({ name, shape, data }) => ({ name, shape, data: data.map((x) => 2 * x + 1) }));
      return {
        engine: other,
        score: (tokens, temperature) =>
          other.logprobs({ rows: 1, columns: tokens.length, tokens, temperatures: Float32Array.of(temperature) }),
        weights: [await other.exportWeights(), sealWeights({ policyVersion: 0, parameters: changed })],
        close: async () => {},
      };
    });
  });
});

describe.skipIf(reason)(reason ?? "an engine in another process", () => {
  const callTimeoutMs = 15_000;
  // Tests follow one another on these two; what ends one of them comes last.
  let own: TorchProcess;
  let engine: TorchEngine;
  beforeAll(async () => {
    [own, engine] = await Promise.all([
      TorchProcess.start(TransformerConfig.parse(smallConfig), TorchConfig.parse(torch)),
      TorchEngine.create(smallConfig, { ...torch, callTimeoutMs }),
    ]);
  });
  afterAll(() => Promise.all([own?.end(), engine?.close()]));
  const ended = async (pid: number) => {
    while (true) {
      try {
        process.kill(pid, 0);
      } catch {
        return;
      }
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  };

  test("writes to a file what it would send, of the copy that was made last", async () => {
    const path = join(await mkdtemp(join(tmpdir(), "treadle-saved-")), "engine");
    onTestFinished(() => rm(dirname(path), { recursive: true }));
    const earlier = engine.save();
    const sent = await wholeOf(engine.save());
    await expect(earlier.writeTo(path)).rejects.toThrow("another has been made since");
    const { sizeBytes, sha256 } = await engine.save().writeTo(path);
    const file = await readFile(path);
    expect(file.equals(sent)).toBe(true);
    expect([sizeBytes, sha256]).toEqual([file.byteLength, createHash("sha256").update(file).digest("hex")]);
    const { policyVersion } = engine;
    await engine.setGradients(new Float32Array(engine.numTrained).fill(0.1));
    await engine.optimStep({ learningRate: 0.01 });
    expect(Buffer.compare(await wholeOf(engine.save()), sent)).not.toBe(0);
    const saved = (at: string) => Object.assign(piecesOf(new Uint8Array(0)), { checkedPath: async () => at });
    await engine.load(saved(path));
    expect(engine.policyVersion).toBe(policyVersion);
    expect(Buffer.compare(await wholeOf(engine.save()), sent)).toBe(0);
    const gone = { code: "checkpoint.corrupt", message: expect.stringContaining("cannot be read") };
    await expect(engine.load(saved("/nowhere/engine"))).rejects.toMatchObject(gone);
    expect(Buffer.compare(await wholeOf(engine.save()), sent)).toBe(0);
    await expect(engine.save().writeTo("/nowhere/engine")).rejects.toMatchObject({
      message: expect.stringContaining("No such file"),
    });
  });

  test("does nothing twice for a turn that is repeated, and refuses an older one (TS2)", async () => {
    const client = await TorchClient.create(own, patient);
    const { epoch } = (await client.unary("Describe", {})) as { epoch: string };
    const tokens = Int32Array.of(1, 2, 3, 4);
    const weights = Float32Array.of(0, 1, 1, 1);
    const data = Buffer.concat([Buffer.from(tokens.buffer), Buffer.from(weights.buffer)]);
    const send = (turn: object) =>
      client.upload(
        "ForwardBackward",
        { turn, rows: 1, columns: 4, arrays: ["tokens", "weights"], loss: { cross_entropy: {} } },
        [data],
      );
    const gradients = () => wholeOf(client.download("Read", { state: "GRADIENTS" }));
    const [first, again] = await Promise.all([send({ epoch, sequence: 1 }), send({ epoch, sequence: 1 })]);
    expect(again).toEqual(first);
    const once = await gradients();
    expect(await send({ epoch, sequence: 1 })).toEqual(first);
    expect(await gradients()).toEqual(once);
    const step = { learning_rate: 0.1, scale: 1, beta1: 0.9, beta2: 0.99, epsilon: 1e-8, weight_decay: 0 };
    const stepped = await client.unary("OptimStep", { ...step, turn: { epoch, sequence: 2 } });
    expect(await client.unary("OptimStep", { ...step, turn: { epoch, sequence: 2 } })).toEqual(stepped);
    expect(stepped).toMatchObject({ policy_version: 1 });
    for (const turn of [
      { epoch, sequence: 1 },
      { epoch: "another", sequence: 3 },
    ])
      await expect(send(turn)).rejects.toMatchObject({ code: "engine.invalid-request" });
    client.close();
  });

  test("listens where only its user may look, and answers nobody without its token (TS1, TP2)", async () => {
    const client = await TorchClient.create(
      Object.assign(Object.create(own), { token: "guessed", address: own.address }),
      patient,
    );
    await expect(client.unary("Describe", {})).rejects.toThrow("no token");
    expect((await stat(dirname(own.address.slice("unix:".length)))).mode & 0o777).toBe(0o700);
    client.close();
  });

  test("a device that is not there is refused with what to do, before anything is read", async () => {
    const client = await TorchClient.create(own, patient);
    const { device } = (await client.unary("Health", {})) as { device: string };
    client.close();
    const created = TorchEngine.create(smallConfig, { ...torch, device: "cuda" });
    if (device.startsWith("cuda")) return (await created).close();
    await expect(created).rejects.toMatchObject({
      code: "config.invalid",
      message: expect.stringContaining("set engine.device to 'cpu'"),
    });
  });

  test("a process that is stopped fails its calls at their deadline (TO2)", async () => {
    const client = await TorchClient.create(own, { ...patient, callTimeoutMs: 2_000 });
    process.kill(own.pid!, "SIGSTOP");
    await expect(client.unary("Describe", {})).rejects.toMatchObject({
      code: "service.failed",
      message: expect.stringContaining("within 2000 ms"),
    });
    client.close();
    await own.end();
    await ended(own.pid!);
  });

  test("an abort that comes before all prompts are sent is none of a bad request", async () => {
    const running = engine.generate(prompts, sampling);
    engine.abort();
    expect(await running).toHaveLength(prompts.length);
  });

  test("repeats a call that had no answer, which counts once (TO1)", async () => {
    const batch = randomBatch(2, 6, 1);
    await engine.forwardBackward(batch, { type: "cross-entropy" });
    const expected = await engine.gradients();
    await engine.setGradients(new Float32Array(expected.length));
    process.kill(engine.pid!, "SIGSTOP");
    const repeated = engine.forwardBackward(batch, { type: "cross-entropy" });
    // The first call's deadline passes while the process is stopped.
    await new Promise((resolve) => setTimeout(resolve, callTimeoutMs + 500));
    process.kill(engine.pid!, "SIGCONT");
    await repeated;
    expectClose(await engine.gradients(), expected, 5);
  });

  test("a process that is killed fails every call that waits and every later one, and says how it ended (TO2, TP3)", async () => {
    const { pid } = engine;
    await engine.pause();
    const failed = expect(engine.generate(prompts, sampling)).rejects.toMatchObject({
      code: "service.failed",
      message: expect.stringContaining("SIGKILL"),
    });
    process.kill(pid!, "SIGKILL");
    await failed;
    expect(await engine.ended).toMatchObject({ code: "service.failed", message: expect.stringContaining("SIGKILL") });
    await expect(engine.forwardBackward(randomBatch(2, 6, 1), { type: "cross-entropy" })).rejects.toMatchObject({
      code: "service.failed",
      message: expect.stringContaining("SIGKILL"),
    });
  });

  test("the process ends with its parent, however that dies (TP1)", async () => {
    const source = new URL("../src/index.ts", import.meta.url).href;
    const script = `const { TorchEngine } = await import(${JSON.stringify(source)});
      const engine = await TorchEngine.create(${JSON.stringify(smallConfig)}, { kind: "torch" });
      process.stdout.write(String(engine.pid), () => process.kill(process.pid, "SIGKILL"));`;
    const flags = ["--conditions=source", "--import", "tsx", "--input-type=module", "-e", script];
    let said = "";
    try {
      execFileSync(process.execPath, flags, { encoding: "utf8", stdio: ["ignore", "pipe", "inherit"] });
    } catch (error) {
      said = (error as { stdout: string }).stdout;
    }
    expect(Number(said)).toBeGreaterThan(0);
    await ended(Number(said));
  });

  test("a model of a local folder, its heads grouped and its embeddings tied, says what PyTorch says, and ends with its engine (TP1)", async () => {
    const folder = await mkdtemp(join(tmpdir(), "treadle-model-"));
    onTestFinished(() => rm(folder, { recursive: true, force: true }));
    const script = fileURLToPath(new URL("../../../python/treadle_torch/tests/make_model.py", import.meta.url));
    const rows = [
      [1, 2, 3, 4, 5, 6],
      [6, 0, 6, 0, 1, 1],
    ];
    const families = ["qwen3", "llama"];
    const said = execFileSync(python, [script, folder, JSON.stringify(rows), ...families], { encoding: "utf8" });
    const lines = said.trim().split("\n").slice(-families.length);
    for (const [index, family] of families.entries()) {
      const read = await TorchEngine.create(smallConfig, { ...torch, path: join(folder, family) });
      onTestFinished(() => read.close());
      const batch = { rows: rows.length, columns: 6, tokens: Int32Array.from(rows.flat()) };
      expectClose(await read.logprobs(batch), (JSON.parse(lines[index]!) as number[][]).flat(), 5);
      const [completion] = await read.generate([Int32Array.of(1, 2)], { ...sampling, maxTokens: 4 });
      const tokens = Int32Array.of(1, 2, ...completion!.tokens);
      const scored = await read.logprobs({ rows: 1, columns: tokens.length, tokens });
      expectClose(completion!.logprobs, scored.subarray(2), 5);
      await read.close();
      await ended(read.pid!);
    }
  });

  test("in bfloat16 it samples what it scores, hands on what it has trained exactly, and begins released where it is asked to", async () => {
    const [trained, sampled] = await Promise.all([
      TorchEngine.create(smallConfig, { ...torch, dtype: "bfloat16", checkpointActivations: true }),
      TorchEngine.create(smallConfig, { ...torch, dtype: "bfloat16" }, { loaded: false }),
    ]);
    onTestFinished(async () => {
      await Promise.all([trained.close(), sampled.close()]);
    });
    await expect(sampled.generate(prompts, sampling)).rejects.toMatchObject({ code: "engine.released" });
    await sampled.restore();
    await trained.forwardBackward(randomBatch(4, 6, 3), { type: "cross-entropy" });
    await trained.optimStep({ learningRate: 1e-4 });
    const weights = await trained.exportWeights();
    const inBfloat16 = (value: number) => (new Uint32Array(Float32Array.of(value).buffer)[0]! & 0xffff) === 0;
    expect(weights.parameters.every(({ data }) => data.every(inBfloat16))).toBe(false); // float32 is what is trained
    await sampled.loadWeights(weights);
    expect((await sampled.exportWeights()).parameters.every(({ data }) => data.every(inBfloat16))).toBe(true);
    const completions = await sampled.generate(prompts, sampling);
    for (const [index, { tokens, logprobs }] of completions.entries()) {
      const prompt = prompts[index]!;
      const row = Int32Array.of(...prompt, ...tokens);
      const scored = await trained.logprobs({ rows: 1, columns: row.length, tokens: row });
      for (const [at, logprob] of logprobs.entries())
        expect(Math.abs(logprob - scored[prompt.length + at]!)).toBeLessThan(0.1);
    }
  });
});

test("an interpreter without PyTorch is named, with the command that installs it", async () => {
  await expect(TorchEngine.create(smallConfig, { ...torch, python: "/nowhere/python" })).rejects.toMatchObject({
    code: "config.invalid",
    message: expect.stringMatching(/pip install "\/.+\/python\/treadle_torch"/),
  });
});
