import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Sampling } from "@treadle/contracts";
import { ManualClock } from "@treadle/contracts/testing";
import { EmulatedDevice, EmulatedEngine, EmulatedGroup } from "@treadle/engines";
import fc from "fast-check";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { DeviceMemory, type MemoryRecord } from "../src/emulated/device-memory.ts";

const MiB = 2 ** 20;
const sampling: Sampling = { maxTokens: 8, temperature: 1, stopTokens: [7], seed: 1 };
const prompt = Int32Array.of(1, 2, 3);
let clock: ManualClock;
let folder: string;
beforeEach(() => {
  clock = new ManualClock();
  folder = mkdtempSync(join(tmpdir(), "treadle-emulated-"));
});
afterEach(() => rmSync(folder, { recursive: true }));

/** Whatever waits for the clock goes on, until the call has settled. */
async function settled<T>(call: Promise<T>): Promise<T> {
  let isOver = false;
  const watched = call.finally(() => {
    isOver = true;
  });
  watched.catch(() => {});
  for (let i = 0; i < 1e5 && !isOver; i++) await clock.advance(1);
  return watched;
}

describe("memory of a device", () => {
  test("EM1, EM2, EM3: whatever is taken and given back, its sum fits, a refusal changes nothing, and the dead hold nothing", () => {
    const record = fc.oneof(
      { arbitrary: fc.record({ type: fc.constant("ended" as const), process: fc.nat(3) }), weight: 1 },
      {
        arbitrary: fc.record({
          type: fc.constant("set" as const),
          process: fc.nat(3),
          component: fc.constantFrom("a", "b"),
          tag: fc.constantFrom("weights" as const, "cache" as const, "residual" as const),
          bytes: fc.nat(60),
        }),
        weight: 6,
      },
    );
    fc.assert(
      fc.property(fc.array(record, { maxLength: 60 }), (records: MemoryRecord[]) => {
        const memory = new DeviceMemory(100);
        const other = new DeviceMemory(100);
        for (const each of records) {
          const before = memory.held.map((held) => ({ ...held }));
          const missing = memory.apply(each);
          expect(other.apply(each)).toBe(missing);
          expect(memory.usedBytes).toBeLessThanOrEqual(100);
          if (missing > 0) expect(memory.held).toEqual(before);
          if (each.type === "ended") expect(memory.held.some(({ process }) => process === each.process)).toBe(false);
          else if (missing > 0) expect(memory.usedBytes + each.bytes).toBeGreaterThan(100);
        }
        expect(other.held).toEqual(memory.held);
      }),
    );
  });

  test("two residents beyond it: the second is refused with component, tag and the bytes that are missing", async () => {
    const device = new EmulatedDevice({ name: "gpu:0", capacityBytes: 100 * MiB });
    const profile = { residentBytes: 60 * MiB, cacheBytes: 20 * MiB };
    const first = EmulatedEngine.create(profile, { clock, devices: [device], component: "rollout/0" });
    const beside = () => EmulatedEngine.create(profile, { clock, devices: [device], component: "actor/0" });
    expect(beside).toThrow(
      expect.objectContaining({
        code: "device.out-of-memory",
        details: expect.objectContaining({ component: "actor/0", tag: "weights", missingBytes: 40 * MiB }),
      }),
    );
    await settled(first.release());
    const second = beside();
    await expect(first.restore()).rejects.toMatchObject({ code: "device.out-of-memory" });
    expect(device.held.every(({ component }) => component === "actor/0")).toBe(true);
    await second.close();
    await settled(first.restore());
    expect(device.held.map(({ tag, bytes }) => [tag, bytes])).toEqual([
      ["weights", 60 * MiB],
      ["cache", 20 * MiB],
    ]);
  });

  test("what stays after a release counts, and is reported", async () => {
    const device = new EmulatedDevice({ name: "gpu:0", capacityBytes: 100 * MiB });
    const profile = { residentBytes: 50 * MiB, residualBytes: 10 * MiB };
    const engine = EmulatedEngine.create(profile, { clock, devices: [device], component: "rollout/0" });
    expect(engine.memory().residentBytes).toBe(60 * MiB);
    await settled(engine.release());
    expect(engine.memory().residentBytes).toBe(10 * MiB);
    const large = { residentBytes: 95 * MiB };
    expect(() => EmulatedEngine.create(large, { clock, devices: [device], component: "actor/0" })).toThrow(
      expect.objectContaining({ details: expect.objectContaining({ missingBytes: 5 * MiB }) }),
    );
    await engine.close();
    EmulatedEngine.create(large, { clock, devices: [device], component: "actor/0" });
  });

  test("ME3: it is released and restored tag by tag, in the seconds and bytes that it tells, and refuses what needs a released one", async () => {
    const device = new EmulatedDevice({ name: "gpu:0", capacityBytes: 100 * MiB });
    const bytes = { residentBytes: 30 * MiB, optimiserBytes: 10 * MiB, cacheBytes: 20 * MiB, residualBytes: 5 * MiB };
    const profile = { ...bytes, onloadSeconds: 8, offloadSeconds: 4 };
    const engine = EmulatedEngine.create(profile, { clock, devices: [device], component: "actor/0" });
    const { tags = [] } = engine.memory();
    expect(tags).toEqual([
      { tag: "weights", bytes: 30 * MiB, releaseSeconds: 3, restoreSeconds: 6 },
      { tag: "cache", bytes: 20 * MiB, releaseSeconds: 0, restoreSeconds: 0 },
      { tag: "optimiser", bytes: 10 * MiB, releaseSeconds: 1, restoreSeconds: 2 },
    ]);
    const held = () => Object.fromEntries(device.held.map(({ tag, bytes }) => [tag, bytes / MiB]));
    const seconds = async (call: Promise<void>) => {
      const startMs = clock.now();
      await settled(call);
      return Math.round((clock.now() - startMs) / 1000);
    };
    expect(await seconds(engine.release(["optimiser"]))).toBe(1);
    expect(held()).toEqual({ weights: 30, cache: 20, residual: 5 });
    expect(engine.memory().residentBytes).toBe(55 * MiB);
    await expect(engine.optimStep({ learningRate: 1 })).rejects.toMatchObject({
      code: "engine.released",
      message: expect.stringContaining("whose optimiser it needs"),
    });
    expect(await settled(engine.generate([prompt], sampling))).toHaveLength(1);
    expect(await seconds(engine.release(["cache"]))).toBe(0);
    await expect(engine.generate([prompt], sampling)).rejects.toMatchObject({ code: "engine.released" });
    await settled(engine.loadWeights(engine.exportWeights()));
    expect(await seconds(engine.release())).toBe(3);
    expect(held()).toEqual({ residual: 5 });
    expect(await seconds(engine.restore(["weights"]))).toBe(6);
    expect(held()).toEqual({ weights: 30, residual: 5 });
    expect(await seconds(engine.restore())).toBe(2);
    expect(await settled(engine.generate([prompt], sampling))).toHaveLength(1);
  });

  test("an engine that is made unloaded has nothing on its devices, and says what it will have", async () => {
    const device = new EmulatedDevice({ name: "gpu:0", capacityBytes: 100 * MiB });
    const profile = { residentBytes: 50 * MiB, cacheBytes: 20 * MiB, residualBytes: 10 * MiB };
    const options = { clock, devices: [device], component: "rollout/0", loaded: false };
    const engine = EmulatedEngine.create(profile, options);
    expect(device.held).toEqual([]);
    expect(engine.memory()).toMatchObject({ residentBytes: 0, loadedBytes: 80 * MiB });
    await expect(engine.generate([prompt], sampling)).rejects.toMatchObject({ code: "engine.released" });
    const other = EmulatedEngine.create(
      { residentBytes: 30 * MiB },
      { ...options, component: "actor/0", loaded: true },
    );
    await expect(engine.restore()).rejects.toMatchObject({ code: "device.out-of-memory" });
    expect(engine.memory().residentBytes).toBe(0);
    await other.close();
    await settled(engine.restore());
    expect(engine.memory()).toMatchObject({ residentBytes: 80 * MiB, loadedBytes: 80 * MiB });
    await settled(engine.release());
    expect(engine.memory()).toMatchObject({ residentBytes: 10 * MiB, loadedBytes: 80 * MiB });
    await settled(engine.restore());
    expect(device.held.map(({ tag }) => tag).sort()).toEqual(["cache", "residual", "weights"]);
  });

  test("EM2: processes share it through a file, and one that is killed leaves nothing there", async () => {
    const options = { name: "gpu:0", capacityBytes: 100 * MiB, path: join(folder, "gpu-0") };
    const child = spawn(process.execPath, [
      "-e",
      `require("node:fs").appendFileSync(${JSON.stringify(options.path)}, JSON.stringify(
        { type: "set", process: process.pid, component: "actor/0", tag: "weights", bytes: ${80 * MiB}, id: "x" }) + "\\n");
       console.log("taken"); setInterval(() => {}, 1000);`,
    ]);
    await once(child.stdout, "data");
    const device = new EmulatedDevice(options);
    expect(() => device.set("rollout/0", "weights", 30 * MiB)).toThrow("10485760 of 104857600 are missing");
    child.kill("SIGKILL");
    await once(child, "exit");
    device.set("rollout/0", "weights", 30 * MiB);
    expect(new EmulatedDevice(options).held).toMatchObject([{ component: "rollout/0", bytes: 30 * MiB }]);
  });
});

