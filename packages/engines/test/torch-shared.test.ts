/** Engines that sample and score in the process of a trainer, with the module that it trains. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { chmod, readdir, stat } from "node:fs/promises";
import { join } from "node:path";
import type { Completion, HostFiles, ReleasableTag, Sampling } from "@treadle/contracts";
import { SharedTorchEngine, TorchEngine } from "@treadle/engines";
import fc from "fast-check";
import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from "vitest";
import { lacksTorch } from "../../../test/support/torch.ts";
import { sealWeights } from "../src/parameters.ts";
import { chooseOffer, moduleOffers } from "../src/torch/module-offer.ts";
import { TorchClient } from "../src/torch/torch-client.ts";
import { describeGeneration } from "./generation-contract.ts";
import { randomBatch, smallConfig } from "./small-transformer.ts";

const reason = lacksTorch();
const model = { ...smallConfig, valueHead: true };
const torch = { kind: "torch", process: "shared", startTimeoutMs: 60_000 } as const;
const sampling: Sampling = { maxTokens: 3, temperature: 1, stopTokens: [], seed: 9 };
const rows = { rows: 2, columns: 6, tokens: Int32Array.of(1, 2, 3, 4, 5, 6, 6, 5, 4, 3, 2, 1) };

let numRuns = 0;
/** Names of files as those of one run. */
function hostFilesOf(): HostFiles {
  const runPrefix = `treadle-shared${process.pid}-${numRuns++}-`;
  return { folder: "/dev/shm", ownPrefix: `${runPrefix}1-`, leftPrefix: `${runPrefix}left-`, runPrefix };
}
const leftOf = async ({ folder, runPrefix }: HostFiles) =>
  (await readdir(folder)).filter((name) => name.startsWith(runPrefix));
const rankOf = (component: string, rank = 0, devices = ["cpu:0"], worldSize = 1) => ({
  component,
  rank,
  devices,
  worldSize,
});
const trainerOf = (hostFiles: HostFiles, options: Partial<Parameters<typeof TorchEngine.create>[1]> = {}) =>
  TorchEngine.create(model, { ...torch, ...options }, { hostFiles, offer: rankOf("actor") });
const attach = async (hostFiles: HostFiles, component = "rollout") => {
  const engine = await SharedTorchEngine.attach(model, torch, { rank: rankOf(component), hostFiles });
  await engine.restore();
  return engine;
};
const step = async (trainer: TorchEngine, seed = trainer.policyVersion) => {
  await trainer.forwardBackward(randomBatch(3, 6, seed), { type: "cross-entropy" });
  await trainer.optimStep({ learningRate: 0.05 });
};
const expectClose = (actual: ArrayLike<number>, expected: ArrayLike<number>) => {
  expect(actual.length).toBe(expected.length);
  for (let i = 0; i < actual.length; i++) expect(actual[i]).toBeCloseTo(expected[i]!, 5);
};
function expectAlike(actual: readonly Completion[], expected: readonly Completion[]) {
  expect(actual.map(({ tokens }) => [...tokens])).toEqual(expected.map(({ tokens }) => [...tokens]));
  for (const [index, { logprobs }] of actual.entries()) expectClose(logprobs, expected[index]!.logprobs);
}

describeGeneration("torch in its trainer's process", reason, async () => {
  const hostFiles = hostFilesOf();
  const trainer = await trainerOf(hostFiles);
  const sampler = await attach(hostFiles);
  const { parameters } = await trainer.exportWeights();
  const changed = parameters.map(({ name, shape, data }) => ({ name, shape, data: data.map((x) => 2 * x + 1) }));
  // It takes what its trainer has loaded, and is asked for it by the name that its trainer gives that.
  const engine = new Proxy(sampler, {
    get(target, key) {
      if (key === "loadWeights")
        return async (weights: Parameters<TorchEngine["loadWeights"]>[0]) => {
          await trainer.loadWeights(weights);
          await target.takeShared(trainer.shared!);
        };
      if (key === "weightsId") return target.weightsId && trainer.weightsId;
      const value: unknown = Reflect.get(target, key, target);
      return typeof value === "function" ? value.bind(target) : value;
    },
  });
  return {
    engine,
    score: (tokens, temperature) =>
      trainer.logprobs({ rows: 1, columns: tokens.length, tokens, temperatures: Float32Array.of(temperature) }),
    weights: [await trainer.exportWeights(), sealWeights({ policyVersion: 0, parameters: changed })],
    close: async () => {
      await sampler.close();
      await trainer.close();
      expect(await leftOf(hostFiles)).toEqual([]);
    },
  };
});

