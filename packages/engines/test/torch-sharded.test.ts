/** One model over several Python processes computes what it does in one, and all of them end together. */
import { execFileSync, spawn } from "node:child_process";
import { createHash, randomUUID } from "node:crypto";
import { once } from "node:events";
import { readdirSync, readFileSync } from "node:fs";
import { mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { fileURLToPath } from "node:url";
import type { LossSpec } from "@treadle/contracts";
import { TorchEngine } from "@treadle/engines";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from "vitest";
import { childrenOf } from "../../../test/support/cluster.ts";
import { lacksTorch, python } from "../../../test/support/torch.ts";
import { wholeOf } from "../src/testing/whole-of.ts";
import { expectClose } from "./expect-close.ts";
import { randomBatch, smallConfig } from "./small-transformer.ts";

const reason = lacksTorch();
const withValues = { ...smallConfig, valueHead: true };
const losses: readonly LossSpec[] = [
  { type: "cross-entropy" },
  {
    type: "policy-gradient",
    ratio: "token",
    clipLow: 0.2,
    clipHigh: 0.28,
    klCoefficient: 0.1,
    entropyCoefficient: 0.01,
    value: { coefficient: 0.5, clip: 0.2 },
  },
  { type: "policy-gradient", ratio: "sequence", clipLow: 0.2, clipHigh: 0.2, klCoefficient: 0, entropyCoefficient: 0 },
];
const step = { learningRate: 0.02, scale: 0.1, maxGradNorm: 1, weightDecay: 0.1 };

const ofEngine = (pid: number): number[] => childrenOf(pid, "treadle_torch");
const isThere = (pid: number): boolean => {
  try {
    return readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1]![0] !== "Z";
  } catch {
    return false;
  }
};
const gone = (pids: readonly number[]) =>
  vi.waitFor(() => expect(pids.filter(isThere)).toEqual([]), { timeout: 60_000, interval: 100 });