test("no release while it decodes; an engine says when it is idle", async () => {
  const engine = EmulatedEngine.create({ decode: { baseSeconds: 0.01 }, response: { medianTokens: 5 } }, { clock });
  expect(engine.idle()).toBeUndefined();
  const call = engine.generate([prompt], sampling);
  const idle = engine.idle();
  expect(idle).toBeInstanceOf(Promise);
  await expect(engine.release()).rejects.toMatchObject({ code: "engine.busy" });
  await settled(call);
  expect(engine.idle()).toBeUndefined();
  await idle;
  await settled(engine.release());
  await expect(engine.generate([prompt], sampling)).rejects.toMatchObject({ code: "engine.released" });
});

describe("a collective of ranks", () => {
  const step = { learningRate: 0.1 };
  const ranks = (group: EmulatedGroup, size: number) =>
    Array.from({ length: size }, (_, rank) => EmulatedEngine.create({}, { clock, rank, group }));

  test("ends when all have come, however late the last is within the deadline", async () => {
    const group = new EmulatedGroup({ size: 3, deadlineMs: 1000, clock });
    const [a, b, c] = ranks(group, 3) as [EmulatedEngine, EmulatedEngine, EmulatedEngine];
    const early = [a.optimStep(step), b.optimStep(step)];
    await clock.advance(900);
    expect([a.policyVersion, b.policyVersion]).toEqual([0, 0]);
    await settled(Promise.all([...early, c.optimStep(step)]));
    expect([a, b, c].map(({ policyVersion }) => policyVersion)).toEqual([1, 1, 1]);
  });

  test("EG1: without one it hangs until the deadline, names it, and one that comes later misses those that gave up", async () => {
    const group = new EmulatedGroup({ size: 3, deadlineMs: 1000, clock });
    const [a, b, c] = ranks(group, 3) as [EmulatedEngine, EmulatedEngine, EmulatedEngine];
    const early = Promise.allSettled([a.optimStep(step), c.optimStep(step)]);
    await clock.advance(999);
    expect(a.idle()).toBeInstanceOf(Promise);
    for (const result of await settled(early)) {
      expect(result).toMatchObject({ reason: { code: "engine.collective-timeout", details: { missing: [1] } } });
    }
    await expect(settled(b.optimStep(step))).rejects.toMatchObject({ details: { missing: [0, 2] } });
    expect([a, b, c].map(({ policyVersion }) => policyVersion)).toEqual([0, 0, 0]);
  });

  test("ranks of several processes meet through a file", async () => {
    const shared = { path: join(folder, "group"), meeting: "0" };
    const options = { size: 2, deadlineMs: 1000, shared, clock };
    const [a, b] = [new EmulatedGroup(options), new EmulatedGroup(options)];
    await settled(Promise.all([a.meet(0, "init"), b.meet(1, "init")]));
    await expect(settled(a.meet(0, "step"))).rejects.toMatchObject({ details: { missing: [1] } });
  });

  test("EG2: a group that starts again on the same file misses a rank that has not come again", async () => {
    const start = (meeting: string) =>
      new EmulatedGroup({ size: 2, deadlineMs: 1000, shared: { path: join(folder, "again"), meeting }, clock });
    const [a, b] = [start("first"), start("first")];
    await settled(Promise.all([a.meet(0, "step"), b.meet(1, "step")]));
    const again = start("second");
    await expect(settled(again.meet(0, "step"))).rejects.toMatchObject({
      code: "engine.collective-timeout",
      details: { missing: [1] },
    });
  });

  test("ranks that hold a model's tensors in parts meet in each call that computes; others do so in a step alone", async () => {
    const tensorGroups = [0, 2].map((firstRank) => new EmulatedGroup({ size: 2, firstRank, deadlineMs: 1000, clock }));
    const group = new EmulatedGroup({ size: 4, deadlineMs: 1000, clock });
    const engines = Array.from({ length: 4 }, (_, rank) =>
      EmulatedEngine.create({}, { clock, rank, group, tensorGroup: tensorGroups[Math.floor(rank / 2)] }),
    );
    const [a, b, c, d] = engines as [EmulatedEngine, EmulatedEngine, EmulatedEngine, EmulatedEngine];
    const rows = { rows: 1, columns: 3, tokens: prompt, temperatures: Float32Array.of(1) };
    await settled(Promise.all([a.logprobs(rows), b.logprobs(rows)]));
    await expect(settled(d.logprobs(rows))).rejects.toMatchObject({
      code: "engine.collective-timeout",
      message: expect.stringContaining("rank '3' waited 1000 ms in 'logprobs' for ranks 2 of 2, 3"),
    });
    await expect(settled(c.logprobs(rows))).rejects.toMatchObject({ details: { missing: [3] } });
    const together = [settled(a.generate([prompt], sampling)), settled(b.generate([prompt], sampling))];
    expect((await Promise.all(together)).map((completions) => completions.length)).toEqual([1, 1]);
    await settled(Promise.all(engines.map((engine) => engine.optimStep(step))));
    expect(engines.map(({ policyVersion }) => policyVersion)).toEqual([1, 1, 1, 1]);
  });

  test("a process that is killed between two collectives is missed in the second", async () => {
    const path = join(folder, "killed");
    const options = { size: 2, deadlineMs: 300, shared: { path, meeting: "0" } };
    const source = `import { EmulatedEngine, EmulatedGroup } from "@treadle/engines";
      setInterval(() => {}, 1000);
      const group = new EmulatedGroup({ ...${JSON.stringify(options)}, deadlineMs: 60000 });
      await EmulatedEngine.create({}, { rank: 1, group }).optimStep({ learningRate: 0.1 });
      console.log("stepped");`;
    const args = ["--conditions=source", "--import", "tsx", "--input-type=module", "-e", source];
    const child = spawn(process.execPath, args, { stdio: ["ignore", "pipe", "inherit"] });
    const patient = new EmulatedGroup({ ...options, deadlineMs: 60_000 });
    const first = EmulatedEngine.create({}, { rank: 0, group: patient }).optimStep(step);
    await once(child.stdout, "data");
    await first;
    child.kill("SIGKILL");
    await once(child, "exit");
    const again = new EmulatedGroup(options);
    await again.meet(0, "the first round, to which both came");
    await expect(again.meet(0, "the second")).rejects.toMatchObject({
      code: "engine.collective-timeout",
      details: { rank: 0, missing: [1], round: 1 },
    });
  });
});