describe.skipIf(reason)(reason ?? "an engine in its trainer's process", () => {
  let hostFiles: HostFiles;
  let trainer: TorchEngine;
  let sampler: SharedTorchEngine;
  let scorer: SharedTorchEngine;
  let own: TorchEngine;
  beforeAll(async () => {
    hostFiles = hostFilesOf();
    [trainer, own] = await Promise.all([trainerOf(hostFiles), TorchEngine.create(model, { kind: "torch" })]);
    [sampler, scorer] = await Promise.all([attach(hostFiles), attach(hostFiles, "inference")]);
  }, 600_000);
  afterAll(() => Promise.all([sampler, scorer, trainer, own].map((engine) => engine?.close())));

  test("draws and scores as an engine of its own does with the same weights, and moves none", async () => {
    for (let round = 0; round < 3; round++) {
      await step(trainer);
      const prompts = fc.sample(
        fc
          .array(fc.integer({ min: 0, max: 6 }), { minLength: 1, maxLength: 5 })
          .map((tokens) => Int32Array.from(tokens)),
        { numRuns: 12, seed: round },
      );
      await own.loadWeights(await trainer.exportWeights());
      await Promise.all([sampler.takeShared(trainer.shared!), scorer.takeShared(trainer.shared!)]);
      for (const temperature of [1, 0.7]) {
        const drawn = { ...sampling, temperature, seed: round };
        expectAlike(await sampler.generate(prompts, drawn), await own.generate(prompts, drawn));
      }
      expect(await scorer.logprobs(rows)).toEqual(await own.logprobs(rows));
      expect(await scorer.values(rows)).toEqual(await own.values(rows));
      expect([sampler.policyVersion, scorer.policyVersion]).toEqual([trainer.policyVersion, trainer.policyVersion]);
      expect(sampler.memory().hostBytes).toBe(0);
    }
  });

  test("OM1 tells a step that it has not taken: by the versions of its completions, and by weights without a name", async () => {
    await step(trainer);
    await sampler.takeShared(trainer.shared!);
    const id = sampler.weightsId;
    expect(id).toBeDefined();
    await step(trainer);
    const completions = await sampler.generate([Int32Array.of(1)], sampling);
    expect(completions[0]!.policyVersion).toBe(trainer.policyVersion);
    expect([sampler.policyVersion, sampler.weightsId]).toEqual([trainer.policyVersion, undefined]);
    await sampler.takeShared(trainer.shared!);
    expect(sampler.weightsId).not.toBe(id);
    // Other weights of the same version have another name.
    const taken = sampler.weightsId;
    await trainer.loadWeights(await trainer.exportWeights());
    await sampler.takeShared(trainer.shared!);
    expect(sampler.policyVersion).toBe(trainer.policyVersion);
    expect([undefined, taken]).not.toContain(sampler.weightsId);
    const older = { ...trainer.shared!, policyVersion: trainer.policyVersion + 1 };
    await expect(sampler.takeShared(older)).rejects.toMatchObject({ code: "engine.weights-mismatch" });
    const another = sampler.takeShared({ ...trainer.shared!, process: "another" });
    await expect(another).rejects.toMatchObject({
      code: "service.failed",
      message: expect.stringContaining("actor/0"),
    });
  });

  test("EJ2 completions start over at each step of the trainer, and are of one version", async () => {
    const prompts = Array.from({ length: 300 }, (_, index) => Int32Array.of(1 + (index % 6)));
    const first = trainer.policyVersion;
    const generating = sampler.generate(prompts, { ...sampling, maxTokens: 5 });
    for (let at = 0; at < 4; at++) await step(trainer);
    const completions = await generating;
    const scoring = new Map<number, Completion[]>();
    for (const each of completions) scoring.set(each.policyVersion, [...(scoring.get(each.policyVersion) ?? []), each]);
    for (const version of scoring.keys()) {
      expect(version).toBeGreaterThanOrEqual(first);
      expect(version).toBeLessThanOrEqual(trainer.policyVersion);
    }
    // Those of the last version have its log-probabilities, whole.
    const last = completions.findIndex(({ policyVersion }) => policyVersion === trainer.policyVersion);
    if (last >= 0) {
      const tokens = Int32Array.of(...prompts[last]!, ...completions[last]!.tokens);
      const scored = await trainer.logprobs({ rows: 1, columns: tokens.length, tokens });
      for (const [at, logprob] of completions[last]!.logprobs.entries())
        expect(logprob).toBeCloseTo(scored[prompts[last]!.length + at]!, 4);
    }
  });

  test("MC2 what it pauses and aborts is its own", async () => {
    const prompts = Array.from({ length: 20 }, (_, index) => Int32Array.of(1 + (index % 6)));
    const expected = await sampler.generate(prompts, sampling);
    await sampler.pause();
    const waiting = sampler.generate(prompts, sampling);
    expectAlike(await scorer.generate(prompts, sampling), expected);
    expectAlike(await trainer.generate(prompts, sampling), expected);
    scorer.abort();
    sampler.resume();
    expectAlike(await waiting, expected);
  });

  test("OM2 changes nothing that is its trainer's: it refuses to, and so does the process", async () => {
    const refused = {
      code: "engine.invalid-request",
      message: expect.stringMatching(/shares those of 'actor\/0'.*'own'/),
    };
    for (const act of [
      () => sampler.loadWeights(),
      () => sampler.optimStep(),
      () => sampler.forwardBackward(),
      () => sampler.setGradients(),
      () => sampler.gradients(),
      () => sampler.exportWeights(),
      () => sampler.load(),
      async () => sampler.save()[Symbol.asyncIterator]().next(),
    ])
      await expect(act()).rejects.toMatchObject(refused);
    const [offer] = await moduleOffers(hostFiles);
    const never = new Promise<never>(() => {});
    const times = { callTimeoutMs: 10_000, healthTimeoutMs: 60_000 };
    const of = (client: string) =>
      TorchClient.create({ ...offer!, client, ended: never, end: () => expect.unreachable() }, times);
    const stranger = await of("nobody");
    onTestFinished(() => stranger.close());
    await expect(stranger.unary("Memory", {})).rejects.toMatchObject({
      message: expect.stringContaining("not attached"),
    });
    const attached = await of("somebody");
    onTestFinished(() => attached.close());
    const lease = attached.attach("somebody");
    onTestFinished(() => lease.cancel());
    lease.on("error", () => {});
    await once(lease, "data");
    const step = attached.unary("OptimStep", { learning_rate: 1 });
    await expect(step).rejects.toMatchObject({ code: "engine.invalid-request" });
    await expect(attached.unary("Publish", {})).rejects.toMatchObject({ code: "engine.invalid-request" });
    const twice = await of("somebody");
    onTestFinished(() => twice.close());
    const [error] = await once(
      twice.attach("somebody").on("data", () => {}),
      "error",
    ).catch((e: unknown) => [e]);
    expect(String(error)).toContain("another's");
  });

  test("MC1, MC2 released and restored by whoever, in any order, each computes exactly when it has restored what it needs", async () => {
    const clients = [trainer, sampler, scorer] as const;
    const tagSets: ReleasableTag[][] = [["weights"], ["cache"], ["weights", "cache"]];
    const action = fc.record({
      client: fc.integer({ min: 0, max: 2 }),
      tags: fc.constantFrom(...tagSets),
      restores: fc.boolean(),
      uses: fc.integer({ min: 0, max: 2 }),
    });
    await fc.assert(
      fc.asyncProperty(fc.array(action, { minLength: 1, maxLength: 12 }), async (actions) => {
        const has = clients.map(() => new Set<string>(["weights", "cache", "optimiser"]));
        for (const client of clients) await client.restore();
        for (const { client, tags, restores, uses } of actions) {
          await clients[client]![restores ? "restore" : "release"](tags);
          for (const tag of tags) has[client]![restores ? "add" : "delete"](tag);
          const can = (who: number, ...needs: string[]) => needs.every((tag) => has[who]!.has(tag));
          const outcome = (act: Promise<unknown>) =>
            act.then(
              () => true,
              (error: { code?: string }) => (error.code === "engine.released" ? false : Promise.reject(error)),
            );
          expect(await outcome(clients[uses]!.logprobs(rows))).toBe(can(uses, "weights"));
          expect(await outcome(clients[uses]!.generate([Int32Array.of(2)], sampling))).toBe(
            can(uses, "weights", "cache"),
          );
          expect(await outcome(step(trainer))).toBe(can(0, "weights", "optimiser"));
          // What a client does not have is none of its memory.
          for (const [who, each] of clients.entries())
            if (!can(who, "cache")) expect(each.memory().residentBytes).toBe(0);
        }
      }),
      { numRuns: 15 },
    );
    for (const client of clients) await client.restore();
  });
});