describe.skipIf(reason)(reason ?? "a model over several processes", () => {
  let folder: string;
  let alone: TorchEngine;
  let two: TorchEngine;
  let three: TorchEngine;
  const create = (processes: number, { dtype = "float32" as "float32" | "bfloat16", loaded = true } = {}) =>
    TorchEngine.create(withValues, { kind: "torch", dtype, weightsFolder: folder }, { processes, loaded });
  beforeAll(async () => {
    folder = await mkdtemp(join(tmpdir(), "treadle-sharded-"));
    alone = await create(1);
    [two, three] = await Promise.all([create(2, { loaded: false }), create(3)]);
  }, 600_000);
  afterAll(async () => {
    await Promise.all([alone, two, three].map((engine) => engine?.close()));
    await rm(folder, { recursive: true, force: true });
  });
  const dataOf = async (engine: TorchEngine): Promise<number[]> =>
    (await engine.exportWeights()).parameters.flatMap(({ data }) => [...data]);
  /** Of one that is not loaded yet; it ends with the weights it began with. */
  const answersFirst = async (engine: TorchEngine) => {
    const train = async () => {
      await engine.forwardBackward(randomBatch(3, 6, 1), losses[1]!);
      await engine.optimStep(step);
      return dataOf(engine);
    };
    const exported = await engine.exportWeights();
    const saved = await wholeOf(engine.save());
    await engine.restore();
    expect(await engine.exportWeights()).toEqual(exported);
    const after = await train();
    await engine.load([saved]);
    expect(await engine.exportWeights()).toEqual({ ...exported, policyVersion: 0 });
    expect(await train()).toEqual(after);
    await engine.load([saved]);
  };
  const level = async () => {
    const state = await wholeOf(alone.save());
    await Promise.all([two, three].map((engine) => engine.load([state])));
  };

  test("begins with the weights of one process, whatever parts do not divide", async () => {
    expect(ofEngine(two.pid!)).toHaveLength(1);
    expect(ofEngine(three.pid!)).toHaveLength(2);
    const expected = await alone.exportWeights();
    for (const engine of [two, three]) expect(await engine.exportWeights()).toEqual(expected);
  });

  test("answers for its weights before it is first loaded, and trains as one that was not asked", () =>
    answersFirst(two));

  test("SD1: has its losses, gradients, norms and steps, of any rows, fewer than there are processes, too", async () => {
    await level();
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.tuple(fc.nat(9), fc.integer({ min: 2, max: 6 }), fc.nat()), {
          minLength: 1,
          maxLength: 3,
        }),
        fc.nat(losses.length - 1),
        async (batches, which) => {
          const loss = losses[which]!;
          for (const [rows, columns, seed] of batches) {
            const batch = randomBatch(rows, columns, seed);
            const expected = await alone.forwardBackward(batch, loss);
            for (const engine of [two, three]) {
              const told = await engine.forwardBackward(batch, loss);
              expectClose(Object.values(told), Object.values(expected));
              expect(Object.keys(told)).toEqual(Object.keys(expected));
            }
          }
          const gradients = await alone.gradients();
          const { gradNorm } = await alone.optimStep(step);
          const [weights, moments] = [await dataOf(alone), await wholeOf(alone.save())];
          for (const engine of [two, three]) {
            expectClose(await engine.gradients(), gradients);
            expectClose([(await engine.optimStep(step)).gradNorm], [gradNorm]);
            expectClose(await dataOf(engine), weights, 1e-3);
            await engine.load([moments]); // what rounding has moved apart does not add up
            expect(await wholeOf(engine.save())).toEqual(moments);
            expect(engine.policyVersion).toBe(alone.policyVersion);
          }
        },
      ),
      { numRuns: 12 },
    );
  });

  test("scores and values rows as one process does, those without weight left 0", async () => {
    await level();
    for (const rows of [0, 1, 2, 7]) {
      const { tokens, weights } = randomBatch(rows, 6, rows);
      for (const given of [
        { rows, columns: 6, tokens },
        { rows, columns: 6, tokens, weights },
      ]) {
        const [logprobs, values] = [await alone.logprobs(given), await alone.values(given)];
        for (const engine of [two, three]) {
          expectClose(await engine.logprobs(given), logprobs);
          expectClose(await engine.values(given), values);
        }
      }
    }
  });

  test("goes on from a checkpoint that any number of processes has saved", async () => {
    await level();
    const batch = randomBatch(5, 6, 3);
    for (const engine of [alone, two, three]) {
      await engine.forwardBackward(batch, losses[1]!);
      await engine.optimStep(step);
    }
    const [saved, expected] = [await wholeOf(three.save()), await dataOf(three)];
    for (const engine of [alone, two]) {
      await engine.load([saved]);
      expect(await dataOf(engine)).toEqual(expected);
      expect(engine.policyVersion).toBe(three.policyVersion);
    }
    const broken = Uint8Array.from(saved);
    broken[broken.length - 40]! ^= 1;
    await expect(two.load([broken])).rejects.toMatchObject({ code: "checkpoint.corrupt" });
    expect(await dataOf(two)).toEqual(expected);
  });

  test("each process writes a file of its own, and any number of processes goes on from them (SHC3)", async () => {
    await two.restore();
    await level();
    const own = await mkdtemp(join(tmpdir(), "treadle-checkpoint-"));
    onTestFinished(() => rm(own, { recursive: true }));
    const train = async () => {
      await three.forwardBackward(randomBatch(5, 6, 7), losses[1]!);
      await three.optimStep(step);
    };
    const save = (files = three.saveFiles()!) =>
      Promise.all(
        files.map(async (file) => {
          const path = join(own, `engine-${file.name}`);
          return { path, told: await file.writeTo(path) };
        }),
      );
    await train();
    const [expected, { policyVersion }] = [await wholeOf(three.save()), three];
    const earlier = three.saveFiles()!;
    const temporaries = async () => (await readdir(tmpdir())).filter((name) => name.startsWith("treadle-checkpoint-"));
    const before = await temporaries();
    const saving = three.saveFiles()!;
    await train(); // what is copied does not change
    await expect(save(earlier)).rejects.toThrow("another has been made since");
    const elsewhere: Buffer[] = [];
    for (const each of saving) elsewhere.push(Buffer.from(await wholeOf(each))); // as a worker sends them
    for await (const _ of three.saveFiles()![0]!) break;
    expect(await temporaries()).toEqual(before);
    const saved = await save();
    // The later copy's files, and the earlier one's as pieces.
    expect(saved.map(({ path }) => basename(path))).toEqual([
      "engine-00001-of-00003.safetensors",
      "engine-00002-of-00003.safetensors",
      "engine-00003-of-00003.safetensors",
    ]);
    for (const [at, { path, told }] of saved.entries()) {
      const file = await readFile(path);
      expect(told).toEqual({ sizeBytes: file.byteLength, sha256: createHash("sha256").update(file).digest("hex") });
      expect(file.byteLength).toBeLessThan(expected.byteLength);
      expect(file.equals(elsewhere[at]!)).toBe(false);
      await writeFile(path, elsewhere[at]!);
    }
    const paths = saved.map(({ path }) => path);
    const load = (engine: TorchEngine, from: readonly string[]) =>
      engine.loadFiles(from.map((path) => ({ checkedPath: async () => path })));
    expect(alone.saveFiles()).toBeUndefined();
    for (const engine of [alone, two, three]) {
      await load(engine, paths.toReversed());
      expect(await wholeOf(engine.save())).toEqual(expected);
      expect(engine.policyVersion).toBe(policyVersion);
    }
    const bytes = await readFile(paths[2]!);
    bytes[bytes.length - 5]! ^= 1;
    await writeFile(paths[2]!, bytes);
    for (const engine of [alone, two]) {
      // In the last row, which is the last process's.
      const altered = { code: "checkpoint.corrupt", message: expect.stringMatching(/'second_moments\/.*has checksum/) };
      await expect(load(engine, paths)).rejects.toMatchObject(altered);
      const lacking = {
        code: "checkpoint.corrupt",
        message: expect.stringContaining("that of process '1' is missing"),
      };
      await expect(load(engine, [paths[0]!, paths[2]!])).rejects.toMatchObject(lacking);
      expect(await wholeOf(engine.save())).toEqual(expected);
    }
    await train();
    await expect(
      save(three.saveFiles()!.map((file) => ({ ...file, writeTo: () => file.writeTo("/nowhere/else") }))),
    ).rejects.toMatchObject({ code: "engine.invalid-request" });
    const [unwritable] = three.saveFiles()!;
    await expect(unwritable!.writeTo(`/nowhere/${unwritable!.name}`)).rejects.toThrow("No such file");
    await level();
  });

  test("publishes its weights whole, and takes them by a ticket, as bytes, and a gradient from elsewhere", async () => {
    await level();
    await two.forwardBackward(randomBatch(3, 6, 1), losses[0]!);
    await two.optimStep(step);
    const publication = await two.publish();
    expect(publication).toHaveProperty("ticket");
    const { ticket } = publication as { ticket: Parameters<TorchEngine["loadTicket"]>[0] };
    await Promise.all([alone, three].map((engine) => engine.loadTicket(ticket)));
    const expected = await dataOf(two);
    expect(await dataOf(alone)).toEqual(expected);
    expect(await dataOf(three)).toEqual(expected);
    const { ticketChecksum: _, ...weights } = await alone.exportWeights();
    await two.loadWeights(weights);
    expect(await dataOf(two)).toEqual(expected);
    const given = Float32Array.from({ length: two.numParameters }, (_, at) => Math.sin(at));
    await three.setGradients(given);
    expect(await three.gradients()).toEqual(given);
  });

  test("SD2: is as it was after a release, and refuses what cannot be without harm to any process", async () => {
    await level();
    const expected = await dataOf(two);
    await two.forwardBackward(randomBatch(3, 6, 2), losses[0]!);
    const gradients = await two.gradients();
    await two.release();
    await expect(two.forwardBackward(randomBatch(2, 6, 1), losses[0]!)).rejects.toMatchObject({
      code: "engine.released",
    });
    expect(await dataOf(two)).toEqual(expected);
    await two.restore();
    expect(await two.gradients()).toEqual(gradients);
    const sampling = { maxTokens: 2, temperature: 1, stopTokens: [], seed: 1 };
    await expect(two.generate([Int32Array.of(1)], sampling)).rejects.toMatchObject({
      code: "engine.invalid-request",
      message: expect.stringContaining("trains and scores"),
    });
    await two.setGradients(gradients.fill(Number.NaN));
    await expect(two.optimStep(step)).rejects.toMatchObject({ code: "engine.diverged" });
    await two.setGradients(gradients.fill(0));
    await two.optimStep(step);
    expect(two.policyVersion).toBe(alone.policyVersion + 1);
  });

  test("in bfloat16 it answers before it is first loaded, too, and has the steps of one process within its rounding", async () => {
    const dtype = "bfloat16";
    const [one, both] = await Promise.all([create(1, { dtype }), create(2, { dtype, loaded: false })]);
    onTestFinished(() => Promise.all([one.close(), both.close()]).then(() => {}));
    await answersFirst(both);
    for (let seed = 0; seed < 3; seed++) {
      for (const engine of [one, both]) await engine.forwardBackward(randomBatch(6, 6, seed), losses[1]!);
      expectClose(await both.gradients(), await one.gradients(), 0.05);
      const [own, other] = [await one.optimStep(step), await both.optimStep(step)];
      expectClose([other.gradNorm], [own.gradNorm], 0.03);
    }
    const [own, other] = [await dataOf(one), await dataOf(both)];
    const distance = Math.hypot(...own.map((value, at) => value - other[at]!));
    expect(distance / Math.hypot(...own)).toBeLessThan(0.02);
  });

  test("a model of a folder is read by one process, with activations made again; what its config.json does not say is refused", async () => {
    const model = await mkdtemp(join(tmpdir(), "treadle-model-"));
    onTestFinished(() => rm(model, { recursive: true, force: true }));
    const script = fileURLToPath(new URL("../../../python/treadle_torch/tests/make_model.py", import.meta.url));
    execFileSync(python, [script, model, "[[1, 2, 3, 4, 5, 6]]", "qwen3"]);
    const settings = { kind: "torch", path: join(model, "qwen3"), checkpointActivations: true } as const;
    const [one, both] = await Promise.all(
      [1, 2].map((processes) => TorchEngine.create(smallConfig, settings, { processes })),
    );
    onTestFinished(() => Promise.all([one?.close(), both?.close()]).then(() => {}));
    expect(await both!.exportWeights()).toEqual(await one!.exportWeights());
    for (const engine of [one!, both!]) await engine.forwardBackward(randomBatch(5, 6, 4), losses[2]!);
    expectClose(await both!.gradients(), await one!.gradients());
    const longer = { ...smallConfig, contextLength: 64 };
    await expect(TorchEngine.create(longer, settings, { processes: 2 })).rejects.toMatchObject({
      code: "config.invalid",
      message: expect.stringContaining("the model reads '6' tokens"),
    });
    const untied = { ...settings, path: join(model, "qwen3-untied") };
    await expect(TorchEngine.create(smallConfig, untied, { processes: 2 })).rejects.toMatchObject({
      code: "config.invalid",
      message: expect.stringContaining("are not those that its config.json says"),
    });
  }, 300_000);

  test("none outlives its parent, a stopped one included (PF1)", async () => {
    const source = new URL("../src/index.ts", import.meta.url).href;
    const script = `const { TorchEngine } = await import(${JSON.stringify(source)});
      const engine = await TorchEngine.create(${JSON.stringify(smallConfig)}, { kind: "torch" }, { processes: 2 });
      process.stdout.write(String(engine.pid));
      setInterval(() => {}, 1000);`;
    const flags = ["--conditions=source", "--import", "tsx", "--input-type=module", "-e", script];
    const parent = spawn(process.execPath, flags, { stdio: ["ignore", "pipe", "inherit"] });
    onTestFinished(() => void parent.kill("SIGKILL"));
    const [said] = await once(parent.stdout, "data");
    const pid = Number(String(said));
    const pids = [pid, ...ofEngine(pid)];
    expect(pids).toHaveLength(2);
    process.kill(pids[1]!, "SIGSTOP");
    parent.kill("SIGKILL");
    await gone(pids);
  });

  test("a configuration that is refused leaves no process", async () => {
    const mark = `TREADLE_TEST_MARK=${randomUUID()}`;
    vi.stubEnv("TREADLE_TEST_MARK", mark.split("=")[1]!);
    onTestFinished(() => void vi.unstubAllEnvs());
    const created = TorchEngine.create({ ...withValues, width: 6, heads: 2 }, { kind: "torch" }, { processes: 2 });
    await expect(created).rejects.toMatchObject({ code: "config.invalid" });
    const isMarked = (pid: number): boolean => {
      try {
        return pid !== process.pid && readFileSync(`/proc/${pid}/environ`, "latin1").split("\0").includes(mark);
      } catch {
        return false;
      }
    };
    const left = () =>
      readdirSync("/proc")
        .map(Number)
        .filter((pid) => pid > 0 && isMarked(pid));
    await vi.waitFor(() => expect(left()).toEqual([]), { timeout: 30_000, interval: 100 });
  });

  test("one process that is stopped ends the engine at a call's deadline, and leaves none", async () => {
    const settings = { kind: "torch", callTimeoutMs: 15_000 } as const;
    const engine = await TorchEngine.create(withValues, settings, { processes: 2 });
    onTestFinished(() => engine.close());
    const pids = [engine.pid!, ...ofEngine(engine.pid!)];
    process.kill(pids[1]!, "SIGSTOP");
    const failed = engine.forwardBackward(randomBatch(3, 6, 1), losses[0]!);
    await expect(failed).rejects.toMatchObject({ code: "service.failed" });
    await engine.ended;
    await gone(pids);
  }, 120_000);

  test("one process that is killed ends the engine, which says so, and leaves none", async () => {
    const pids = [three.pid!, ...ofEngine(three.pid!)];
    process.kill(pids[2]!, "SIGKILL");
    const failed = three.forwardBackward(randomBatch(3, 6, 1), losses[0]!);
    await expect(failed).rejects.toMatchObject({ code: "service.failed" });
    expect((await three.ended).message).toContain("process '2' of the engine's '3' was ended by signal 9");
    await gone(pids);
  });
});