describe.skipIf(reason)(reason ?? "what shares a trainer's process", () => {
  test("finds the trainer on its device, waits for it, and says what it waited for where none comes", async () => {
    const hostFiles = hostFilesOf();
    const late = SharedTorchEngine.attach(model, torch, { rank: rankOf("rollout"), hostFiles });
    const trainer = await trainerOf(hostFiles);
    onTestFinished(() => trainer.close());
    const sampler = await late;
    await sampler.close();
    const other = hostFilesOf();
    const said: string[] = [];
    const missing = SharedTorchEngine.attach(
      model,
      { ...torch, startTimeoutMs: 300 },
      {
        rank: rankOf("rollout", 1, ["cpu:1"]),
        hostFiles: other,
        ...{ log: (line) => said.push(line), patienceMs: 0 },
      },
    );
    await expect(missing).rejects.toMatchObject({
      code: "config.invalid",
      message: expect.stringMatching(
        /no trainer.*'rollout\/1' \('cpu:1'\) within .*'300'.*none is on this host; place 'rollout'/,
      ),
    });
    expect(said).toEqual([
      expect.stringMatching(/^waits for a trainer on its devices \('cpu:1'\).*none is on this host/),
    ]);
    for (const [change, message] of [
      [{ model: { ...model, slots: 3 } }, /model.slots of 'rollout' is '3' and of 'actor'.*'8'/],
      [{ torch: { ...torch, dtype: "bfloat16" } }, /engine.dtype of 'rollout' is 'bfloat16'/],
      [{ torch: { ...torch, lora: { rank: 2 } } }, /engine.lora trains adapters/],
    ] as const) {
      const { model: sizes = model, torch: settings = torch } = change as {
        model?: typeof model;
        torch?: typeof torch;
      };
      const refused = SharedTorchEngine.attach(sizes, settings, { rank: rankOf("rollout"), hostFiles });
      await expect(refused).rejects.toMatchObject({ code: "config.invalid", message: expect.stringMatching(message) });
    }
    const sharded = TorchEngine.create(model, torch, { processes: 2, hostFiles, offer: rankOf("actor") });
    await expect(sharded).rejects.toMatchObject({ message: expect.stringMatching(/sharded over '2' processes/) });
  });

  test("MO1 reads no offer that others could have written", async () => {
    const hostFiles = hostFilesOf();
    const trainer = await trainerOf(hostFiles);
    onTestFinished(() => trainer.close());
    const folders = await leftOf(hostFiles);
    const place = join("/dev/shm", folders.find((name) => name.includes("-shared-"))!);
    expect((await stat(place)).mode & 0o777).toBe(0o700);
    expect((await stat(join(place, "offer.json"))).mode & 0o777).toBe(0o600);
    expect(await moduleOffers(hostFiles)).toHaveLength(1);
    await chmod(place, 0o755);
    expect(await moduleOffers(hostFiles)).toEqual([]);
    await chmod(place, 0o700);
    await chmod(join(place, "offer.json"), 0o644);
    expect(await moduleOffers(hostFiles)).toEqual([]);
  });

  test("MC3 ends with its process; the process goes on without it", async () => {
    const hostFiles = hostFilesOf();
    const trainer = await trainerOf(hostFiles);
    onTestFinished(() => trainer.close());
    // Another worker, which is killed while the process generates for it, and while it has paused it.
    const source = new URL("../src/index.ts", import.meta.url).href;
    const script = `const { SharedTorchEngine } = await import(${JSON.stringify(source)});
      const engine = await SharedTorchEngine.attach(${JSON.stringify(model)}, ${JSON.stringify(torch)}, ${JSON.stringify({ rank: rankOf("rollout"), hostFiles })});
      await engine.restore();
      const prompts = Array.from({ length: 5000 }, () => Int32Array.of(1));
      const made = engine.generate(prompts, ${JSON.stringify({ ...sampling, maxTokens: 5 })}, { onCompletion: () => process.stdout.write(".") });
      if (process.argv.includes("paused")) await engine.pause();
      process.stdout.write("begun");
      await made;`;
    for (const how of ["running", "paused"]) {
      const flags = ["--conditions=source", "--import", "tsx", "--input-type=module", "-e", script, how];
      const child = spawn(process.execPath, flags, { stdio: ["ignore", "pipe", "inherit"] });
      await once(child.stdout, "data");
      child.kill("SIGKILL");
      await once(child, "exit");
      await step(trainer);
      await vi.waitFor(async () => {
        await trainer.generate([Int32Array.of(1)], sampling);
        await trainer.release(["cache"]);
        // Nobody's cache is left.
        expect(trainer.memory().residentBytes).toBe(0);
        await trainer.restore(["cache"]);
      }, 20_000);
    }
    const sampler = await attach(hostFiles);
    const generating = sampler.generate(
      Array.from({ length: 2000 }, () => Int32Array.of(1)),
      sampling,
    );
    const failed = expect(generating).rejects.toMatchObject({ code: "service.failed" });
    process.kill(trainer.pid!, "SIGKILL");
    await failed;
    expect((await sampler.ended).message).toContain("'actor/0'");
    await sampler.close();
    await trainer.ended;
    await vi.waitFor(async () => expect(await moduleOffers(hostFiles)).toEqual([]));
  }, 120_000);
});

describe.skipIf(reason)(reason ?? "a shared process that is stopped", () => {
  test("HW1 is ended by its trainer's rank, though nobody but the sampler waits for it, and the next one waits for another", async () => {
    const hostFiles = hostFilesOf();
    const times = { ...torch, healthTimeoutMs: 6_000, startTimeoutMs: 90_000 };
    const trainer = await TorchEngine.create(model, times, { hostFiles, offer: rankOf("actor") });
    onTestFinished(() => trainer.close());
    const attached = (patienceMs: number) =>
      SharedTorchEngine.attach(model, { ...times, startTimeoutMs: patienceMs }, { rank: rankOf("rollout"), hostFiles });
    const sampler = await attached(90_000);
    process.kill(trainer.pid!, "SIGSTOP");
    const next = expect(attached(15_000)).rejects.toMatchObject({ code: "config.invalid" });
    for (const each of [sampler, trainer]) expect((await each.ended).message).toContain("stopped or frozen");
    await next;
  }, 120_000);
});

describe("MO2 the trainer whose module a rank shares", () => {
  const offerOf = (component: string, rank: number, worldSize: number, devices: string[], computesOn = "cpu") => ({
    ...{ component, rank, worldSize, devices, computesOn },
    address: "unix:/tmp/a",
    token: "t",
    settings: {} as never,
  });
  test("on an accelerator is on one of its devices, and nowhere else", () => {
    const offers = [0, 1].map((rank) => offerOf("actor", rank, 2, [`cuda:${rank}`], "cuda:0"));
    expect(chooseOffer(offers, rankOf("rollout", 0, ["cuda:1"], 2))?.rank).toBe(1);
    expect(chooseOffer(offers, rankOf("rollout", 0, ["cuda:2"], 2))).toBeUndefined();
  });
  test("on a host is near by name, or that of rank modulo the trainer's ranks, whenever it comes", () => {
    const offers = [0, 1].map((rank) => offerOf("actor", rank, 2, [`cpu:${rank}`]));
    expect(chooseOffer(offers, rankOf("rollout", 0, ["cpu:1"], 2))?.rank).toBe(1);
    expect(chooseOffer(offers, rankOf("rollout", 3, ["cpu:7"], 4))?.rank).toBe(1);
    expect(chooseOffer(offers.slice(0, 1), rankOf("rollout", 3, ["cpu:7"], 4))).toBeUndefined();
    const all = ["cpu:0", "cpu:1"];
    const wide = [0, 1].map((rank) => offerOf("actor", rank, 2, all));
    expect(chooseOffer(wide, rankOf("rollout", 1, all, 2))?.rank).toBe(1);
  });
  test("is told apart from another trainer's, or refused", () => {
    const offers = [offerOf("actor", 0, 1, ["cpu:0"]), offerOf("critic", 0, 1, ["cpu:1"])];
    expect(chooseOffer(offers, rankOf("rollout", 0, ["cpu:1"]))?.component).toBe("critic");
    expect(() => chooseOffer(offers, rankOf("rollout", 0, ["cpu:2"]))).toThrow(/'actor' and 'critic' train/);
  });
});
